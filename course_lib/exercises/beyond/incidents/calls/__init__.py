"""Incidents in which ranks do not make the same calls."""

from . import batch_behind

EXERCISES = (batch_behind.exercise,)
