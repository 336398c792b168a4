"""Lesson 01, ranks and collectives: from "what is a rank" to an all-reduce of one's own.

Each exercise is a module; data holds what they share. The later ones are built from the earlier:
exchange -> ring_reduce_scatter, ring_all_gather -> all_reduce.
"""

from . import (
    all_reduce,
    broadcast,
    exchange,
    hello,
    repair_average,
    repair_gather,
    ring_all_gather,
    ring_reduce_scatter,
)
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (
    hello.exercise, broadcast.exercise, exchange.exercise, ring_reduce_scatter.exercise, ring_all_gather.exercise,
    all_reduce.exercise, repair_average.exercise, repair_gather.exercise,
)
