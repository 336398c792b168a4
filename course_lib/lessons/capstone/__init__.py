"""Lesson 12, the capstone: choose a plan, train at every stage, save, and go on with a different number of ranks.

Each exercise is a module; data holds what train is tried on.
"""
