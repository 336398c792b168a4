"""Lesson 05, ZeRO-2: gradients, from hooks that hand them over up to a ZeRO-2 of one's own.

Each exercise is a module; data holds what they share. The later ones are built from the earlier:
hand_over, start_reduction -> reduce_during_backward. clip_shards works on the shards that these leave; repair is a
stage 2 with one owner for each parameter.
"""

from . import clip_shards, hand_over, reduce_during_backward, repair, start_reduction
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (
    hand_over.exercise, start_reduction.exercise, reduce_during_backward.exercise, clip_shards.exercise,
    repair.exercise,
)
