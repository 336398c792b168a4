"""Exercises of the incident room."""

from . import calls

EXERCISES = calls.EXERCISES
