"""Out of the layer, if each rank has a part of the sequence: reduce-scatter in forward, all-gather in backward."""

# (the functions inside have no annotations, because a notebook would evaluate them)

import torch
import torch.distributed as dist

from ...exercises import Exercise, only_calls, sends_no_more
from .data import draw_sequence, of_a_square

exercise = Exercise("tensor.scatter_sequence", title="Scatter the sequence", draw=draw_sequence(whole_output=False),
    trial=of_a_square, case_count=4, inputs_matter=False, rules=[
        only_calls("all_gather", "reduce_scatter"),
        sends_no_more("a reduce-scatter in forward, and an all-gather in backward")], task="""
    Write the mirror of `gather_sequence`, which takes the place of `all_reduce` at the exit of a layer. Each rank has a
    summand `x` of the whole sequence. Return this rank's part of the sum over ranks, with one reduce-scatter. In
    backward each rank has the gradient of its own part, and its summand was a summand of every part: use one all-gather
    there.
    """, hints="""
    Which parts of the sum contain something of this rank's summand?

    All parts, so its gradient is the gradient of the whole sequence. Each rank has one part of it.

    `dist.reduce_scatter_single(output, input)` in forward, `dist.all_gather_single(output, input)` in backward.

    ```python
    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mine = x.new_empty(len(x) // ..., *x.shape[1:])
            ...
            return mine

        @staticmethod
        def backward(ctx, grad):
            whole = grad.new_empty(...)
            ...
            return whole

    return Scatter.apply(x)
    ```
    """, explanation="""
    The gradient of a sum goes to each summand, as in `all_reduce`. There every rank has it already; here each rank has
    one part, and an all-gather brings the others. The backward of each function is the forward of the other.
    """)


@exercise
def scatter_sequence(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's part, [length / N, width], of the sum of all ranks' `x`, [length, width].

    Backward joins the gradients of all parts.
    """

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mine = x.new_empty(len(x) // dist.get_world_size(), *x.shape[1:])
            dist.reduce_scatter_single(mine, x.contiguous())
            return mine

        @staticmethod
        def backward(ctx, grad):
            whole = grad.new_empty(dist.get_world_size() * len(grad), *grad.shape[1:])
            dist.all_gather_single(whole, grad.contiguous())
            return whole

    return Scatter.apply(x)


SUMMED = "dist.reduce_scatter_single(mine, x.contiguous())\n"
GATHERED = "dist.all_gather_single(whole, grad.contiguous())\n"

exercise.edit("only-cuts", {SUMMED: "mine = x.chunk(dist.get_world_size())[dist.get_rank()].clone()\n"}, """
    You return a part of this rank's summand. Next: sum over ranks as well: a reduce-scatter does both.
    """)

exercise.edit("zeros-for-the-others", {GATHERED:
    "whole.zero_()\nwhole.chunk(dist.get_world_size())[dist.get_rank()].copy_(grad)\n"}, """
    You put zeros where other ranks have the gradient. This rank's summand is in their parts of the sum, too, so it gets
    their gradients. Next: gather the gradients of all ranks in `backward`.
    """)

exercise.edit("all-reduce-in-forward", {SUMMED: "total = x.clone()\ndist.all_reduce(total)\n"
    "mine = total.chunk(dist.get_world_size())[dist.get_rank()].clone()\n"}, """
    The result is right. You sum the whole sequence on every rank and keep one part of it, which sends twice as much as
    needed in forward. Next: use a reduce-scatter.
    """)

exercise.edit("average", {"return mine": "return mine / dist.get_world_size()"}, """
    You average. The ranks have summands of one output. Next: leave out the division.
    """)

exercise.edit("gradient-repeated", {GATHERED: "whole = torch.cat([grad] * dist.get_world_size())\n"}, """
    You use this rank's gradient for all parts of the sequence. The other parts have gradients of their own, on their
    ranks. Next: gather the gradients of all ranks.
    """)

exercise.edit("gradient-divided", {"return whole": "return whole / dist.get_world_size()"}, """
    You divide the gradient by the number of ranks. If y = a + b, both a and b get the whole gradient of y.
    Next: leave out the division.
    """)

exercise.edit("outside-autograd", {"class Scatter":
    "mine = x.new_empty(len(x) // dist.get_world_size(), *x.shape[1:])\n"
    "dist.reduce_scatter_single(mine, x.detach())\nreturn mine\n\nclass Scatter"}, """
    The part is right, and it has no history: autograd does not see the reduce-scatter, so nothing reaches `x` in
    backward. Next: make it the `forward` of an autograd function, and write its `backward`.
    """)

exercise.edit("next-ranks-part", {SUMMED: "parts = list(x.contiguous().chunk(dist.get_world_size()))\n"
    "dist.reduce_scatter(mine, parts[1:] + parts[:1])\n"}, """
    Rank r returns the part of the next rank. Next: rank r keeps the r-th part of the sequence.
    """)

exercise.variant_edit("in-lists", {SUMMED:
    "dist.reduce_scatter(mine, list(x.contiguous().chunk(dist.get_world_size())))\n",
    GATHERED: "dist.all_gather(list(whole.chunk(dist.get_world_size())), grad.contiguous())\n"})

exercise.variant_edit("asynchronous", {SUMMED:
    "dist.reduce_scatter_single(mine, x.clone(), async_op=True).wait()\n",
    "grad.new_empty(dist.get_world_size() * len(grad), *grad.shape[1:])": "torch.cat([grad] * dist.get_world_size())"})
