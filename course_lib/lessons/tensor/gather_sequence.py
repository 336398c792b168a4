"""Into the layer, if each rank has a part of the sequence: all-gather in forward, reduce-scatter in backward."""

# (the functions inside have no annotations, because a notebook would evaluate them)

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal, only_calls, sends_no_more
from .data import output_and_gradients


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, part = draw_world_size(rng, number), rng.getrandbits(32), rng.randint(1, 2)
    width, length = 2 * world_size, part * world_size
    return Case(
        world_size=world_size,
        args=lambda rank: (normal(part, width, seed=seed + rank), normal(length, width, seed=seed + 10 + rank)),
        what=f"a tensor of shape {[part, width]} on each",
    )


def of_a_square(solution: Solution, x: Tensor, slopes: Tensor) -> Any:
    """Return the output of a solution whose input is the square of `x`, and the gradient of `x`."""
    return output_and_gradients(solution(x.requires_grad_().square()), slopes, x=x)


exercise = Exercise("tensor.gather_sequence", title="Gather the sequence", draw=draw, trial=of_a_square,
    case_count=4, inputs_matter=False, rules=[
        only_calls("all_gather", "reduce_scatter"), at_most("all_gather", 1), at_most("reduce_scatter", 1),
        sends_no_more("an all-gather in forward, and a reduce-scatter in backward")], task="""
    Under sequence parallel each rank has a part of the sequence, and a tensor-parallel layer needs all of it. Write the
    function that takes the place of `copy`. Forward: return all ranks' parts, one after the other in the order of
    ranks, with one all-gather. Backward: each rank has computed a gradient of the whole sequence, from its own part of
    the layer. With one reduce-scatter, sum these gradients over ranks, and return this rank's part of the sum.
    """, hints="""
    `copy` sums the gradient over ranks: an all-reduce. How much of this sum does a rank need now?

    Only its part of the sequence. The collective that sums and leaves each rank its part is half of an all-reduce.

    `dist.all_gather_single(output, input)` and `dist.reduce_scatter_single(output, input)` join and cut along the first
    dimension. Make the outputs with `x.new_empty(...)`. Collectives need contiguous tensors: `.contiguous()`.

    ```python
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            whole = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
            ...
            return whole

        @staticmethod
        def backward(ctx, grad):
            mine = grad.new_empty(...)
            ...
            return mine

    return Gather.apply(x)
    ```
    """, explanation="""
    An all-reduce is a reduce-scatter and an all-gather. `copy` and `all_reduce` make one all-reduce in each pass. With
    sequence parallel, each becomes its two halves, one at the exit of a layer and one at the entry of the next, so the
    bytes are the same. Between the halves, a rank has 1/N of each activation. ZeRO does this to gradients and
    parameters; here it is done to activations (Korthikanti et al. 2022).
    """)


@exercise
def gather_sequence(x: torch.Tensor) -> torch.Tensor:
    """Return all ranks' parts of the sequence, [length, width], of this rank's part, [length / N, width].

    Backward sums the ranks' gradients, and gives each rank its part of the sum. Use one all-gather
    and one reduce-scatter.
    """

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            whole = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
            dist.all_gather_single(whole, x.contiguous())
            return whole

        @staticmethod
        def backward(ctx, grad):
            mine = grad.new_empty(len(grad) // dist.get_world_size(), *grad.shape[1:])
            dist.reduce_scatter_single(mine, grad.contiguous())
            return mine

    return Gather.apply(x)


SCATTERED = "dist.reduce_scatter_single(mine, grad.contiguous())\n"
MY_PART = "grad.chunk(dist.get_world_size())[dist.get_rank()]"

exercise.edit("no-sum-in-backward", {SCATTERED: f"mine = {MY_PART}\n"}, """
    You cut this rank's gradient, and do not sum over ranks. The other ranks have computed with this part of the
    sequence, too. Next: reduce-scatter the gradients: it sums, and leaves each rank its part.
    """)

exercise.edit("all-reduce-in-backward", {SCATTERED:
    f"grad = grad.clone()\ndist.all_reduce(grad)\nmine = {MY_PART}\n"}, """
    The gradient is right. You sum the gradient of the whole sequence on every rank and throw most of it away, which
    sends twice as much as needed. Next: use a reduce-scatter.
    """)

exercise.edit("average", {"return mine": "return mine / dist.get_world_size()"}, """
    You average the gradients. Each comes from a part of one layer, and the gradients of parts add up.
    Next: leave out the division.
    """)

exercise.edit("outside-autograd", {"class Gather": "whole = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])\n"
    "dist.all_gather_single(whole, x.detach())\nreturn whole\n\nclass Gather"}, """
    The sequence is right, but it has no history: autograd does not see the all-gather, so nothing reaches `x` in
    backward. Next: gather in the `forward` of an autograd function, and write its `backward`.
    """)

exercise.edit("along-the-width", {"return whole": "return torch.cat(whole.chunk(dist.get_world_size()), dim=1)"}, """
    You join the parts along the width. Each rank has different tokens, with all of their elements.
    Next: join along the first dimension.
    """)

exercise.edit("whole-gradient", {SCATTERED: "mine = grad.clone()\ndist.all_reduce(mine)\n"}, """
    Your `backward` returns the gradient of the whole sequence, and `x` is one part of it. Next: return this rank's part
    of the sum.
    """)

exercise.edit("own-first-part", {SCATTERED: "mine = grad[: len(mine)].clone()\n"}, """
    You cut off the first part on every rank, and do not sum over ranks. Next: a reduce-scatter sums, and leaves each
    rank its own part.
    """)

exercise.edit("gradient-of-the-first-part", {SCATTERED: "total = grad.clone()\ndist.all_reduce(total)\n"
    "mine = total[: len(mine)].clone()\n"}, """
    Every rank returns the gradient of the first part of the sequence. Next: use a reduce-scatter, which gives rank r
    the r-th part.
    """)

exercise.edit("gathers-the-gradients", {SCATTERED: "parts = [torch.empty_like(grad) for _ in "
    "range(dist.get_world_size())]\ndist.all_gather(parts, grad.contiguous())\n"
    "mine = sum(part.chunk(len(parts))[dist.get_rank()] for part in parts)\n"}, """
    The gradient is right. You bring the whole gradient of every rank to every rank, which sends N times as much as
    needed. Next: use a reduce-scatter, which adds on the way.
    """)

exercise.edit("last-part-first", {"return whole": "return torch.cat(whole.chunk(dist.get_world_size())[::-1])"}, """
    The parts are in the reverse order. Next: rank 0's part comes first; `all_gather_single` puts the parts in the order
    of ranks.
    """)

exercise.variant_edit("in-lists", {
    "whole = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])\n"
    "dist.all_gather_single(whole, x.contiguous())\nreturn whole":
    "parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]\ndist.all_gather(parts, x.contiguous())\n"
    "return torch.cat(parts)",
    "dist.reduce_scatter_single(mine, grad.contiguous())":
    "dist.reduce_scatter(mine, list(grad.contiguous().chunk(dist.get_world_size())))"})

exercise.variant_edit("asynchronous", {
    "dist.all_gather_single(whole, x.contiguous())": "dist.all_gather_single(whole, x.clone(), async_op=True).wait()",
    "grad.new_empty(len(grad) // dist.get_world_size(), *grad.shape[1:])":
    "torch.empty_like(grad.chunk(dist.get_world_size())[0])"})
