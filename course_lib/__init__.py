"""Sharded: learn ZeRO by building it."""

from .errors import CourseError
from .world import RankError, Run, World

__all__ = ["CourseError", "RankError", "Run", "World"]
