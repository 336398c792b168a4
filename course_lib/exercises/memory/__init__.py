"""Lesson 02, where the memory goes: weigh a model, its optimizer, and what many ranks hold for nothing.

Each exercise is a module; data has what they share. optimizer is built on model.
"""

from . import model, optimizer, redundancy
from .mixed_precision import MIXED_PRECISION
from .quiz import QUIZ
from .rank_bytes import RANK_BYTES

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (model.exercise, optimizer.exercise, MIXED_PRECISION, redundancy.exercise, RANK_BYTES)
