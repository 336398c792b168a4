"""Three ways to cut a model's tensors into shards.

flat    each unit laid end to end, padded to a multiple of the ranks, cut evenly: as in the paper, this course,
        FSDP1 and DeepSpeed
rows    each tensor cut along its first dimension into chunks of ceil(rows / ranks), padded: as in fully_shard
greedy  no tensor cut: the largest first, to the rank that has least so far: as in ZeroRedundancyOptimizer
"""

import heapq
import math
from collections.abc import Sequence

from ..training.shapes import Shape, Unit, numel


def flat(units: Sequence[Unit], ranks: int) -> list[int]:
    """Return the elements of each unit's shard, padding included; the same on every rank."""
    return [-(-numel(unit) // ranks) for unit in units]


def rows(units: Sequence[Unit], ranks: int) -> list[int]:
    """Return the elements of each tensor's shard with padding; the same on every rank. A scalar counts as one row."""
    return [-(-(shape or (1,))[0] // ranks) * math.prod(shape[1:]) for unit in units for shape in unit]


def greedy(shapes: Sequence[Shape], ranks: int) -> list[list[Shape]]:
    """Return the tensors of each rank. Of tensors with equally many elements, the earlier one goes first."""
    owned: list[list[Shape]] = [[] for _ in range(ranks)]
    least = [(0, rank) for rank in range(ranks)]
    for shape in sorted(shapes, key=math.prod, reverse=True):
        size, rank = least[0]
        owned[rank].append(shape)
        heapq.heapreplace(least, (size + math.prod(shape), rank))
    return owned
