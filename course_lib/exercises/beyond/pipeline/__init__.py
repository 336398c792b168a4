"""Exercises of the lesson on pipeline parallel."""

EXERCISES = ("blocks_of", "one_batch", "bubble", "one_forward_one_backward", "kept", "run_schedule")
