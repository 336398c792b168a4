"""Lesson 10, the capstone: choose a plan, train at every stage, save, and go on with another number of ranks.

stubs holds what the learner starts from; data what train and resume are tried on; each exercise is a module.
resume is built on train.
"""

from .judge_stages import JUDGE_STAGES
from .quiz import QUIZ
from .reshard import RESHARD
from .resume import RESUME
from .smallest_world import SMALLEST_WORLD
from .train import TRAIN

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (SMALLEST_WORLD, JUDGE_STAGES, TRAIN, RESHARD, RESUME)
