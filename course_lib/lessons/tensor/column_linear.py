"""A linear layer that is cut by its output features."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import Case, Exercise, Solution, draw_world_size, dtype_name, lets_go, normal
from ...meter import mark
from .data import linear


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
    ins, outs = rng.randint(2, 4) + 10 * (number % 4 == 2), world_size * rng.randint(2, 3)
    dtype = torch.float64 if number % 4 == 1 else torch.float32

    def args(rank: int) -> tuple[Tensor, ...]:
        shapes = (outs, ins), (outs,), (2, ins)
        return tuple(normal(*shape, seed=seed + place, dtype=dtype) for place, shape in enumerate(shapes))

    what = f"{ins} input features, {outs} output features, {dtype_name(dtype)}"
    return Case(world_size=world_size, args=args, what=what)


CUT = "after the cut"


def shard_and_memory(solution: Solution, weight: Tensor, bias: Tensor, x: Tensor) -> Any:
    """Return this rank's layer, its output and gradients, and whether its parameters keep the memory of the whole."""
    torch.manual_seed(0)
    shard = solution(linear(weight, bias))
    mark(CUT)
    if not isinstance(shard, nn.Linear):
        return shard
    output = shard(x)
    output.square().sum().backward()
    params = dict(shard.named_parameters())
    return {
        **params,
        "in_features": shard.in_features,
        "out_features": shard.out_features,
        "output": output,
        "gradients": {name: param.grad for name, param in params.items()},
        "has memory of its own": {
            name: param.untyped_storage().nbytes() == param.nbytes for name, param in params.items()
        },
    }


exercise = Exercise("tensor.column_linear", title="Cut the output features", draw=draw, trial=shard_and_memory,
    case_count=4, measured=True, rules=[lets_go(CUT)], task="""
    Every rank has the same whole linear layer, with a bias. Return a linear layer with this rank's part of the output
    features: the first part on rank 0, the next on rank 1, and so on. The parts have equal sizes. The returned layer
    trains, has the dtype of the whole layer, does not keep the memory of it, and has its own `in_features` and
    `out_features`.
    """, hints="""
    Each output feature is a sum over all input features. Which numbers of the weight and of the bias does one output
    feature need?

    `nn.Linear` stores its weight as [output features, input features]. An output feature is a row of the weight and one
    element of the bias. The multiplication is `x @ weight.t()`, in which the row is a column. So this cut is called
    column parallel.

    `chunk(world_size)[rank]` cuts the first dimension. The result is a view, which keeps the memory of the whole
    tensor; `.clone()` has memory of its own. `nn.Parameter(...)` makes a parameter.

    ```python
    weight = whole.weight.detach().chunk(...)[...]
    shard = nn.Linear(whole.in_features, len(weight))
    shard.weight = ...
    shard.bias = ...
    return shard
    ```
    """, explanation="""
    An output feature does not depend on the others, so a rank needs nothing from its peers. The layer costs no
    communication in forward: each rank reads the whole input and computes its part of the output. A slice is a view:
    without the clone, each rank would still hold the whole matrix, and tensor parallel would save nothing.
    """)


@exercise
def column_linear(whole: nn.Linear) -> nn.Linear:
    """Return a linear layer with this rank's part of the output features of `whole`.

    `whole` is the same on every rank, and has a bias. The returned layer's `in_features` and `out_features` are
    those of its weight, and its dtype is that of `whole`.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    weight, bias = (param.detach().chunk(world_size)[rank] for param in (whole.weight, whole.bias))
    shard = nn.Linear(whole.in_features, len(weight))
    shard.weight = nn.Parameter(weight.clone())
    shard.bias = nn.Parameter(bias.clone())
    return shard


exercise.edit("view-of-the-whole", {"weight.clone()": "weight", "bias.clone()": "bias"}, """
    The shard is right, but it is a view of the whole tensor. A view keeps the memory of all features alive, so no rank
    saves a byte. Next: give the shard memory of its own.
    """)

exercise.edit("input-features", {"param.detach().chunk(world_size)[rank]":
    "param.detach().chunk(world_size, dim=-1)[rank]"}, """
    You cut the weight along its input features, dimension 1. The weight of `nn.Linear` is [output features, input
    features]. Next: cut dimension 0.
    """)

exercise.edit("whole-bias", {"bias.clone()": "whole.bias.detach().clone()"}, """
    You keep the whole bias, and this rank computes only a part of the output features.
    Next: cut the bias as you cut the weight.
    """)

exercise.edit("always-float32", {"shard.weight = nn.Parameter(weight.clone())\n"
    "shard.bias = nn.Parameter(bias.clone())": 'shard.load_state_dict({"weight": weight, "bias": bias})'}, """
    Your layer is float32, whatever the dtype of `whole` is. Next: give the layer the dtype of the weight.
    """)

exercise.edit("no-bias", {"len(weight))": "len(weight), bias=False)", "shard.bias = nn.Parameter(bias.clone())\n":
    ""}, """
    Your layer has no bias, and `whole` has one. Each output feature has one element of the bias.
    Next: give the layer this rank's part of the bias, too.
    """)

exercise.edit("every-nth-feature", {"param.detach().chunk(world_size)[rank]": "param.detach()[rank::world_size]"}, """
    The ranks take turns: rank 0 has the output features 0, N, 2N, and so on. The task asks for neighbouring features,
    so that joined in the order of ranks they are the whole output. Next: cut the weight into N blocks of rows.
    """)

exercise.edit("new-values", {"\nshard.weight = nn.Parameter(weight.clone())\nshard.bias = nn.Parameter(bias.clone())":
    ""}, """
    You made a layer of the right size, with new random values. Together, the ranks have to compute what `whole` does.
    Next: give the new layer this rank's part of the weight and of the bias.
    """)

exercise.edit("bias-forgotten", {"\nshard.bias = nn.Parameter(bias.clone())": ""}, """
    You cut the weight, but the bias is the new layer's own, with random values. Together, the ranks have to compute
    what `whole` does. Next: give the new layer this rank's part of the bias, too.
    """)

exercise.edit("frozen", {"weight.clone()": "weight.clone(), requires_grad=False",
    "bias.clone()": "bias.clone(), requires_grad=False"}, """
    The shard does not train: its parameters have no gradient after backward.
    Next: make parameters that require a gradient, as `nn.Parameter` does by itself.
    """)


exercise.edit("swapped", {"nn.Linear(whole.in_features, len(weight))": "nn.Linear(len(weight), whole.in_features)"}, """
    The weight and the bias are right, but `in_features` and `out_features` of the layer are swapped: `nn.Linear` takes
    the input features first, and stores the output features first. Next: swap the two arguments.
    """)


@exercise.variant
def cut_in_place(whole: nn.Linear) -> nn.Linear:
    features = whole.out_features // dist.get_world_size()
    begin = dist.get_rank() * features
    with torch.no_grad():
        whole.weight = nn.Parameter(whole.weight[begin : begin + features].clone())
        whole.bias = nn.Parameter(whole.bias[begin : begin + features].clone())
    whole.out_features = features
    return whole


exercise.variant_edit("copies-into-it", {"shard.weight = nn.Parameter(weight.clone())\n"
    "shard.bias = nn.Parameter(bias.clone())":
    'shard.to(weight.dtype).load_state_dict({"weight": weight, "bias": bias})'})
