"""Lesson 04, ZeRO-1: optimizer states, from a partition to a ZeRO-1 of one's own.

stubs holds what the learner starts from; each exercise is a module; they share data and rules. There are two ways to
shard: partition -> sharded_step, with whole parameters, and flatten -> zero1_step, with equal shards. consolidate puts
the state of the first together again.
"""

from .consolidate import CONSOLIDATE
from .flatten import FLATTEN
from .partition import PARTITION
from .quiz import QUIZ
from .sharded_step import SHARDED_STEP
from .zero1_step import ZERO1_STEP

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (PARTITION, SHARDED_STEP, FLATTEN, ZERO1_STEP, CONSOLIDATE)
