"""Lesson 06, ZeRO-3: parameters that are gathered before they are used, and freed after it.

stubs holds what the learner starts from; each exercise is a module; they share data, rules, and the unit that they
work on. The learner's stage 3 is made of them: shard_params at the start; gather_ahead, which calls start_gather, and
sharded_forward for each unit; reduce_gradients when its gradients are there.
"""

from .gather_ahead import GATHER_AHEAD
from .quiz import QUIZ
from .reduce_gradients import REDUCE_GRADIENTS
from .shard_params import SHARD_PARAMS
from .sharded_forward import SHARDED_FORWARD
from .start_gather import START_GATHER

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (SHARD_PARAMS, START_GATHER, SHARDED_FORWARD, REDUCE_GRADIENTS, GATHER_AHEAD)
