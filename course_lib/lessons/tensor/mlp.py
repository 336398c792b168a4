"""A tensor-parallel MLP: column parallel, then row parallel, and one collective in each pass."""

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal, only_calls
from ...parallel import copy
from .all_reduce import all_reduce
from .data import linear, my_part, output_and_gradients


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, width = draw_world_size(rng, number), rng.getrandbits(32), rng.randint(2, 3)
    what = f"width {width}, {2 * world_size} features between the matrices"
    return Case(world_size=world_size, args=lambda rank: (seed, width, 2 * world_size), what=what)


def make_layers(seed: int, width: int, hidden: int) -> tuple[nn.Linear, nn.Linear]:
    """Return this rank's part of the two layers."""
    up = linear(my_part(normal(hidden, width, seed=seed), 0), my_part(normal(hidden, seed=seed + 1), 0))
    return up, linear(my_part(normal(width, hidden, seed=seed + 2), 1), normal(width, seed=seed + 3))


def one_step(solution: Solution, seed: int, width: int, hidden: int) -> Any:
    """Return the output of an MLP, and its gradients."""
    up, down = make_layers(seed, width, hidden)
    x = normal(3, width, seed=seed + 4).requires_grad_()
    leaves = {"x": x, "up_weight": up.weight, "up_bias": up.bias, "down_weight": down.weight, "down_bias": down.bias}
    return output_and_gradients(solution(x, up, down), normal(3, width, seed=seed + 5), **leaves)


exercise = Exercise("tensor.mlp", title="A tensor-parallel MLP", draw=draw, trial=one_step, case_count=4,
    rules=[only_calls("all_reduce"), at_most("all_reduce", 2)], task="""
    One process computes `down(F.gelu(up(x)))`. Now each rank has its part of the features between the matrices: of `up`
    it has output features, of `down` the same features as input. Return the output of the whole MLP, on every rank,
    with all gradients equal to those of one process. Use `copy` and your `all_reduce`: two all-reduces, one in forward
    and one in backward.
    """, hints="""
    Where does one value on every rank become a different value on each? Where do these become one again?

    `copy` stands where the parallel part begins, and `all_reduce` where it ends. GELU works on each feature by itself,
    so it needs no other rank, if each rank has whole features.

    `up(...)` adds this rank's part of the bias. `down(...)` would add the whole bias on every rank: use
    `F.linear(features, down.weight)`, and add `down.bias` after the sum.

    ```python
    features = F.gelu(up(...))
    summand = F.linear(features, ...)
    return ... + ...
    ```
    """, explanation="""
    Two all-reduces of [tokens, width], one in forward and one in backward, and no gather of a weight: this is all that
    the MLP sends. GELU is not linear, so it needs complete features: gelu(a + b) is not gelu(a) + gelu(b). This is why
    the first matrix is cut by its output features. The gradient of `down.bias` is whole on every rank, because the bias
    is added where every rank has the same values.
    """)


@exercise
def mlp(x: torch.Tensor, up: nn.Linear, down: nn.Linear) -> torch.Tensor:
    """Return the output of the whole MLP, [tokens, width], on every rank.

    x: [tokens, width], the same on every rank.
    up: this rank's output features, with their bias.
    down: a weight for these features, [width, features / N]; the bias is whole.
    Use two all-reduces, one in forward and one in backward, and no other call.
    """
    features = F.gelu(up(copy(x)))
    summand = F.linear(features, down.weight)
    return all_reduce(summand) + down.bias


exercise.edit("no-sum-in-backward", {"copy(x)": "x"}, """
    The output is right. In backward, `x` gets only the gradient from this rank's features: nothing sums it over ranks,
    so the layers below train differently on each rank. Next: send `x` through `copy` before the first matrix.
    """)

exercise.edit("no-sum-in-forward", {"all_reduce(summand)": "summand"}, """
    Each rank returns a sum over its own features. Next: send the output of the second matrix through `all_reduce`.
    """)

exercise.edit("bias-on-every-rank", {"F.linear(features, down.weight)": "down(features)", " + down.bias": ""}, """
    `down(features)` adds the whole bias on every rank, and the sum contains it N times.
    Next: multiply by `down.weight` only, and add `down.bias` after the sum.
    """)

exercise.edit("bias-on-one-rank", {"summand = F.linear(features, down.weight)\nreturn all_reduce(summand) + down.bias":
    "bias = down.bias if torch.distributed.get_rank() == 0 else None\n"
    "return all_reduce(F.linear(features, down.weight, bias))"}, """
    The output is right. But only rank 0 adds the bias, so the bias gets a gradient only there, and after a step the
    ranks have different biases. Next: add `down.bias` on every rank, where all of them have the same values.
    """)

exercise.edit("bias-shared-out", {"F.linear(features, down.weight)":
    "F.linear(features, down.weight, down.bias / torch.distributed.get_world_size())", " + down.bias": ""}, """
    The output is right. Each rank adds 1/N of the bias before the sum, so the bias gets only 1/N of its gradient.
    Next: add `down.bias` on every rank, after the sum.
    """)

exercise.edit("gelu-at-the-end", {"F.gelu(up(copy(x)))": "up(copy(x))",
    "all_reduce(summand) + down.bias": "F.gelu(all_reduce(summand) + down.bias)"}, """
    GELU comes after the second matrix. Two matrices without GELU between them are only one linear map.
    Next: apply it to this rank's features, before the second matrix.
    """)

exercise.edit("gelu-at-the-start", {"F.gelu(up(copy(x)))": "up(F.gelu(copy(x)))"}, """
    GELU comes before the first matrix. Next: apply it to the output of `up`.
    """)

exercise.edit("functions-swapped", {"copy(x)": "all_reduce(x)", "all_reduce(summand)": "copy(summand)"}, """
    You sum the inputs, which are the same on all ranks, and do not sum the outputs.
    Next: swap `copy` and `all_reduce`: `copy` where the parallel part begins, `all_reduce` where it ends.
    """)

exercise.edit("all-reduce-at-both-ends", {"copy(x)": "all_reduce(x)"}, """
    You sum the input over ranks. It is the same on all of them, so it becomes N times too large.
    Next: begin with `copy`, which does nothing in forward.
    """)

exercise.edit("gathers-the-features", {"summand =": "parts = [torch.empty_like(features) for _ in "
    "range(dist.get_world_size())]\ndist.all_gather(parts, features.detach())\nsummand =",
    "features = F": "dist = torch.distributed\nfeatures = F"}, """
    The numbers are right. You gather the features of all ranks between the matrices, and this rank needs only its own.
    A collective of the widest activations is what the two cuts avoid.
    Next: multiply this rank's features by this rank's part of the second matrix.
    """)


@exercise.variant
def in_matrices(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    x = copy(x)
    features = F.gelu(x @ up.weight.t() + up.bias)
    return down.bias + all_reduce(features @ down.weight.t())


exercise.variant_edit("without-modules", {"up(copy(x))": "F.linear(copy(x), up.weight, up.bias)",
    "all_reduce(summand) + down.bias": "down.bias.expand_as(x) + all_reduce(summand)"})
