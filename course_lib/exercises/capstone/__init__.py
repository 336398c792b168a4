"""Lesson 10, the capstone: choose a plan, train at every stage, save, and go on with another number of ranks.

stubs holds what the learner starts from; data what train and resume are tried on; each exercise is a module.
resume is built on train.
"""

from . import reshard, resume, smallest_world, train
from .judge_stages import JUDGE_STAGES
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (smallest_world.exercise, JUDGE_STAGES, train.exercise, reshard.exercise, resume.exercise)
