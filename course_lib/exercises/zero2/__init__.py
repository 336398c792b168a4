"""Lesson 05, ZeRO-2: gradients, from hooks that let go of them up to a ZeRO-2 of one's own.

stubs holds what the learner starts from; each exercise is a module; they share bucket, data and rules. The later ones
are built from the earlier: hand_over, start_reduction -> reduce_during_backward. clip_shards works on what these leave;
repair is a stage 2 of another make, with one owner for each parameter.
"""

from .clip_shards import CLIP_SHARDS
from .hand_over import HAND_OVER
from .quiz import QUIZ
from .reduce_during_backward import REDUCE_DURING_BACKWARD
from .repair import REPAIR
from .start_reduction import START_REDUCTION

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (HAND_OVER, START_REDUCTION, REDUCE_DURING_BACKWARD, CLIP_SHARDS, REPAIR)
