"""What the cells of lesson 03 start from, under the names that the learner's functions have."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def broadcast_model(model: nn.Module) -> None:
    """Give every rank the parameters and buffers that `model` has on rank 0, in place."""
    raise NotImplementedError


def average_gradients(model: nn.Module) -> None:
    """Replace the gradient of each trainable parameter by its average over ranks, on every rank.

    A rank on which a trainable parameter has no gradient brings zeros for it, and gets the average as well.
    A frozen parameter has no gradient on any rank, and gets none.
    """
    raise NotImplementedError


def make_buckets(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Return `params`, the last one first, cut into buckets.

    A bucket is closed as soon as its parameters have `bucket_bytes` bytes or more together.
    """
    raise NotImplementedError


def start_averaging(bucket: list[nn.Parameter]) -> Callable[[], None]:
    """Start to average the gradients of `bucket` over ranks, in one all-reduce, without waiting for it.

    Return a function that waits for it and then puts the averages into the gradients.
    A parameter without a gradient on this rank brings zeros, and gets the average as well.
    """
    raise NotImplementedError


def average_during_backward(
    buckets: list[list[nn.Parameter]],
    should_sync: Callable[[], bool],
) -> Callable[[], None]:
    """From now on, average the gradients of `buckets` in every backward in which `should_sync()` is true.

    Each bucket is started as soon as it and those before it have all their gradients of that backward.
    Return a function, to be called after such a backward, that starts those which never came so far,
    and finishes all. In other backwards, gradients add up on their rank and nothing is sent.
    """
    raise NotImplementedError
