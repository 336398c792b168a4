"""Lesson 02, where the memory goes: the bytes of a model, its optimizer, and the copies on many ranks.

Each exercise is a module; data holds what they share. optimizer is built on model.
"""

from . import mixed_precision, model, optimizer, rank_bytes, redundancy
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (model.exercise, optimizer.exercise, mixed_precision.exercise, redundancy.exercise, rank_bytes.exercise)
