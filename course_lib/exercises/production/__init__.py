"""Lesson 09, production: torch's ZeroRedundancyOptimizer and FSDP2, and how to read a DeepSpeed configuration.

stubs holds what the learner starts from; each exercise is a module; they share data. make_zero1 and make_zero3 set up
what torch ships; resume loads what any number of ranks has saved; fsdp2_settings and faults read configurations.
"""

from .faults import FAULTS
from .fsdp2_settings import FSDP2_SETTINGS
from .make_zero1 import MAKE_ZERO1
from .make_zero3 import MAKE_ZERO3
from .quiz import QUIZ
from .resume import RESUME

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (MAKE_ZERO1, MAKE_ZERO3, FSDP2_SETTINGS, FAULTS, RESUME)
