"""Lesson 02, where the memory goes: weigh a model, its optimizer, and what many ranks hold for nothing.

Each exercise is a module; data has what they share. optimizer is built on model.
"""

from . import mixed_precision, model, optimizer, rank_bytes, redundancy
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (model.exercise, optimizer.exercise, mixed_precision.exercise, redundancy.exercise, rank_bytes.exercise)
