"""Lesson 08, what communication costs: seconds for messages and bytes, and where they come from on real machines.

stubs holds what the learner starts from; each exercise is a module. fit is built on ring.
"""

from .fit import FIT
from .hybrid import HYBRID
from .log import LOG
from .overlap import OVERLAP
from .quiz import QUIZ
from .ring import RING

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (RING, FIT, OVERLAP, HYBRID, LOG)
