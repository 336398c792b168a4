"""Exercises of the lesson from notebook to cluster."""

EXERCISES = ("repair_train",)
