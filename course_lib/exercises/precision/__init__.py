"""Lesson 07, mixed precision and activations: what 16 bits save, what they lose, and what is computed again.

stubs holds what the learner starts from; each exercise is a module; they share data. master_step is a step of one
process through masters in fp32, and sharded_step the same with the masters shared out. unscale belongs to loss
scaling. activation_bytes and recompute are about what forward keeps for backward.
"""

from . import activation_bytes, master_step
from .quiz import QUIZ
from .recompute import RECOMPUTE
from .sharded_step import SHARDED_STEP
from .unscale import UNSCALE

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (master_step.exercise, SHARDED_STEP, UNSCALE, activation_bytes.exercise, RECOMPUTE)
