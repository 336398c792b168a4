"""Exercises of the lesson from notebook to cluster."""
