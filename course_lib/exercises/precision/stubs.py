"""What the cells of lesson 07 start from, under the names that the learner's functions have."""

from __future__ import annotations

import torch
from torch import nn


def sharded_step(
    flat_param: torch.Tensor,
    flat_grad: torch.Tensor,
    master: nn.Parameter,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Make a step of stage 1. `master` is this rank's shard of the parameters, in fp32.

    `flat_param`, which is to be updated in place, and `flat_grad`, this rank's gradient, are in
    bf16: [padded_numel], as long as all shards together. Gradients are averaged in fp32, and
    parameters travel in bf16. `optimizer` updates `master`, which has no gradient afterwards.
    """
    raise NotImplementedError


def unscale(shards: list[nn.Parameter], scale: float) -> bool:
    """Divide the gradients by `scale`, in place; return whether they are finite: all, on every rank.

    `shards` are this rank's; a gradient may be None. If any is not finite, nobody uses them any
    more, and it does not matter what becomes of them.
    """
    raise NotImplementedError


def recompute(
    block: nn.Module,
    x: torch.Tensor,
    random_state: torch.Tensor,
    grad_output: torch.Tensor,
) -> torch.Tensor | None:
    """Run `block(x)` again as it ran before, and go back through it from `grad_output`.

    Return the gradient of `x`; those of the block's parameters are added to their `.grad`. When it
    ran, `torch.get_rng_state()` gave `random_state`. What is drawn later is as if nothing were
    drawn here. Autograd is off when this is called.
    """
    raise NotImplementedError
