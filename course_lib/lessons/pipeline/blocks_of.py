"""Cut a model into consecutive parts."""

import random
from collections.abc import Iterable

import numpy as np
import torch

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    world_size, blocks = ((4, 10), (3, 6), (5, 8), (4, 3), (8, 80), (3, 11))[number % 6]
    what = f"{blocks} blocks on {world_size} ranks"
    return Case(world_size=0, args=lambda _: (world_size, blocks), what=what)


def of_every_rank(solution, world_size, blocks):
    """Return how many blocks the ranks have, and their numbers: parts must not overlap.

    Ranges, lists and arrays count. Return the first part that is none of them as it is.
    """
    parts = {f"rank {rank}": listed(solution(rank, world_size, blocks)) for rank in range(world_size)}
    for part in parts.values():
        if not isinstance(part, list):
            return part
    return {"blocks on each rank": ", ".join(str(len(part)) for part in parts.values()), "blocks": parts}


def listed(numbers):
    """Return the numbers as a list; what has none as it is."""
    numbers = numbers.tolist() if isinstance(numbers, torch.Tensor) else numbers
    return list(numbers) if isinstance(numbers, Iterable) else numbers


exercise = Exercise("pipeline.blocks_of", title="Cut the model by depth", draw=draw, trial=of_every_rank, task="""
    Return the numbers of the blocks that `rank` has. Each rank has consecutive blocks, in the order of the ranks. The
    ranks have equally many; if the blocks do not divide evenly, the first ranks have one more each.
    """, hints="""
    How many blocks does every rank have at least, and how many are left over?

    10 blocks on 4 ranks: 3, 3, 2 and 2. On which ranks does the number of the first block differ from `rank * each`?

    `divmod(blocks, world_size)` gives both. Rank r begins after `r` equal parts and after the extra blocks of the ranks
    before it.

    ```python
    each, more = divmod(blocks, world_size)
    begin = rank * each + min(rank, more)
    ```
    """, explanation="""
    The slowest rank sets the pace of a pipeline, so no rank has two blocks more than another. Real models also weigh
    the embedding and the head: Llama 3 gave the first and the last rank one block less for this reason.
    """)


@exercise
def blocks_of(rank: int, world_size: int, blocks: int) -> range:
    """Return the numbers of the blocks that `rank` has: consecutive, and as evenly as possible.

    If the blocks do not divide evenly, the first ranks have one more each.
    """
    each, more = divmod(blocks, world_size)
    begin = rank * each + min(rank, more)
    return range(begin, begin + each + (rank < more))


exercise.edit("drops-the-rest", {"rank * each + min(rank, more)": "rank * each", "each + (rank < more)": "each"}, """
    Each of your ranks has `blocks // world_size` blocks, and the blocks left over are on no rank: the model has become
    shorter. Next: give one of the blocks that are left over to each of the first ranks.
    """)

exercise.edit("rest-on-the-last-rank", {"rank * each + min(rank, more)": "rank * each",
    "each + (rank < more)": "each + more * (rank == world_size - 1)"}, """
    Your last rank has all blocks that are left over, up to world size − 1 more than the others. All ranks then wait for
    it. Next: give one of the blocks that are left over to each of the first ranks.
    """)

exercise.edit("rounds-up", {"each, more = divmod(blocks, world_size)": "each, more = -(-blocks // world_size), 0",
    "range(begin, begin + each + (rank < more))": "range(min(begin, blocks), min(begin + each, blocks))"}, """
    Your ranks have `blocks / world_size`, rounded up, as long as there are blocks; the last ranks have fewer or none.
    With 8 blocks on 5 ranks, the last rank idles. Next: let the sizes differ by at most one.
    """)

exercise.edit("one-by-one", {"range(begin, begin + each + (rank < more))": "range(rank, blocks, world_size)"}, """
    You deal the blocks out one by one. Then the activations travel to a different rank after every block. A part has
    consecutive blocks, so that they travel once per rank. Next: return the blocks from `begin` on.
    """)

exercise.edit("begins-too-early", {"rank * each + min(rank, more)": "rank * each"}, """
    The sizes are right, but your parts overlap: a rank begins after equal parts, although the ranks before it have one
    block more. Next: count how many of the ranks before this one have a block more.
    """)

exercise.edit("extra-for-the-last-ranks", {"min(rank, more)": "max(rank - (world_size - more), 0)",
    "rank < more": "rank >= world_size - more"}, """
    Your sizes differ by at most one, but the last ranks have the extra blocks. The task gives them to the first ranks.
    Next: give the blocks that are left over to the first ranks.
    """)

exercise.edit("extra-spread-out", {"range(begin, begin + each + (rank < more))":
    "range(rank * blocks // world_size, (rank + 1) * blocks // world_size)"}, """
    Your sizes differ by at most one, but the extra blocks are spread over the ranks, and the last rank has one. The
    task gives them to the first ranks. Next: give the blocks that are left over to the first ranks.
    """)

exercise.variant_edit("from-both-ends", {"range(begin, begin + each + (rank < more))":
    "range(begin, (rank + 1) * each + min(rank + 1, more))"})


@exercise.variant
def counts_up(rank: int, world_size: int, blocks: int) -> list[int]:
    sizes = [blocks // world_size + (r < blocks % world_size) for r in range(world_size)]
    return list(range(sum(sizes[:rank]), sum(sizes[: rank + 1])))


@exercise.variant
def of_an_array(rank: int, world_size: int, blocks: int) -> list[int]:
    return list(np.array_split(range(blocks), world_size)[rank])
