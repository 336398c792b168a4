"""Incident: a rank skips a batch that does not fit, and is one batch behind from then on."""

import random
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution
from .data import Batch, batches, make_mlp, parameters


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (4, 2, 3)[number % 3], rng.randint(2, 4), rng.getrandbits(31)
    sizes = [[4] * 6 for _ in range(world_size)]
    behind = 2 if number == 0 else rng.randrange(world_size)
    at, late = 0 if number == 2 else 3, number == 1  # in the first batch, no parameter has had a gradient
    sizes[behind][at] = 7  # does not fit
    return Case(
        world_size=world_size,
        args=lambda rank: (make_mlp(width, seed, most=5, late=late), batches(sizes[rank], width, seed + rank)),
        what=f"6 batches each; batch {at} of rank {behind} does not fit in {'backward' if late else 'forward'}",
    )


def trained(solution: Solution, model: nn.Module, data: list[Batch]) -> dict[str, Any]:
    return {"losses": solution(model, data), "parameters": parameters(model)}


exercise = Exercise("incidents.out_of_memory", title="Incident: out of memory, batch skipped", draw=draw, trial=trained,
    answers={
        "where": "rank 2, at line 19",
        "why": "those of one step earlier on the other ranks",
    },
    inputs_matter=False, case_count=3, task="""
    A rank that ran out of memory caught the error and went on, and the job hung much later. That is fairseq's
    [pull request 3989](https://github.com/facebookresearch/fairseq/pull/3989), rebuilt. Repair the program until its
    docstring is true.
    """, hints="""
    Count the all-reduces of each rank. Which rank makes fewer, and from which step on?

    Calls have no names. The k-th all-reduce of one rank meets the k-th all-reduce of the others, whatever they belong
    to.

    A rank without gradients has to make the step's all-reduces, too. `torch.zeros_like(param)` adds nothing.

    ```python
    except torch.OutOfMemoryError as error:
        print(...)
        for param in model.parameters():
            param.grad = ...
    for param in model.parameters():
        dist.all_reduce(param.grad)
    ```
    """, explanation="""
    Skipping a batch is a decision of one rank, and its `continue` also skips two all-reduces. From then on the rank's
    all-reduces meet those of the step before on the other ranks: same shape, same dtype, so nothing complains. For some
    steps all ranks average gradients of different batches. The program hangs only when the others have a step left and
    this rank has none. A longer time limit, a barrier or a `try` around the call only changes where it hangs. Memory
    can also run out in backward, when some parameters have their gradient. Decide by rank what to contribute, never
    whether to call.
    """)


