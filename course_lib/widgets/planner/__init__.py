"""The planner as a page, for the site and for notebooks.

fields, drawing <- page <- widget. Only widget needs Jupyter: a browser runs the others.
"""
