"""Incidents in which ranks do not make the same calls, or make them at different times."""

from . import broken_sample, first_checkpoint, last_step, mixed_data, out_of_memory, thirty_minutes

EXERCISES = (
    out_of_memory.exercise,
    mixed_data.exercise,
    last_step.exercise,
    broken_sample.exercise,
    first_checkpoint.exercise,
    thirty_minutes.exercise,
)
