"""A learner's own program, which runs on ranks as it is."""

from ..rank_threads.main import main_of_ranks
from .launcher import launch
from .program import Program

__all__ = ["Program", "launch", "main_of_ranks"]
