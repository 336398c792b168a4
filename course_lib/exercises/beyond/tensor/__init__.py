"""Lesson 13, tensor parallel: from two ways to cut a matrix to a loss whose scores no rank has whole.

Each exercise is a module; data holds what they share. The later ones are built from the earlier:
copy, all_reduce -> mlp, attention, embedding, cross_entropy.
"""

from . import (
    all_reduce,
    attention,
    column_linear,
    copy,
    cross_entropy,
    dropout_streams,
    embedding,
    mlp,
    row_linear,
)
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (
    column_linear.exercise,
    row_linear.exercise,
    copy.exercise,
    all_reduce.exercise,
    mlp.exercise,
    attention.exercise,
    dropout_streams.exercise,
    embedding.exercise,
    cross_entropy.exercise,
)
