"""A learner's own program, which runs on ranks as it is."""

from .launcher import launch
from .main import main_of_ranks
from .program import Program

__all__ = ["Program", "launch", "main_of_ranks"]
