"""What the cells of lesson 02 start from, under the names that the learner's functions have."""

from __future__ import annotations

import torch
from torch import nn


def model_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of the model's "parameters", and of their "gradients" after a backward.

    A tensor that several layers share counts once. A frozen parameter gets no gradient.
    """
    raise NotImplementedError


def state_bytes(model: nn.Module, optimizer: str) -> int:
    """Return the bytes that an optimizer keeps for the model, once it has made a step.

    `optimizer` is "sgd", "momentum", "adam" or "adamw". Every parameter has a gradient, unless it
    is frozen. Adam and AdamW also count the steps, for each tensor, in a float32 of its own.
    """
    raise NotImplementedError


def training_bytes(psi: int, precision: str) -> dict[str, int]:
    """Return the bytes of each part of the model states, for psi parameters and Adam.

    The parts are "parameters", "gradients", "fp32 gradients", "master weights", "momentum" and
    "variance"; 0 for a part that there is not. `precision` is "fp32", "mixed", or
    "mixed_fp32_accumulation": mixed, with gradients summed in fp32 as well.
    """
    raise NotImplementedError


def copied_bytes(tensors: list[torch.Tensor]) -> int:
    """Return how many bytes of this rank's tensors are copies of what rank 0 holds.

    A tensor is a copy if all its values are those of rank 0's tensor at the same place in the
    list. Rank 0 holds the originals. On each rank the list has the same shapes and dtypes.
    """
    raise NotImplementedError


def rank_bytes(psi: int, precision: str, world_size: int, cut: list[str]) -> dict[str, int]:
    """Return the bytes of each part of the model states on the rank that holds most.

    Of the parts named in `cut`, the ranks share the psi elements among them as evenly as they can;
    of the others, every rank holds the whole. Parts and precisions are those of `training_bytes`.
    """
    raise NotImplementedError
