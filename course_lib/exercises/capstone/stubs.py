"""What the cells of lesson 10 start from, under the names that the learner's functions have."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ... import planner


def judge_stages(plans: list[planner.Plan], machine: planner.Hardware) -> list[str]:
    """Return for each plan "does not fit", "slower", "as fast" or "chosen".

    A plan fits if its peak fits a device of `machine`. "slower" takes more than 1.05 times as long
    as the fastest that fits. Of the others, the first plan is "chosen".
    """
    raise NotImplementedError


def train(engine: Any, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Train on one batch after the other; return the loss of each whole batch, on every rank.

    A batch is (x, y); each rank takes its own part of the rows, which divide evenly.
    `engine(x, y)` is the mean loss of these rows, and `engine.step()` averages the gradients.
    """
    raise NotImplementedError


def resume(engine: Any, saved: dict[str, Any], batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Bring `engine` to where `saved` was, train on the batches that are left; return their losses.

    saved["model"] and saved["optimizer"] are whole state dicts, saved["step"] counts the batches
    done. `batches` are all those of the training. `saved` stays as it is.
    """
    raise NotImplementedError
