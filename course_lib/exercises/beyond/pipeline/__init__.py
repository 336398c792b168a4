"""Exercises of the lesson on pipeline parallel."""

from . import blocks_of, bubble, kept, one_batch, one_forward_one_backward, quiz, run_schedule

EXERCISES = (
    blocks_of.exercise,
    one_batch.exercise,
    bubble.exercise,
    one_forward_one_backward.exercise,
    kept.exercise,
    run_schedule.exercise,
)
QUIZ = quiz.QUIZ
