"""Into a tensor-parallel layer: nothing in forward, a sum over ranks in backward."""

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
        args=lambda rank: (normal(*shape, seed=seed), normal(*shape, seed=seed + 1 + rank)),
        what=f"a tensor of shape {list(shape)}",
    )


def with_a_second_path(solution: Solution, x: Tensor, slopes: Tensor) -> Any:
    """Return the output and the gradient of `x`, which is used by a second path, too: both get the same gradient."""
    x.requires_grad_()
    second = 10 * x  # first in forward, so last in backward
    output = solution(x)
    found = output_and_gradients(output + second if isinstance(output, Tensor) else output, slopes, x=x)
    return {"copy(x)": output} | found if isinstance(found, dict) else found


exercise = Exercise("tensor.copy", title="Into the layer", draw=draw, trial=with_a_second_path, case_count=4,
    inputs_matter=False, rules=[only_calls("all_reduce"), at_most("all_reduce", 1)], task="""
    Every rank has the same `x`, and computes a different part of the layer with it. Return `x` unchanged. In backward,
    each rank's gradient is the part of `x`'s gradient that comes from its own computation: sum these parts over the
    ranks, with one all-reduce. Complete the autograd function: `forward` computes, and `backward` gets the gradient of
    the output and returns the gradient of the input.
    """, hints="""
    In one process, `x` is used N times, once for each part. What does autograd do with the N gradients?

    It sums them. On N ranks autograd sees one use each, so the sum over ranks is yours. Forward has nothing to compute.

    `x.view_as(x)` returns a view, which autograd takes as a new tensor. `dist.all_reduce` writes into its tensor, and
    the gradient that arrives may be used for other tensors, too: reduce a copy.

    ```python
    def forward(ctx, x):
        return ...

    def backward(ctx, grad):
        total = ...            # a copy of grad
        dist.all_reduce(...)
        return ...
    ```
    """, explanation="""
    This is f of Megatron (Shoeybi et al. 2019, figure 3): identity in forward, all-reduce in backward. Without it every
    rank continues backward with its own part of the gradient. Shapes and forward are right,
    and the layers below train differently on each rank. Autograd passes one gradient tensor to several places, as after
    `a + b`; so an all-reduce in place would change the gradient of a different tensor.
    """)


@exercise
def copy(x: torch.Tensor) -> torch.Tensor:
    """Return `x`, which is the same on every rank. Backward sums its gradient over the ranks."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            total = grad.clone()
            dist.all_reduce(total)
            return total

    return Copy.apply(x)


REDUCED = "total = grad.clone()\ndist.all_reduce(total)\nreturn total"
exercise.start_edit({"return x.view_as(x)": "raise NotImplementedError", REDUCED: "raise NotImplementedError"})

exercise.edit("no-all-reduce", {REDUCED: "return grad"}, """
    Backward returns this rank's gradient as it is. It comes from this rank's part of the layer, and the parts of the
    other ranks are missing. Next: sum the gradient over ranks in `backward`.
    """)

exercise.edit("also-in-forward", {"return x.view_as(x)": "x = x.clone()\ndist.all_reduce(x)\nreturn x"}, """
    You sum over ranks in forward, too. All ranks have the same `x`, so the output is N times too large.
    Next: return `x` unchanged in `forward`.
    """)

exercise.edit("wrong-way-round", {"return x.view_as(x)": "x = x.clone()\ndist.all_reduce(x)\nreturn x",
    REDUCED: "return grad"}, """
    You sum in forward, and pass the gradient on unchanged. This function belongs at the other end of the layer, where
    the ranks' outputs are added. Next: swap the two: nothing in `forward`, the all-reduce in `backward`.
    """)

exercise.edit("average", {"return total": "return total / dist.get_world_size()"}, """
    You average the gradients. Under data parallel the loss is a mean over ranks; here each rank computes a part of one
    loss, and the gradients of parts add up. Next: leave out the division.
    """)

exercise.edit("in-place", {"total = grad.clone()": "total = grad"}, """
    You reduce the gradient that autograd gave you, in place. The same tensor is also the gradient of something else:
    here `x` goes two ways, and the second way gets your sum. Next: reduce a copy: `grad.clone()`.
    """)

exercise.edit("no-gradient-returned", {"\nreturn total": ""}, """
    `backward` returns nothing, and autograd reads None as no gradient. So `x` gets no gradient from this layer.
    Next: return the sum.
    """)

exercise.edit("on-rank-0", {"dist.all_reduce(total)": "dist.reduce(total, dst=0)"}, """
    Only rank 0 gets the sum. Every rank has a copy of the layers below, and each needs the whole gradient.
    Next: use `dist.all_reduce`.
    """)


@exercise.variant
def with_a_hook(x: Tensor) -> Tensor:
    def reduce(grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total

    view = x.view_as(x)
    view.register_hook(reduce)
    return view


exercise.variant_edit("x-itself", {"x.view_as(x)": "x", "total = grad.clone()": "total = grad + 0"})
