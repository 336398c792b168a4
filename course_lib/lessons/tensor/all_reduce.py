"""Out of a tensor-parallel layer: a sum over ranks in forward, nothing in backward."""

# (the functions inside have no annotations, because a notebook would evaluate them)

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal, only_calls
from .data import output_and_gradients


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, shape = draw_world_size(rng, number), rng.getrandbits(32), (2, rng.randint(2, 4))
    return Case(
        world_size=world_size,
        args=lambda rank: (normal(*shape, seed=seed + 1 + rank), normal(*shape, seed=seed)),
        what=f"a summand of shape {list(shape)} on each",
    )


def of_an_exponential(solution: Solution, x: Tensor, slopes: Tensor) -> Any:
    """Return the output and the gradient of `x`. The summand is `x.exp()`, which autograd keeps for backward."""
    x.requires_grad_()
    summand = x.exp()
    before = summand.detach().clone()
    found = output_and_gradients(solution(summand), slopes, x=x)
    return found | {"the input is unchanged": torch.equal(before, summand)} if isinstance(found, dict) else found


exercise = Exercise("tensor.all_reduce", title="Out of the layer", draw=draw, trial=of_an_exponential, case_count=4,
    inputs_matter=False, rules=[only_calls("all_reduce"), at_most("all_reduce", 1)], task="""
    Write the function at the other end of the layer, as an autograd function. Each rank has a summand `x`. Return the
    sum over ranks, on every rank, with one all-reduce, and leave `x` as it is. All ranks then compute the same loss
    from it, so in backward each rank already has the gradient of the sum: return it as the gradient of the summand.
    """, hints="""
    y = a + b. What is the gradient of a, if the gradient of y is g?

    The gradient of a sum goes to each summand unchanged. Every rank computes the same g, from the same sum, so nothing
    has to be sent.

    `class AllReduce(torch.autograd.Function)` with two static methods, `forward(ctx, x)` and `backward(ctx, grad)`;
    call it with `AllReduce.apply(x)`. `dist.all_reduce` writes into its tensor.

    ```python
    class AllReduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            total = ...         # a copy
            dist.all_reduce(...)
            return total

        @staticmethod
        def backward(ctx, grad):
            return ...

    return AllReduce.apply(x)
    ```
    """, explanation="""
    This is g of Megatron: all-reduce in forward, identity in backward. Every rank computes the same loss, and it counts
    once. torch's `torch.distributed.nn.functional.all_reduce` also reduces in backward: it takes the loss as the sum of
    what all ranks compute, and here this would multiply every gradient by N. Autograd does not see `dist.all_reduce`:
    it differentiates the copy, as if the copy were the result. For this function that happens to be right, but for
    `copy` it would not be. An all-reduce of the input itself overwrites what earlier operations keep for backward.
    """)


@exercise
def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' `x`. Backward hands the sum's gradient to each rank.

    Use one all-reduce, and no other call.
    """

    class AllReduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, grad):
            return grad

    return AllReduce.apply(x)


REDUCED = "total = x.clone()\ndist.all_reduce(total)\nreturn total"
BACKWARD_SUM = "grad = grad.clone()\ndist.all_reduce(grad)\nreturn grad"

exercise.edit("also-in-backward", {"return grad": BACKWARD_SUM}, """
    Your gradient is N times too large. Every rank computes the same loss, so each already has the gradient of the sum,
    and a sum of the gradients over ranks counts it N times.
    Next: return `grad` unchanged in `backward`.
    """)

exercise.edit("wrong-way-round", {REDUCED: "return x.view_as(x)", "return grad": BACKWARD_SUM}, """
    This is the function for the entrance of the layer: nothing in forward, a sum in backward.
    Next: move the all-reduce to `forward`, and return the gradient unchanged.
    """)

exercise.edit("no-all-reduce", {REDUCED: "return x.view_as(x)"}, """
    You return this rank's summand. Next: sum over ranks in `forward`, on a copy of `x`.
    """)

exercise.edit("in-place", {"class AllReduce": "dist.all_reduce(x)\nreturn x\n\nclass AllReduce"}, """
    You sum into `x` itself. Autograd does not see this write, and an earlier operation may need `x` in backward: the
    gradient of `exp` is computed with its output, which is now the sum. No error is raised.
    Next: sum into a copy.
    """)

exercise.edit("average", {"return total": "return total / dist.get_world_size()"}, """
    You average. The ranks have summands of one output, not several estimates of it. Next: return the sum itself.
    """)

exercise.edit("gradient-divided", {"return grad": "return grad / dist.get_world_size()"}, """
    You share the gradient out among the ranks. If y = a + b, both a and b get the whole gradient of y.
    Next: return `grad` unchanged.
    """)

exercise.edit("detached", {"class AllReduce": "total = x.detach().clone()\ndist.all_reduce(total)\nreturn total\n\n"
    "class AllReduce"}, """
    The sum is right. But backward stops here, and nothing below gets a gradient.
    Next: make the sum in the `forward` of an autograd function, from `x` itself, and return `grad` in its `backward`.
    """)


@exercise.variant
def unseen_by_autograd(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


exercise.variant_edit("x-plus-0", {"x.clone()": "x + 0", "return grad": "return grad.clone()"})
