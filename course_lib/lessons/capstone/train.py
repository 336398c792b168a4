"""Train with one loop at every stage, and return the loss of the whole batch."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Solution
from .data import Batches, draw_batches, draw_world, make_engine


def draw(rng: random.Random, number: int) -> Case:
    (world_size, stage), seed = draw_world(rng, number), rng.getrandbits(32)
    what = f"stage {stage}, 3 batches"
    return Case(world_size=world_size, args=lambda rank: (seed, stage, draw_batches(seed, 3)), what=what)


class OnlyTrains:
    """An engine with only what the lesson's own stage 3 has, because it trains with the same answer later."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        return self._engine(x, y)

    def __getattr__(self, name: str) -> Any:
        if name in ("zero_grad", "step", "train"):
            return getattr(self._engine, name)
        raise AttributeError(
            f"this engine has no .{name}. Your own stage 3 has only engine(x, y), engine.zero_grad(), engine.step() "
            "and engine.train(), and one loop trains all engines."
        )


def trial(solution: Solution, seed: int, stage: int, batches: Batches) -> object:
    """Return the losses, and the number of rows in each call of the model."""
    engine = make_engine(seed, stage, torch.optim.SGD, lr=0.05)  # Adam would hide a factor on the gradients
    losses = solution(OnlyTrains(engine), batches)
    return {"losses": losses, "rows in each call": list(engine.module.rows)}


exercise = Exercise("capstone.train", title="One loop for all stages", draw=draw, trial=trial, tolerance=1e-4,
    case_count=4, task="""
    Train `engine` on each batch in turn. Return a list with the loss of each *whole* batch, computed before the step on
    that batch: the same numbers on every rank. A batch is `(x, y)`, the same on all ranks. Each rank trains on an equal
    part of its rows: call `engine` once for each batch. `engine(x, y)` returns the mean loss of the rows that you pass.
    The engine averages the gradients; you average the loss. Your own stage 3 runs the same loop later, so use only
    `engine(x, y)`, `engine.zero_grad()`, `engine.step()` and, if you like, `engine.train()`.""", hints="""
    In which order does one step clear, compute and use the gradients? And which rows does the loss of `engine(x, y)`
    belong to?

    Forward, backward and step are the same as in one process; only the rows are a part of the batch. All parts are
    equally large, so the mean of their means is the mean of the whole batch.

    `x.chunk(world_size)[rank]`, and `dist.all_reduce` on a detached copy of the loss.

    ```python
    for x, y in batches:
        engine.zero_grad()
        loss = engine(..., ...)
        ...
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        losses.append(mean.item())
    ```
    """, explanation="""
    No line of the loop depends on the stage; this is the purpose of an engine. Whether it reduces gradients in backward
    or in the step, the losses equal those of one process, up to rounding. `detach()` keeps the average out of
    autograd's graph, because only its value is needed.""")


@exercise
def train(engine: Any, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Train on one batch after the other; return the loss of each whole batch, on every rank.

    A batch is (x, y); each rank takes its own part of the rows, which divide evenly.
    `engine(x, y)` is the mean loss of these rows, and `engine.step()` averages the gradients.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, y in batches:
        engine.zero_grad()
        loss = engine(x.chunk(world_size)[rank], y.chunk(world_size)[rank])
        loss.backward()
        engine.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


PARTS = "x.chunk(world_size)[rank], y.chunk(world_size)[rank]"
MEAN = "mean = loss.detach() / world_size"

exercise.edit("local-loss", {f"{MEAN}\ndist.all_reduce(mean)\n": "", "mean.item()": "loss.item()"}, """
    Each rank returns the loss of its own rows. It differs from rank to rank, and is not the loss of the batch.
    Next: average the losses over the ranks, with an all-reduce of a detached copy.""")

exercise.edit("summed-loss", {MEAN: "mean = loss.detach().clone()"}, """
    You return the sum of the ranks' losses. Each of them is a mean over equally many rows, so the loss of the batch is
    their mean. Next: divide by the number of ranks.""")

exercise.edit("loss-of-rank-0", {MEAN: "mean = loss.detach().clone()", "dist.all_reduce(mean)":
    "dist.broadcast(mean, src=0)"}, """
    Every rank returns rank 0's loss, which is the mean over only rank 0's rows. Next: average over all ranks.""")

exercise.edit("gradients-not-cleared", {"engine.zero_grad()\n": ""}, """
    You never clear the gradients, so backward adds each batch's gradients to those of the earlier batches.
    Next: call `engine.zero_grad()` for each batch.""")

exercise.edit("never-stepped", {"engine.step()\n": ""}, """
    You compute gradients and never use them, so the model does not change.
    Next: call `engine.step()` after backward.""")

exercise.edit("every-second-batch", {"for x, y in batches:": "for number, (x, y) in enumerate(batches):",
    "engine.zero_grad()\n": "if number % 2 == 0:\n    engine.zero_grad()\n", "engine.step()":
    "if number % 2 == 1:\n    engine.step()"}, """
    The engine makes a step only after every second batch, with the gradients of two. The task trains on one batch after
    the other. Next: clear, compute and step for each batch.""")

exercise.edit("cleared-before-step", {"engine.zero_grad()\n": "", "engine.step()": "engine.zero_grad()\n"
    "engine.step()"}, """
    The step has no gradients to use: you clear them between backward and step, or never call backward.
    Next: clear them before backward, or after the step.""")

exercise.edit("loss-after-the-step", {MEAN: f"mean = engine({PARTS}).detach() / world_size"}, """
    You compute the loss a second time, after the step, when the model has already learned from the batch.
    Next: keep the loss on which you called backward.""")

exercise.edit("whole-batch-on-each", {PARTS: "x, y"}, """
    Every rank trains on the whole batch. The losses are right, but every rank does the work of all.
    Next: take this rank's part of x and of y.""")

LOSS = f"loss = engine({PARTS})"

exercise.edit("averaged-twice", {f"{LOSS}\nloss.backward()": f"{LOSS}\n(loss / world_size).backward()"}, """
    You divide the loss or its gradients by the number of ranks, and the engine averages the gradients as well: they are
    too small, by a factor of the number of ranks. Adam would hide this.
    Next: call `backward()` on the loss that the engine returned.""")


@exercise.variant
def strides(engine: Any, batches: Batches) -> list[float]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, y in batches:
        loss = engine(x[rank::world_size], y[rank::world_size])
        loss.backward()
        engine.step()
        engine.zero_grad()
        losses.append(loss.detach())
    total = torch.stack(losses)
    dist.all_reduce(total)
    return [loss / world_size for loss in total.tolist()]


exercise.variant_edit("gathered", {MEAN: "everyones = [torch.empty_like(loss) for _ in range(world_size)]",
    "dist.all_reduce(mean)": "dist.all_gather(everyones, loss.detach())", "mean.item()":
    "torch.stack(everyones).mean().item()"})
