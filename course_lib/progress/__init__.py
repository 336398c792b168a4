"""The learner's record: attempts, answers, predictions, and the map of the course."""

from .course_map import CourseMap, Item, Stop
from .lessons import NOTEBOOKS, Lesson, lessons, named, read_cells
from .progress import Attempt, ExerciseProgress, Prediction, Progress, Summary

__all__ = [
    "NOTEBOOKS", "Attempt", "CourseMap", "ExerciseProgress", "Item", "Lesson", "Prediction", "Progress", "Stop",
    "Summary", "lessons", "named", "read_cells",
]  # fmt: skip
