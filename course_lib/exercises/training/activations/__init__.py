"""Lesson 08, activations: what forward keeps for backward.

Progress is stored under `precision.activation_bytes` and `precision.recompute`: they were in lesson 07 at first.
"""

EXERCISES = ("activation_bytes", "recompute")
