"""Incidents in which no rank waits and no rank fails: the numbers are wrong."""

from . import (
    cold_resume,
    lost_updates,
    one_dropout,
    short_answers,
    stage_norm,
    untied,
    warm_forward,
    whole_average,
)

EXERCISES = (
    warm_forward.exercise,
    untied.exercise,
    lost_updates.exercise,
    short_answers.exercise,
    one_dropout.exercise,
    cold_resume.exercise,
    whole_average.exercise,
    stage_norm.exercise,
)
