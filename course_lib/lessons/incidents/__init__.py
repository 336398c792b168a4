"""Exercises of the incident room."""
