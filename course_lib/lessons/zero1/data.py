"""Shared parts of lesson 04's exercises: parameters, gradients, optimizers, and a limit on the bytes sent."""

import random
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from .partition import partition

OPTIMIZERS: Sequence[tuple[str, Callable[..., Optimizer]]] = (
    # With the first, the size of a step shows the size of the gradient; with the others, hardly.
    ("SGD with momentum", partial(SGD, lr=0.1, momentum=0.9)),
    ("Adam", partial(Adam, lr=0.1)),
    ("AdamW", partial(AdamW, lr=0.1, weight_decay=0.1)),
)

Shapes = Sequence[tuple[int, ...]]


def draw_shapes(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Return shapes of `count` parameters, weights and biases, all of different sizes."""
    numels = rng.sample(range(2, 9), count)
    return [(numel, 3) if number % 2 == 0 else (numel,) for number, numel in enumerate(numels)]


def parameters(shapes: Shapes, seed: int) -> list[nn.Parameter]:
    """Return a parameter of each shape, equal on every rank."""
    return [nn.Parameter(values) for values in _normal(shapes, seed)]


def gradients(shapes: Shapes, steps: int, seed: int) -> list[list[torch.Tensor]]:
    """Return, for each step, a gradient for each parameter."""
    return [_normal(shapes, seed + 1000 * (step + 1)) for step in range(steps)]


def give_gradients(params: Sequence[nn.Parameter], grads: Sequence[torch.Tensor | None]) -> None:
    """Give each parameter a copy of its gradient."""
    for param, grad in zip(params, grads, strict=True):
        param.grad = None if grad is None else grad.clone()


def shuffled_parts(rng: random.Random, shapes: Shapes, world_size: int) -> list[list[int]]:
    """Return an even partition in which ranks are shuffled, and so is each part, so that no rank can guess its part."""
    parts = partition([torch.Size(shape).numel() for shape in shapes], world_size)
    rng.shuffle(parts)
    return [rng.sample(part, len(part)) for part in parts]


def _normal(shapes: Shapes, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]
