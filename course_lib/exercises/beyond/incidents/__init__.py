"""Exercises of the incident room."""

EXERCISES = (
    "calls.out_of_memory", "calls.mixed_data", "calls.last_step", "calls.broken_sample", "calls.first_checkpoint",
    "calls.thirty_minutes",
    "state.warm_forward", "state.untied", "state.lost_updates", "state.short_answers", "state.one_dropout",
    "state.cold_resume", "state.whole_average", "state.stage_norm",
)  # fmt: skip
