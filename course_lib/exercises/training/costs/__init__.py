"""Lesson 09, what communication costs: seconds for messages and bytes, and where they come from on real machines."""

from . import fit, hybrid, log, overlap, ring
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (ring.exercise, fit.exercise, overlap.exercise, hybrid.exercise, log.exercise)
