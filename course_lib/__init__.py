"""Sharded: learn ZeRO by building it."""

from . import exercises, quizzes
from .errors import CourseError
from .planner import plan
from .widgets import exercise, quiz
from .world import RankError, Run, World

__all__ = ["CourseError", "RankError", "Run", "World", "exercise", "exercises", "plan", "quiz", "quizzes"]
