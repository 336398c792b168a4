"""Shared parts of lesson 13's exercises: values for ranks, and the gradients that a solution leaves behind."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import Case, Solution, draw_world_size, normal


def my_part(x: Tensor, dim: int) -> Tensor:
    """Return a copy of this rank's part of `x` along `dim`."""
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone(memory_format=torch.contiguous_format)


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear layer with this weight and bias."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.clone())
    return made


def output_and_gradients(output: Any, slopes: Tensor, **leaves: Tensor) -> Any:
    """Return `output`, and the gradient of each of `leaves` when the loss is the sum of `output * slopes`."""
    if not isinstance(output, Tensor):
        return output
    if output.requires_grad and output.shape == slopes.shape:
        (output * slopes).sum().backward()
    gradients = {f"gradient of {name.replace('_', ' ')}": leaf.grad for name, leaf in leaves.items()}
    return {"output": output.detach(), **gradients}


def draw_sequence(*, whole_output: bool) -> Callable[[random.Random, int], Case]:
    """Return a `draw` with a tensor for each rank, and slopes for its output: from a part of a sequence to the whole
    sequence, or from the whole to a part."""

    def draw(rng: random.Random, number: int) -> Case:
        world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
        shapes = [(length, 2 * world_size) for part in (rng.randint(1, 2),) for length in (part, part * world_size)]
        ins, outs = shapes if whole_output else shapes[::-1]
        return Case(
            world_size=world_size,
            args=lambda rank: (normal(*ins, seed=seed + rank), normal(*outs, seed=seed + 10 + rank)),
            what=f"a tensor of shape {list(ins)} on each",
        )

    return draw


def of_a_square(solution: Solution, x: Tensor, slopes: Tensor) -> Any:
    """Return the output of a solution whose input is the square of `x`, and the gradient of `x`."""
    return output_and_gradients(solution(x.requires_grad_().square()), slopes, x=x)
