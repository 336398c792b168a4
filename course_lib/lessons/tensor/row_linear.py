"""A linear layer that is cut by its input features."""

import random

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ...exercises import Case, Exercise, at_most, draw_world_size, normal, only_calls
from .data import my_part


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
    ins, outs = world_size * rng.randint(2, 3), rng.randint(2, 4)

    def args(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = normal(3, ins, seed=seed), normal(outs, ins, seed=seed + 1)
        return my_part(x, 1), my_part(weight, 1), normal(outs, seed=seed + 2)

    return Case(world_size=world_size, args=args, what=f"{ins} input features, {outs} output features")


exercise = Exercise("tensor.row_linear", title="Cut the input features", draw=draw, case_count=4,
    rules=[only_calls("all_reduce"), at_most("all_reduce", 1)], task="""
    A column-parallel layer leaves each rank with a part of the features. The next layer takes these features as they
    are: this rank has its part of the input and the columns of the weight that belong to it. Return the output of the
    whole layer, on every rank, with one all-reduce. Backward comes later: here nothing requires a gradient.
    """, hints="""
    The output is a sum over all input features. This rank knows some of them. What can it compute?

    A sum over some input features is a summand of the output, of the output's full size. The bias is a summand as well,
    and the whole layer adds it once.

    `x @ weight.t()`, or `F.linear(x, weight)`, is this rank's summand. `dist.all_reduce` sums in place.

    ```python
    output = ...          # without the bias
    dist.all_reduce(...)
    return ...
    ```
    """, explanation="""
    Each rank computes a summand of every output element, so the ranks must sum: one all-reduce of the output, [batch,
    output features]. The bias is whole on every rank and is added after the sum. If each rank passed it to `F.linear`,
    it would be added N times. Column parallel followed by row parallel needs only this one collective in forward: the
    features between the two matrices stay on their rank.
    """)


@exercise
def row_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the output of a whole linear layer, [batch, output features], on every rank.

    x: [batch, input features / N], this rank's features of the input.
    weight: [output features, input features / N], the columns for these features.
    bias: [output features], the same on every rank.
    """
    output = F.linear(x, weight)
    dist.all_reduce(output)
    return output + bias


exercise.edit("bias-on-every-rank", {"F.linear(x, weight)": "F.linear(x, weight, bias)", " + bias": ""}, """
    Every rank adds the bias before the sum, so the output contains it once for each rank.
    Next: sum the products first, and add the bias after the all-reduce.
    """)

exercise.edit("no-all-reduce", {"dist.all_reduce(output)\n": ""}, """
    Each rank returns the sum over its own input features. Nothing adds up the ranks' summands, and the shapes are right
    all the same. Next: sum the outputs over ranks.
    """)

exercise.edit("average", {"dist.all_reduce(output)": "dist.all_reduce(output)\noutput /= dist.get_world_size()"}, """
    You average over ranks. The ranks have different summands of one output, not several estimates of it.
    Next: leave out the division.
    """)

exercise.edit("no-bias", {" + bias": ""}, """
    The sum over the input features is right, and the bias is missing. Next: add it once, after the all-reduce.
    """)

exercise.edit("only-rank-0", {"dist.all_reduce(output)": "dist.reduce(output, dst=0)"}, """
    Only rank 0 gets the sum. The next layer needs it on every rank. Next: use `dist.all_reduce`.
    """)

exercise.edit("sums-the-input", {"output = F.linear(x, weight)\ndist.all_reduce(output)":
    "x = x.clone()\ndist.all_reduce(x)\noutput = F.linear(x, weight)"}, """
    You sum the input over ranks. The ranks have different features, and adding feature 0 to feature 4 means nothing.
    Next: multiply first: the products are summands of the same output.
    """)

exercise.edit("gathers-the-summands", {"dist.all_reduce(output)":
    "parts = [torch.empty_like(output) for _ in range(dist.get_world_size())]\ndist.all_gather(parts, output)\n"
    "output = torch.stack(parts).sum(0)"}, """
    The result is right. You bring every rank's summand to every rank and add there: each rank holds N outputs, and
    sends about N/2 times as much as an all-reduce. Next: let the collective add: `dist.all_reduce(output)`.
    """)

exercise.edit("joins-the-summands", {"dist.all_reduce(output)":
    "parts = [torch.empty_like(output) for _ in range(dist.get_world_size())]\ndist.all_gather(parts, output)\n"
    "output = torch.cat(parts, dim=1)", " + bias": ""}, """
    You join the ranks' outputs side by side. This is right after a column-parallel layer, where each rank has
    different features. Here each rank has a summand of all features. Next: sum the outputs over ranks.
    """)

exercise.edit("gathers-the-layer", {"output = F.linear(x, weight)\ndist.all_reduce(output)":
    "size = range(dist.get_world_size())\nxs, weights = [torch.empty_like(x) for _ in size], "
    "[torch.empty_like(weight) for _ in size]\ndist.all_gather(xs, x)\ndist.all_gather(weights, weight)\n"
    "output = torch.cat(xs, 1) @ torch.cat(weights, 1).t()"}, """
    The result is right. You gather the whole input and the whole weight, and every rank does all of the work. That is
    ZeRO-3's way; under tensor parallel, weights never travel.
    Next: multiply what this rank has, and sum the outputs over ranks.
    """)


exercise.variant_edit("bias-on-one-rank", {"F.linear(x, weight)":
    "F.linear(x, weight, bias if dist.get_rank() == 0 else None)", " + bias": ""})


@exercise.variant
def bias_in_parts(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    output = torch.addmm(bias / dist.get_world_size(), x, weight.t())
    dist.all_reduce(output)
    return output
