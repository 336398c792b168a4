"""What the cells of lesson 05 start from, under the names that the learner's functions have."""

# mypy: disable-error-code="arg-type,misc,no-untyped-def,operator"
# (annotations of inner functions are code: in a cell, which evaluates them, it would be other code than here)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from .bucket import Bucket


def hand_over(params: list[nn.Parameter], take: Callable[[int, torch.Tensor], None]) -> None:
    """From now on, call `take(number, grad)` as soon as backward has the gradient of `params[number]`.

    The gradient belongs to `take` from then on: neither the parameter nor this function keeps it.
    A frozen parameter has no gradient; the others keep their numbers.
    """
    raise NotImplementedError


def start_reduction(bucket: Bucket) -> Callable[[], None]:
    """Start to reduce-scatter `bucket.flat_grad`, without waiting; from now on the bucket has None.

    Where it is None already, this rank has no gradient, and brings zeros. Return a function that
    waits and then adds the average to `bucket.param_shard.grad`, which may be None.
    """
    raise NotImplementedError


def reduce_during_backward(buckets: list[Bucket]) -> Callable[[], None]:
    """From now on, move each gradient into its bucket, and start the buckets during backward, in order.

    A bucket is started as soon as it and those before it are complete, and when the one before it
    is finished: one is under way at a time. Return a function, to be called after each backward,
    that starts those which never became complete, and finishes all.
    """
    raise NotImplementedError


def clip_shards(shards: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale all gradients down, in place, so that their norm over all ranks is at most `max_norm`.

    `shards` are this rank's; a gradient may be None, on one rank or on all.
    Return the norm before, a tensor of one number, the same on every rank.
    """
    raise NotImplementedError


def make_adam_step(params: list[nn.Parameter], owners: list[int], lr: float) -> Callable[[], None]:
    """Return a function that makes a step of Adam in ZeRO-2: `owners[number]` updates `params[number]`.

    After a backward, a rank has the averaged gradients of the parameters that it owns, and no other.
    After the step, all ranks have all parameters and no gradient. Each step follows one backward.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in enumerate(params) if owners[n] == rank}
    steps = 0

    def on_gradient(number, param):
        if owners[number] == rank:
            dist.all_reduce(param.grad)
            param.grad /= world_size
        param.grad.zero_()  # free it

    for number, param in enumerate(params):
        param.register_post_accumulate_grad_hook(partial(on_gradient, number))

    def step():
        for number, (mean, square) in moments.items():
            param = params[number]
            mean.lerp_(param.grad, 1 - 0.9)
            square.lerp_(param.grad**2, 1 - 0.999)
            param -= lr * mean / (1 - 0.9**steps) / ((square / (1 - 0.999**steps)).sqrt() + 1e-8)
            param.grad = None
        for param, owner in zip(params, owners, strict=True):
            dist.broadcast(param.detach(), src=owner)

    return step