@exercise
def train(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Train on this rank's batches, and return their losses.

    All ranks make a step together for each batch, with the mean of their gradients. A batch that
    does not fit in memory counts as a gradient of zero, and has no loss.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, (x, y) in enumerate(data):
        optimizer.zero_grad()
        try:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
            print(f"step {step}: loss {losses[-1]:.3f}")
        except torch.OutOfMemoryError as error:
            print(f"step {step}: {error}; skipping batch")
            for param in model.parameters():
                param.grad = torch.zeros_like(param)
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
    dist.barrier()
    return losses


ZEROS = "for param in model.parameters():\n    param.grad = torch.zeros_like(param)"

exercise.start_edit({ZEROS: "continue"})

exercise.edit("still-behind", {ZEROS: "dist.barrier()\ncontinue"}, """
    The rank that skips its batch still makes fewer all-reduces than the others. A barrier or a `try` does not bring
    them back: it moves the place where the ranks wait. Next: let that rank take part in the step, with gradients of
    zero.
    """)

exercise.edit("contributes-nothing", {ZEROS: "pass"}, """
    The rank that skips its batch goes on to the all-reduces, but has no gradients there: `param.grad` is None, or what
    backward left. Next: give that rank gradients of zero when the batch does not fit.
    """)

exercise.edit("a-loss-of-zero", {ZEROS: f"losses.append(0.0)\n{ZEROS}"}, """
    You add a loss of 0.0 for the batch that does not fit. The docstring says that such a batch has no loss.
    Next: leave it out of the list.
    """)

LONG = timedelta(hours=2)

exercise.edit("half-the-batch", {ZEROS: "F.mse_loss(model(x[: len(x) // 2]), y[: len(x) // 2]).backward()"}, """
    The rank takes half of the batch that does not fit. The ranks stay together, but the docstring counts such a batch
    as a gradient of zero. Next: set that rank's gradients to zero.
    """)

exercise.edit("longer-time-limit", {ZEROS: "continue", "losses = []":
    "group = dist.new_group(timeout=LONG)\nlosses = []",
    "dist.all_reduce(param.grad)": "dist.all_reduce(param.grad, group=group)"}, """
    The rank that skipped a batch never makes the missing calls, however long the others wait, and in whichever group.
    Next: let that rank take part in the step, with gradients of zero.
    """)

exercise.edit("no-last-barrier", {ZEROS: "continue", "dist.barrier()\n": ""}, """
    Without the barrier the rank that skipped a batch returns, and the others wait for its last all-reduce. The barrier
    is only the place where the missing calls show. Next: keep it, and look at the step in which the batch is skipped.
    """)

exercise.edit("no-step-there", {ZEROS: f"{ZEROS}\n    dist.all_reduce(param.grad)\ncontinue"}, """
    The rank that skips its batch makes the calls, and then no optimizer step. Its parameters differ from those of the
    other ranks from then on, and no call ever shows it. Next: make the step there, too, with the mean of the gradients.
    """)

exercise.edit("zeros-where-there-is-none", {ZEROS: f"{ZEROS} if param.grad is None else param.grad"}, """
    You set only missing gradients to zero. If memory runs out in backward, some parameters have a gradient of this
    batch already, and the rank contributes it. Next: set all of them to zero.
    """)

exercise.edit("old-gradients", {"optimizer.zero_grad()\ntry:\n    loss = F.mse_loss(model(x), y)":
    "try:\n    loss = F.mse_loss(model(x), y)\n    optimizer.zero_grad()", ZEROS: "pass"}, """
    The rank that skips its batch still has the gradients of the step before, and contributes them again.
    Next: set them to zero when the batch does not fit.
    """)

exercise.edit("all-skip-losses-kept", {"try:": "fits = torch.tensor(1.0)\ntry:", ZEROS: "fits -= 1",
    "for param in model.parameters():\ndist.all_reduce": "dist.all_reduce(fits, dist.ReduceOp.MIN)\nif not fits:\n"
    "    continue\nfor param in model.parameters():\n    dist.all_reduce"}, """
    All your ranks leave the step out if one of them cannot take its batch. They stay together, but the gradients of the
    others are lost. Next: make the step, and count only the batch that does not fit as zero.
    """)


@exercise.mistake
def all_skip(model: nn.Module, data: list[Batch]) -> list[float]:
    """All your ranks skip the step if one of them cannot take its batch. They stay together, but the batches of the
    others are lost. Next: make the step, and count only the batch that does not fit as zero."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        fits = torch.tensor(float(can_take(model, x)))
        dist.all_reduce(fits, dist.ReduceOp.MIN)
        if fits:
            losses.append(backward(model, x, y))
            mean_over(model, dist.get_world_size())
            optimizer.step()
    dist.barrier()
    return losses


@exercise.mistake
def mean_over_those_that_fit(model: nn.Module, data: list[Batch]) -> list[float]:
    """You divide by the number of ranks whose batch fits. The docstring counts the skipped batch as a gradient of zero.
    Next: divide by the world size."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        fits = torch.tensor(float(can_take(model, x)))
        losses += [backward(model, x, y)] if fits else []
        dist.all_reduce(fits)
        mean_over(model, int(fits))
        optimizer.step()
    dist.barrier()
    return losses


def can_take(model: Any, x: torch.Tensor) -> bool:
    return len(x) <= int(model.most)


def backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss.item()


def mean_over(model: nn.Module, count: int) -> None:
    for param in model.parameters():
        param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        dist.all_reduce(param.grad)
        param.grad /= count


@exercise.variant
def loss_times_zero(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        try:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            (0 * model(x[:1]).sum()).backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        optimizer.step()
    dist.barrier()
    return losses


exercise.variant_edit("zeros-before-the-step", {"optimizer.zero_grad()":
    "for param in model.parameters():\n    param.grad = torch.zeros_like(param)",
    ZEROS: "optimizer.zero_grad(set_to_none=False)"})
