"""Lesson 07, mixed precision: what 16 bits save and what they lose. Two of the exercises belong to lesson 08.

Each exercise is a module; data holds what they share. master_step is a step of one process through masters in fp32, and
sharded_step the same with the masters in shards. masters repairs a program for FSDP2 that has none. unscale belongs to
loss scaling. activation_bytes and recompute, about what forward keeps for backward, are in lesson 08.
"""

from . import master_step, masters, sharded_step, unscale
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (master_step.exercise, sharded_step.exercise, masters.exercise, unscale.exercise)
