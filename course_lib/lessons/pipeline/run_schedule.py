"""Micro-batches through a pipeline, in the order of a schedule."""

import random
from collections.abc import Iterator
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Finding, Row, Solution, Trial, draw_world_size, lets_go, normal
from ...meter import mark
from .data import NO_GRADIENT_OF_THE_INPUT, STARTS_FROM_ONES, a_part, gradients
from .one_forward_one_backward import one_forward_one_backward

LAST = "when its last forward begins"
KEEPS_INPUTS = "if it then keeps most inputs"
MANY = 16
ROOM = 33 * 4 * 2 * 4
"""Bytes of 33 activations in the case with many micro-batches. All ranks but the first have then gone back through
at least 13. Who keeps an input, an output and a gradient of each takes 39 more than the reference. Who keeps what
was sent takes 26, and may do so: a send must not lose its tensor. Inputs and their gradients are only 28, so inputs are
counted as well."""


def draw(rng: random.Random, number: int) -> Case:
    """Draw few micro-batches; but many in draw 4, where it shows who keeps all of them."""
    world_size, width, seed = draw_world_size(rng, number), rng.randint(2, 4), rng.getrandbits(31)
    count = (3, 4, 5)[number % 3]
    if number == 4:
        world_size, width, count = 3, 4, MANY

    def args(rank: int) -> Any:
        xs, targets = normal(2, count, 2, width, seed=seed)
        schedule = one_forward_one_backward(rank, world_size, count)
        return width, seed, schedule, list(xs), list(targets)

    return Case(world_size=world_size, args=args, what=f"{count} micro-batches")


