"""One batch through all ranks, forward and back."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, draw_world_size, normal
from .data import NO_GRADIENT_OF_THE_INPUT, STARTS_FROM_ONES, a_part, gradients


def draw(rng: random.Random, number: int) -> Case:
    world_size, batch, width = draw_world_size(rng, number), rng.randint(1, 3), rng.randint(5, 6)
    seed = rng.getrandbits(31)  # the loss is a mean over more elements than there are ranks

    def args(rank: int) -> Any:
        x, target = normal(2, batch, width, seed=seed)
        # Only rank 0 has the input, and only the last rank the target.
        x = x if rank == 0 else torch.full_like(x, float("nan"))
        return width, seed, x, target if rank == world_size - 1 else torch.full_like(x, float("nan"))

    return Case(world_size=world_size, args=args, what=f"batch {batch}, width {width}")


def trained(solution: Solution, width: int, seed: int, x: torch.Tensor, target: torch.Tensor) -> Any:
    part = a_part(width, seed)
    loss = solution(part, x, target)
    return {"loss": loss, "gradients": gradients(part)}


exercise = Exercise("pipeline.one_batch", title="One batch through the ranks", draw=draw, trial=trained,
    asynchronous=True, inputs_matter=False, task="""
    Each rank has one part of a model. Take one batch through all parts and back: rank 0 starts from `x`, every rank
    sends its output to the next, and the last rank computes `F.mse_loss(output, target)`. Then the gradients come
    back: every rank gets the gradient of its output from the next rank, and sends the gradient of its input to the rank
    before it. Return the loss on the last rank, and None on the others.
    """, hints="""
    Autograd ends at the border of a rank. What does a rank have to hand to its neighbour so that the chain rule goes on
    there?

    What a rank receives is a new tensor without a history: a leaf. After `x.requires_grad_()`, backward puts into
    `x.grad` just what the rank before needs.

    `y.backward(grad)` starts from the gradient of `y`, instead of from a loss.

    ```python
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, src=rank - 1)
        x.requires_grad_()
    y = part(x)
    ```
    """, explanation="""
    The ranks together compute one backward, cut where the messages are: `y.backward(grad)` continues what `x.grad` of
    the next rank began. Per border, the activations travel once and their gradients once, [batch, width] each:
    parameters and their gradients never travel. And while one rank computes, all others wait, which is why a pipeline
    needs several micro-batches.
    """)


@exercise
def one_batch(part: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
    """Compute the gradients of this rank's part, and return the loss on the last rank (None elsewhere).

    `x` [batch, width] is the input on rank 0, and `target` the target on the last rank; elsewhere
    only their shapes count. Every part maps [batch, width] to the same shape.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, src=rank - 1)
        x.requires_grad_()
    y = part(x)
    if rank == last:
        loss = F.mse_loss(y, target)
        loss.backward()
    else:
        dist.send(y.detach(), dst=rank + 1)
        grad = torch.empty_like(y)
        dist.recv(grad, src=rank + 1)
        y.backward(grad)
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)
    return loss.detach() if rank == last else None


exercise.edit("no-gradient-of-the-input", {"\nx.requires_grad_()": ""}, NO_GRADIENT_OF_THE_INPUT)

exercise.edit("nothing-goes-back", {"if rank > 0:\n    dist.send(x.grad, dst=rank - 1)\n": ""}, """
    Your ranks do not send the gradient of their input back, so the ranks before them wait for it.
    Next: after backward, on every rank but 0, send `x.grad` to rank - 1.
    """)

exercise.edit("middle-sends-nothing-back", {"y.backward(grad)": "y.backward(grad)\nreturn None"}, """
    Your ranks between the first and the last return after backward, without sending the gradient of their input back,
    so the rank before waits for it. Next: let every rank but 0 send `x.grad` to rank - 1, not only the last.
    """)

exercise.edit("gradient-before-output", {"dist.send(y.detach(), dst=rank + 1)\n": "", "dist.recv(grad, src=rank + 1)":
    "dist.recv(grad, src=rank + 1)\ndist.send(y.detach(), dst=rank + 1)"}, """
    Your rank waits for the gradient of its output before it sends the output. The next rank cannot compute that
    gradient without the output: a deadlock. Next: send the output first.
    """)

exercise.edit("sends-its-input-on", {"dist.send(y.detach()": "dist.send(x.detach()"}, """
    Your rank passes its input on instead of its output, so the last rank computes with rank 0's `x`, and the parts
    between do not count. Next: send what your part has computed.
    """)

exercise.edit("sends-the-input-back", {"dist.send(x.grad, ": "dist.send(x.detach(), "}, """
    Your rank sends its input back instead of the input's gradient. The shapes are the same, so nothing complains.
    Next: send `x.grad`.
    """)

exercise.edit("starts-from-ones", {"y.backward(grad)": "y.sum().backward()"}, STARTS_FROM_ONES)

exercise.edit("a-loss-on-every-rank", {"y.backward(grad)": "F.mse_loss(y, target).backward()"}, """
    Your ranks before the last compute a loss of their own, with a target that they do not have. Only the last rank has
    a loss. Next: go back from the gradient that came from the next rank.
    """)

exercise.edit("rank-0-waits", {"if rank > 0:\n    x = torch": "if last > 0:\n    x = torch",
    "src=rank - 1": "src=(rank - 1) % (last + 1)"}, """
    Your rank 0 waits for an input from the last rank, and every rank waits for the one before it: a deadlock. Rank 0
    has its input. Next: receive only on ranks above 0.
    """)

exercise.edit("returns-on-every-rank", {"loss.detach() if rank == last else None":
    "loss.detach() if rank == last else y.detach()"}, """
    Your ranks before the last return their output. The task asks for None there.
    Next: return a value on the last rank only.
    """)

exercise.variant_edit("back-before-forward-is-sent", {"dist.send(y.detach(), dst=rank + 1)":
    "sent = dist.isend(y.detach(), dst=rank + 1)", "y.backward(grad)": "y.backward(grad)\nsent.wait()"})


@exercise.variant
def with_autograd_grad(part: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x = x.clone()
    if rank:
        dist.recv(x, rank - 1)
    y = part(x.requires_grad_())
    grad, loss = None, None
    if rank < last:
        sent: Any = dist.isend(y.detach(), rank + 1)
        grad = torch.empty_like(y)
        dist.recv(grad, rank + 1)
        sent.wait()
    else:
        y = loss = F.mse_loss(y, target)
    torch.autograd.backward(y, grad)
    if rank:
        dist.send(x.grad, rank - 1)
    return loss if loss is None else loss.detach()
