"""Lesson 12, the capstone: choose a plan, train at every stage, save, and go on with a different number of ranks.

Each exercise is a module; data holds what train and resume are tried on. resume calls train.
"""

from . import decide, reshard, resume, smallest_world, train
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (smallest_world.exercise, decide.exercise, train.exercise, reshard.exercise, resume.exercise)
