"""Exercises of the lesson from notebook to cluster."""

from . import repair_train
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (repair_train.exercise,)
