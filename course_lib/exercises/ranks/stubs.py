"""What the cells of lesson 01 start from, under the names that the learner's functions have."""

from __future__ import annotations

import torch
import torch.distributed as dist


def hello() -> str:
    """Return this rank's greeting; on rank 2 of 4 it is "rank 2 of 4 says hello"."""
    raise NotImplementedError


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Overwrite `tensor`, on every rank, with what it holds on rank `src`.

    Use only send and recv.
    """
    raise NotImplementedError


def pass_right(tensor: torch.Tensor) -> torch.Tensor:
    """Give `tensor` to the next rank of the ring, and return what the previous rank gave.

    For two ranks and more.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    dist.send(tensor, dst=right)
    dist.recv(received, src=left)
    return received


def ring_reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Return chunk number `rank` of `tensor`, summed over all ranks.

    `tensor` is flat and keeps its values. Its size is the same on every rank, and divides into
    world size chunks. Each rank passes one chunk at a time to the right, world size − 1 times.
    """
    raise NotImplementedError


def ring_all_gather(shard: torch.Tensor) -> torch.Tensor:
    """Return the shards of all ranks, in the order of ranks, as one flat tensor.

    `shard` is flat and keeps its values. Its size is the same on every rank.
    Each rank passes one shard at a time to the right, world size − 1 times.
    """
    raise NotImplementedError


def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of `tensor` over all ranks, in its shape, on every rank.

    `tensor` has the same shape on every rank, any number of elements, and keeps its values.
    """
    raise NotImplementedError


def average(losses: torch.Tensor) -> torch.Tensor:
    """Return, on every rank, the mean of the losses of all ranks.

    Some ranks have fewer losses than others, or none.
    """
    if losses.numel() == 0:
        return torch.tensor(0.0)  # nothing to add
    total = losses.sum()
    count = torch.tensor(float(losses.numel()))
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        dist.all_reduce(count)
    return total / count


def gather_pieces(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    """Return, on rank `dst`, the pieces of all ranks, joined in their order; elsewhere None.

    `piece` is flat, and its size differs from rank to rank; it may be empty.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pieces = [torch.empty_like(piece) for _ in range(world_size)]
    dist.gather(piece, pieces, dst=rank)
    return torch.cat(pieces)
