"""Exercises of the lesson on pipeline parallel."""
