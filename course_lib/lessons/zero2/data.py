"""A bucket of parameters, as in the lesson's notebook, the models of lesson 05's exercises, and a rule on their memory.

bucket.params        some parameters, whose gradients travel together: views of flat_param
bucket.numels        their numbers of elements
bucket.flat_param    [padded_numel] the parameters one after the other, with zeros behind the last
bucket.param_shard   [shard_numel] this rank's part of flat_param: what the optimizer updates. Its `.grad` is the
                     grad shard: averaged over ranks, summed over the backwards since it was set to None
bucket.flat_grad     [padded_numel] this rank's gradients, from the first of them until they are sent; else None
"""

import random
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...exercises import Finding, Observation, Trial, byte_rows, whole_numbers

DTYPES = (torch.float32, torch.float64)

Shapes = Sequence[tuple[int, ...]]


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
        """Return each parameter's part of `flat`, [padded_numel]; flat itself."""
        pieces: tuple[Tensor, ...] = flat[: sum(self.numels)].split(self.numels)
        return pieces

    def add(self, number: int, grad: Tensor) -> None:
        """Add the gradient of `params[number]` to its place in `flat_grad`."""
        if self.flat_grad is None:
            self.flat_grad = torch.zeros_like(self.flat_param)
        self.pieces(self.flat_grad)[number].add_(grad.flatten())


def draw_shapes(rng: random.Random, world_size: int) -> Shapes:
    """Draw the shapes of three parameters. The world size does not divide their elements, unless there is one rank."""
    while True:
        shapes = [(rng.randint(2, 4), rng.randint(2, 5)), (rng.randint(1, 5),), (rng.randint(2, 4), 3)]
        if world_size == 1 or sum(torch.Size(shape).numel() for shape in shapes) % world_size:
            return shapes


def parameters(shapes: Shapes, dtype: torch.dtype, seed: int) -> list[nn.Parameter]:
    """Make a parameter of each shape, equal on every rank."""
    drawn = (whole_numbers(*shape, seed=seed, rank=number, dtype=dtype) for number, shape in enumerate(shapes))
    return [nn.Parameter(values / 100) for values in drawn]


def poisoned_bucket(params: list[nn.Parameter]) -> Bucket:
    """Make a bucket with NaN behind its last parameter, which spreads to all that is computed with the padding."""
    bucket = Bucket(params)
    bucket.flat_param[sum(bucket.numels) :] = torch.nan
    return bucket


def grad_shard(bucket: Bucket) -> Tensor | None:
    """Return a copy of this rank's averaged gradients, without padding."""
    if bucket.param_shard.grad is None:
        return None
    begin = dist.get_rank() * bucket.param_shard.numel()
    return bucket.param_shard.grad[: max(0, sum(bucket.numels) - begin)].clone()


def keeps_no_more(trial: Trial, *, shards: int = 1) -> Iterator[Finding]:
    """Allow at each mark of the exercise's `trial` as many bytes of gradients on a rank as with the reference.

    With `shards=2`, each gradient shard in `.grad` may exist twice.
    """
    for label in trial.expected.memory[0].marks:
        expected, yours = _held(trial.expected, label), _held(trial.yours, label)
        for rank in expected:
            expected[rank] += (shards - 1) * trial.expected.memory[rank].marks[label].by_category["gradients"]
        over = [rank for rank, nbytes in yours.items() if nbytes > expected[rank]]
        if over:
            rank = over[0]
            yield Finding(
                observed=f"{label}, {trial.who([rank])} holds {yours[rank]:,} bytes of gradients and buffers; "
                f"{expected[rank]:,} suffice.",
                action="Find what is not needed at that moment, and drop it: memory is freed when no variable, "
                "attribute, list or view refers to it any more.",
                table=byte_rows(yours, expected, over),
            )
            return


def _held(observation: Observation, label: str) -> dict[int, int]:
    """Return the bytes of gradients on each rank: in `.grad` of parameters, on their way, or in other tensors."""
    reached = {rank: memory.marks[label] for rank, memory in enumerate(observation.memory) if label in memory.marks}
    kinds = ("gradients", "communication", "other")
    return {rank: sum(snapshot.by_category[kind] for kind in kinds) for rank, snapshot in reached.items()}
