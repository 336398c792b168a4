"""The learner's record: attempts, answers, predictions, and the map of the course."""

from .progress import Answer, Attempt, ExerciseProgress, Prediction, Progress, Summary

__all__ = ["Answer", "Attempt", "ExerciseProgress", "Prediction", "Progress", "Summary"]
