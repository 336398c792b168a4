"""What the cells of lesson 10 start from, under the names that the learner's functions have."""

from __future__ import annotations

from ... import planner


def judge_stages(plans: list[planner.Plan], machine: planner.Hardware) -> list[str]:
    """Return for each plan "does not fit", "slower", "as fast" or "chosen".

    A plan fits if its peak fits a device of `machine`. "slower" takes more than 1.05 times as long
    as the fastest that fits. Of the others, the first plan is "chosen".
    """
    raise NotImplementedError
