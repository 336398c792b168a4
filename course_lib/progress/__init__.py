"""The learner's record: attempts, answers, predictions, and the map of the course."""

from .course_map import CourseMap, Item, Stop
from .progress import Attempt, ExerciseProgress, Progress, Summary, own_progress

__all__ = [
    "Attempt", "CourseMap", "ExerciseProgress", "Item", "Progress", "Stop", "Summary", "own_progress",
]  # fmt: skip
