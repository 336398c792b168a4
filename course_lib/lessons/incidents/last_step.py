"""Incident: some ranks have a batch more than the others."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution
from .data import batches, make_mlp, parameters


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (3, 2, 4)[number % 3], rng.randint(2, 4), rng.getrandbits(31)
    counts = [8] * world_size
    counts[0 if number == 0 else rng.randrange(world_size)] = 10 if number == 0 else rng.choice([9, 10, 11, 12])
    if number == 1:
        counts = [10, 6]  # batches of different sizes in one step
    if number == 3:  # fewer steps
        counts = [count - 4 for count in counts]

    def args(rank: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        return make_mlp(width, seed), *batches([counts[rank]], width, seed + rank)[0]

    return Case(world_size=world_size, args=args, what=f"examples on each: {', '.join(map(str, counts))}")


def trained(solution: Solution, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {"losses": solution(model, x, y), "parameters": parameters(model)}


exercise = Exercise("incidents.last_step", title="Incident: the last step", draw=draw, trial=trained,
    answers={
        "where": "rank 0 made a step more than ranks 1 and 2",
        "weight": 3,
    },
    inputs_matter=False, case_count=4, task="""
    The job trains well, and hangs in the last step of its first epoch. The report is the one that led to DDP's `join`:
    [PyTorch, issue 38174](https://github.com/pytorch/pytorch/issues/38174). Repair the program until its docstring is
    true.
    """, hints="""
    How many batches of four does each rank have?

    The ranks have to agree on the number of steps before the first one. A rank without a batch takes part with an
    empty one.

    `dist.all_reduce(steps, dist.ReduceOp.MAX)` finds the largest number. `x[4 * step : 4 * step + 4]` is empty past the
    end, and `F.mse_loss(..., reduction="sum")` of nothing is 0, with gradients of zero.

    ```python
    count = torch.tensor(float(len(batch)))
    dist.all_reduce(count)
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= ...
    ```
    """, explanation="""
    `DistributedSampler` hides this: it repeats examples, or drops them, until all ranks have the same number. With
    data in files, or a dataset that streams, nobody does. An empty batch keeps the calls alike; counting examples
    instead of ranks keeps the mean right, because the last batches differ in size. DDP's `join` contributes zeros for a
    rank that has finished, and divides by the number of ranks.
    """)


@exercise
def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Train for one epoch in batches of up to four examples, and return the losses of this rank's batches.

    Ranks may have different numbers of examples. A step's gradient is the mean over all examples
    that the ranks have in it, so a rank without a batch adds nothing.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    steps = torch.tensor(-(-len(x) // 4))
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    for step in range(int(steps)):
        batch, target = x[4 * step : 4 * step + 4], y[4 * step : 4 * step + 4]
        optimizer.zero_grad()
        total = F.mse_loss(model(batch), target, reduction="sum")
        total.backward()
        count = torch.tensor(float(len(batch)))
        dist.all_reduce(count)
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= count
        optimizer.step()
        losses += [total.item() / len(batch)] if len(batch) else []
    return losses


@exercise.start
def start(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, (batch, target) in enumerate(zip(x.split(4), y.split(4), strict=True)):
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), target)
        loss.backward()
        print(f"step {step}: {len(batch)} examples, loss {loss.item():.3f}")
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(loss.item())
    return losses


AGREE = "dist.all_reduce(steps, dist.ReduceOp.MAX)\n"

exercise.edit("mean-over-ranks-with-a-batch", {"total.backward()": "(total / max(1, len(batch))).backward()",
    "float(len(batch))": "float(len(batch) > 0)"}, """
    You take each rank's mean, and divide by the number of ranks that have a batch. Where one rank has four examples and
    another two, each of the two counts double. Next: add up, and divide once by all examples of the step.
    """)

exercise.edit("still-uneven", {AGREE: "", "dist.all_reduce(count)\n": "", "/= count": "/= 4 * dist.get_world_size()"},
    """
    One rank still makes more steps than the others, and waits in its last all-reduce for ranks that have returned. A
    longer time limit or a `try` does not bring them back. Next: let all ranks make as many steps as the longest.
    """)

exercise.edit("a-barrier-at-the-end", {AGREE: "", "dist.all_reduce(count)\n": "", "/= count":
    "/= 4 * dist.get_world_size()", "return losses": "dist.barrier()\nreturn losses"}, """
    The ranks that are done wait in your barrier, and the rank with one batch more waits in its all-reduce.
    Next: let all ranks make as many steps as the longest.
    """)

exercise.edit("drops-the-last", {"ReduceOp.MAX": "ReduceOp.MIN"}, """
    Your ranks stop when the first of them has no batch left. Examples of the other ranks are never seen.
    Next: go on until the last rank is done; a rank without a batch takes part with an empty one.
    """)

exercise.edit("repeats-examples", {"batch, target = x[4 * step : 4 * step + 4], y[4 * step : 4 * step + 4]":
    "mine = torch.arange(4 * step, 4 * step + 4)\nmine = mine[mine < len(x)] if 4 * step < len(x) else mine % len(x)\n"
    "batch, target = x[mine], y[mine]"}, """
    A rank without a batch repeats earlier examples, as `DistributedSampler` does. These examples count twice.
    Next: give it an empty batch.
    """)

exercise.edit("as-if-full", {"dist.all_reduce(count)\n": "", "/= count": "/= 4 * dist.get_world_size()"}, """
    You divide by four examples for each rank. In the last step there are fewer, so its gradient is too small.
    Next: sum the counts over the ranks, and divide by the sum.
    """)

exercise.edit("no-step-without-a-batch", {"optimizer.step()": "if len(batch):\n    optimizer.step()"}, """
    A rank without a batch makes the calls, but no optimizer step. Its parameters now differ from those of the others,
    silently. Next: make the step on every rank.
    """)


@exercise.mistake
def mean_of_means(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """You average the means of the ranks. An example in a batch of two then counts twice as much as one in a batch of
    four, and a rank without a batch pulls the mean towards zero. Next: sum over examples, and divide by their number
    on all ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    steps = torch.tensor(-(-len(x) // 4))
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    for step in range(int(steps)):
        batch, target = x[4 * step : 4 * step + 4], y[4 * step : 4 * step + 4]
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), target) if len(batch) else model(batch).sum()
        loss.backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
        losses += [loss.item()] if len(batch) else []
    return losses


@exercise.variant
def asks_each_time(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    step = 0
    while True:
        batch, target = x[4 * step : 4 * step + 4], y[4 * step : 4 * step + 4]
        count = torch.tensor(len(batch))
        dist.all_reduce(count)
        if count == 0:
            return losses
        optimizer.zero_grad()
        loss = (model(batch) - target).square().sum() / count
        loss.backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
        optimizer.step()
        if len(batch):
            losses.append(loss.item() * count.item() / len(batch))
        step += 1


exercise.variant_edit("scales-the-loss", {"total.backward()": "", "dist.all_reduce(count)\n":
    "dist.all_reduce(count)\n(total / count).backward()\n", "\n    param.grad /= count": ""})