def trained(solution: Solution, width: int, seed: int, schedule: Any, xs: Any, targets: Any) -> Any:
    part, count, inputs = a_part(width, seed), len(xs), list[ref[torch.Tensor]]()

    def before_forward(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        inputs.extend(map(ref, args))
        if len(inputs) == count:
            mark(LAST)
            kept = {id(x()) for x in inputs} - {id(x) for x in [None, *xs]}  # `xs` may be used as buffers
            if len(kept) > MANY // 2:
                mark(KEEPS_INPUTS)

    hook = part.register_forward_pre_hook(before_forward)
    loss = solution(part, schedule, xs, targets)
    hook.remove()
    return {"loss": loss, "gradients": gradients(part)}


def lets_go_of_inputs(trial: Trial) -> Iterator[Finding]:
    """Require that a rank does not keep the inputs of most micro-batches."""
    keeps = [rank for rank, report in enumerate(trial.yours.memory) if KEEPS_INPUTS in report.marks]
    if keeps:
        yield Finding(
            observed=f"{trial.who(keeps)} still had over {MANY // 2} of {MANY} inputs before the last forward.",
            action="Look for what still refers to the input of a micro-batch after its backward: a dictionary, a list, "
            "or an output or a loss whose graph contains it.",
        )


def in_the_order_of_the_schedule(trial: Trial) -> Iterator[Finding]:
    """Require that each rank sends and receives in the reference's order."""
    expected, yours = ([_peers(calls) for calls in seen.calls] for seen in (trial.expected, trial.yours))
    wrong = [rank for rank in range(trial.world_size) if yours[rank] != expected[rank]]
    if wrong:
        rank = wrong[0]
        yield Finding(
            observed=f"rank {rank} did not send and receive in the order of its schedule.",
            action="Go through `schedule` in one loop, and do each forward and each backward when its turn comes.",
            table=tuple(Row(rank=r, expected=expected[r], yours=yours[r]) for r in range(trial.world_size)),
        )


def _peers(calls: Any) -> str:
    return ", ".join(f"{call.op} {call.root}" for call in calls if call.op in ("send", "recv"))


exercise = Exercise("pipeline.run_schedule", title="Run the schedule", draw=draw, trial=trained,
    asynchronous=True, measured=True, inputs_matter=False,
    rules=[in_the_order_of_the_schedule, lets_go(LAST, slack=ROOM), lets_go_of_inputs], task="""
    Take all micro-batches through the pipeline, in the order of this rank's `schedule`. Each parameter then has the
    gradient of the mean of the micro-batches' losses. The last rank returns this mean, the others None. Ranks send to
    each other at the same time, so send with `dist.isend`, and wait for all sends at the end. After the backward of a
    micro-batch, keep neither its input nor its output: the check measures the memory with 16 micro-batches.
    """, hints="""
    Your `one_batch` does a forward and a backward at once. Here other actions come between them. What must a rank
    remember of a micro-batch from its forward to its backward?

    Its input (for `x.grad`) and its output (for `y.backward`). Two dictionaries, with the number of the micro-batch as
    the key; `pop` also frees them.

    Gradients add up over backwards by themselves. So divide each loss by the number of micro-batches.

    ```python
    for kind, n in schedule:
        if kind == "forward":
            ...
            arrived[n], computed[n] = x, y
        else:
            x, y = arrived.pop(n), computed.pop(n)
            ...
    ```
    """, explanation="""
    The order is data, and the loop does not know which schedule it runs: the same engine runs GPipe, 1F1B and, with
    several parts a rank, the interleaved schedule. `pop` frees the activations at the moment that the schedule meant.
    The messages of two neighbours cross, hence `isend`: with `send` each would wait for the other.
    """)


@exercise
def run_schedule(
    part: nn.Module, schedule: list[tuple[str, int]], xs: list[torch.Tensor], targets: list[torch.Tensor]
) -> torch.Tensor | None:
    """Train this rank's part on all micro-batches, and return the mean loss on the last rank (None elsewhere).

    `xs[n]` [batch, width] is the input of micro-batch n on rank 0, and `targets[n]` its target for
    `F.mse_loss` on the last rank. Every part maps [batch, width] to the same shape.
    After the backward of a micro-batch, nothing keeps its input and its output.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    arrived, computed, sends, losses = {}, {}, [], []
    for kind, n in schedule:
        if kind == "forward":
            x = xs[n]
            if rank > 0:
                x = torch.empty_like(x)
                dist.recv(x, src=rank - 1)
                x.requires_grad_()
            y = part(x)
            if rank == last:
                y = F.mse_loss(y, targets[n]) / len(xs)
                losses.append(y.detach())
            else:
                sends.append(dist.isend(y.detach(), dst=rank + 1))
            arrived[n], computed[n] = x, y
        else:
            x, y = arrived.pop(n), computed.pop(n)
            grad = None
            if rank < last:
                grad = torch.empty_like(y)
                dist.recv(grad, src=rank + 1)
            y.backward(grad)
            if rank > 0:
                sends.append(dist.isend(x.grad, dst=rank - 1))
    for work in sends:
        work.wait()
    return sum(losses) if rank == last else None


exercise.edit("sum-of-the-losses", {"F.mse_loss(y, targets[n]) / len(xs)": "F.mse_loss(y, targets[n])"}, """
    You take each micro-batch's loss whole, so gradients add up to those of the sum of the losses, not of their mean.
    Next: make each loss its part of the mean before its backward.
    """)

exercise.edit("mean-of-the-value-only", {"F.mse_loss(y, targets[n]) / len(xs)": "F.mse_loss(y, targets[n])",
    "sum(losses)": "sum(losses) / len(losses)"}, """
    The loss that you return is the mean, but the gradients are those of the sum: you divided after backward.
    Next: divide each loss before its backward.
    """)

exercise.edit("sum-returned", {"losses.append(y.detach())": "losses.append(y.detach() * len(xs))"}, """
    You return the sum of the losses, where their mean is asked for. Next: divide it by the number of micro-batches.
    """)

exercise.edit("sends-that-wait", {
    "sends.append(dist.isend(y.detach(), dst=rank + 1))": "dist.send(y.detach(), dst=rank + 1)",
    "sends.append(dist.isend(x.grad, dst=rank - 1))": "dist.send(x.grad, dst=rank - 1)",
    }, """
    Two neighbours send to each other at the same time, one an activation and one a gradient, and each waits at once
    until its message is received: a deadlock. Next: use `dist.isend`, and wait for all sends only at the end.
    """)

exercise.edit("no-wait", {"for work in sends:\nwork.wait()\n": ""}, """
    You do not wait for all of your sends: the tensors may still be on their way when you return.
    Next: keep what each `isend` returns, and call `wait()` on all of them at the end.
    """)

exercise.edit("newest-first", {"arrived.pop(n), computed.pop(n)": "arrived.popitem()[1], computed.popitem()[1]"}, """
    Your backward takes the newest micro-batch. The gradient that arrives belongs to the oldest: micro-batch n of the
    schedule. Next: look up input and output by the number of the micro-batch.
    """)

exercise.edit("clears-gradients", {"y.backward(grad)": "part.zero_grad()\ny.backward(grad)"}, """
    You clear the gradients before each backward, so only the last micro-batch counts. Gradients of micro-batches add up
    to the gradient of the batch. Next: do not clear them within a step.
    """)

LAST_ONLY = """
    You return the loss of the last micro-batch only. Next: add up the losses of all micro-batches, each as its part of
    the mean.
    """
exercise.edit("last-micro-batch-only", {"sum(losses) if": "losses[-1] if"}, LAST_ONLY)
exercise.edit("last-micro-batch-undivided", {"sum(losses) if": "losses[-1] * len(xs) if"}, LAST_ONLY)

exercise.edit("no-gradient-of-the-input", {"\nx.requires_grad_()": ""}, NO_GRADIENT_OF_THE_INPUT)

exercise.edit("one-buffer", {"{}, {}, [], []\n": "{}, {}, [], []\nbuffer = torch.empty_like(xs[0])\n",
    "x = torch.empty_like(x)": "x = buffer.detach()"}, """
    You receive every micro-batch in the same buffer. A later micro-batch overwrites the input of an earlier one, and
    the backward of the earlier one still needs it. Next: make a new tensor for each `recv`.
    """)

exercise.edit("own-order", {"in schedule": "in sorted(schedule, key=lambda action: action[0] < \"c\")"}, """
    You take all micro-batches forward before the first backward, whatever the schedule says. The results are the same,
    but all activations are kept at once. Next: follow `schedule`.
    """)

exercise.edit("keeps-every-micro-batch", {"arrived.pop(n), computed.pop(n)": "arrived[n], computed[n]"}, """
    The results are right. But you keep the input and the output of each micro-batch after its backward, so memory grows
    with the number of micro-batches, whatever the schedule. Next: remove both from where you keep them when their
    backward comes.
    """)

exercise.edit("losses-with-their-graph", {"losses.append(y.detach())": "losses.append(y)"}, """
    The results are right. But the last rank keeps each micro-batch's loss with its graph, and a graph contains the
    micro-batch's input, so memory grows with the number of micro-batches.
    Next: keep only the number, which needs no graph.""")

exercise.edit("starts-from-ones", {"y.backward(grad)": "y.sum().backward()"}, STARTS_FROM_ONES)

exercise.variant_edit("keeps-what-it-sends", {
    "sends.append(dist.isend(y.detach(), dst=rank + 1))": "sends.append((dist.isend(y.detach(), dst=rank + 1), y.data)"
    ")",
    "sends.append(dist.isend(x.grad, dst=rank - 1))": "sends.append((dist.isend(x.grad, dst=rank - 1), x.grad))",
    "for work in sends:": "for work, _ in sends:"})

exercise.variant_edit("scales-the-gradient", {"F.mse_loss(y, targets[n]) / len(xs)": "F.mse_loss(y, targets[n])",
    "grad = None": "grad = torch.tensor(1 / len(xs)) if rank == last else None",
    "sum(losses)": "sum(losses) / len(xs)"})


@exercise.variant
def one_dictionary(
    part: nn.Module, schedule: list[tuple[str, int]], xs: list[torch.Tensor], targets: list[torch.Tensor]
) -> torch.Tensor | None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    works: list[Any] = []
    total = torch.zeros(())
    for kind, n in schedule:
        if kind == "forward":
            x = xs[n].clone()
            if rank:
                dist.recv(x, rank - 1)
            y = part(x.requires_grad_())
            if rank + 1 < world_size:
                works.append(dist.isend(y.detach(), rank + 1))
            else:
                y = F.mse_loss(y, targets[n])
                total += y.detach()
            kept[n] = x, y
            continue
        x, y = kept.pop(n)
        grad = torch.tensor(1 / len(xs)) if rank + 1 == world_size else torch.empty_like(y)
        if rank + 1 < world_size:
            dist.recv(grad, rank + 1)
        torch.autograd.backward(y, grad)
        if rank:
            works.append(dist.isend(x.grad, rank - 1))
    for work in works:
        work.wait()
    return total / len(xs) if rank + 1 == world_size else None
