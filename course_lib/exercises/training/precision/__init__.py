"""Lesson 07, mixed precision and activations: what 16 bits save, what they lose, and what is computed again.

Each exercise is a module; data holds what they share. master_step is a step of one process through masters in fp32, and
sharded_step the same with the masters in shards. masters repairs a program for FSDP2 that has none. unscale belongs to
loss scaling. activation_bytes and recompute are about what forward keeps for backward.
"""

from . import activation_bytes, master_step, masters, recompute, sharded_step, unscale
from .quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (
    master_step.exercise, sharded_step.exercise, masters.exercise, unscale.exercise, activation_bytes.exercise,
    recompute.exercise,
)
