"""What the exercises of lesson 05 stand on: a bucket of parameters, as in the lesson's notebook. Names:

bucket.params        some parameters, whose gradients travel together: views of flat_param
bucket.numels        their numbers of elements
bucket.flat_param    [padded_numel] the parameters one after the other, with zeros behind the last
bucket.param_shard   [shard_numel] this rank's part of flat_param: what the optimizer updates. Its `.grad` is the
                     grad shard: averaged, of every backward since it was set to None
bucket.flat_grad     [padded_numel] this rank's gradients, from the first of them until they are sent; else None
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class Bucket:
    """Parameters whose gradients travel together. This rank owns one shard of them."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.params, self.numels = params, [param.numel() for param in params]
        flat = torch.cat([param.detach().flatten() for param in params])
        self.flat_param = F.pad(flat, (0, -len(flat) % world_size))
        for param, piece in zip(params, self.pieces(self.flat_param), strict=True):
            param.data = piece.view_as(param)
        self.param_shard = nn.Parameter(self.flat_param.chunk(world_size)[rank])
        self.flat_grad: Tensor | None = None

    def pieces(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Each parameter's part of `flat`, [padded_numel]; flat itself."""
        pieces: tuple[Tensor, ...] = flat[: sum(self.numels)].split(self.numels)
        return pieces

    def add(self, number: int, grad: Tensor) -> None:
        """Add the gradient of `params[number]` to its place in `flat_grad`."""
        if self.flat_grad is None:
            self.flat_grad = torch.zeros_like(self.flat_param)
        self.pieces(self.flat_grad)[number].add_(grad.flatten())
