"""Exercises of the lesson on long sequences and experts."""
