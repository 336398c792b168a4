"""A learner's own program, which runs on ranks as it is."""

from .launcher import launch
from .program import Program, main_of_ranks

__all__ = ["Program", "launch", "main_of_ranks"]
