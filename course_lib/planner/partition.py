"""Who gets what: three ways to cut a model's tensors into shards.

flat    each unit laid end to end, padded to a multiple of the ranks, cut evenly: the paper's way, this course's,
        FSDP1's and DeepSpeed's
rows    each tensor cut along its first dimension into chunks of ceil(rows / ranks), padded: fully_shard's way
greedy  no tensor cut: the largest first, to whoever has least so far: ZeroRedundancyOptimizer's way
"""

import math
from collections.abc import Sequence

from .shapes import Shape, Unit, numel


def flat(units: Sequence[Unit], ranks: int) -> list[int]:
    """Elements of each unit's shard, padding included; the same on every rank."""
    return [-(-numel(unit) // ranks) for unit in units]


def rows(units: Sequence[Unit], ranks: int) -> list[int]:
    """Elements of each tensor's shard, padding included; the same on every rank. A scalar counts as one row."""
    return [-(-(shape or (1,))[0] // ranks) * math.prod(shape[1:]) for unit in units for shape in unit]


def greedy(shapes: Sequence[Shape], ranks: int) -> list[list[Shape]]:
    """The tensors of each rank; of tensors with as many elements, the earlier one goes first."""
    owned: list[list[Shape]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for shape in sorted(shapes, key=math.prod, reverse=True):
        rank = sizes.index(min(sizes))
        owned[rank].append(shape)
        sizes[rank] += math.prod(shape)
    return owned
