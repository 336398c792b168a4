"""Exercises of the incident room."""

from . import calls, state

EXERCISES = calls.EXERCISES + state.EXERCISES
