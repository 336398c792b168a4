"""Faults of a run: `RankError` and its message, warnings, layouts that differ."""
