"""Two random streams for dropout: one that all ranks share, and one of a rank's own."""

import random
from typing import Any

import torch
import torch.distributed as dist

from ...exercises import Case, Exercise, Solution, draw_world_size


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.randint(10, 99)
    return Case(world_size=world_size, args=lambda rank: (seed,), what=f"seed {seed}")


def how_streams_relate(solution: Solution, seed: int) -> Any:
    """Return which streams are equal. Their numbers are not compared, because every choice of seeds is right."""
    drawn = []
    for given in (seed, seed, seed + 1):
        streams = solution(given)
        if not (isinstance(streams, tuple | list) and [*map(type, streams)] == [torch.Generator] * 2):
            return streams
        drawn.append([torch.rand(8, generator=stream) for stream in streams])
    everyone = [[torch.empty(8) for _ in range(dist.get_world_size())] for _ in range(2)]
    for place, mine in enumerate(drawn[0]):
        dist.all_gather(everyone[place], mine)
    shared, own = ([tuple(values.tolist()) for values in streams] for streams in everyone)
    return {
        "different shared streams": len(set(shared)),
        "different own streams": len(set(own)),
        "an own stream equals the shared one": bool(set(own) & set(shared)),
        "the same seed, the same streams": all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True)),
        "a new seed, new streams": not any(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True)),
    }


exercise = Exercise("tensor.dropout_streams", title="Dropout in step", draw=draw, trial=how_streams_relate,
    case_count=4, task="""
    Dropout appears in two places. Outside the parallel part every rank has the same activations, and must drop the same
    elements: otherwise the copies are no copies any more. Inside, each rank has different features or heads, and must
    drop elements of its own: otherwise all ranks drop the same places of their parts. Return the two random streams of
    this rank, `(shared, own)`. The same seed gives the same streams, a different seed gives different streams.
    """, hints="""
    When do two generators draw the same numbers? When should they here, and when should they not?

    They draw the same numbers if they have the same seed. So the rank may be in the seed of one stream, and must not be
    in the seed of the other.

    `torch.Generator().manual_seed(n)` makes a stream. Rank 0's own stream must differ from the shared one as well.

    ```python
    shared = torch.Generator().manual_seed(...)
    own = torch.Generator().manual_seed(...)
    return shared, own
    ```
    """, explanation="""
    Dropout out of step raises no error. With different masks outside, each rank continues with different activations,
    and the sum in backward adds gradients of different models. With the same mask inside, the elements of the whole
    tensor are not dropped independently. Megatron keeps two streams like these, 2718 seeds apart, and switches between
    them.
    """)


@exercise
def dropout_streams(seed: int) -> tuple[torch.Generator, torch.Generator]:
    """Return two random streams for dropout: one that is the same on every rank, and one of this rank's own."""
    shared = torch.Generator().manual_seed(seed)
    own = torch.Generator().manual_seed(seed + 2718 + dist.get_rank())
    return shared, own


exercise.edit("all-in-step", {"seed + 2718 + dist.get_rank()": "seed + 2718"}, """
    The second stream is the same on every rank, so all ranks drop the same places of their parts.
    Next: let the rank decide on its seed.
    """)

exercise.edit("all-out-of-step", {"manual_seed(seed)": "manual_seed(seed + 1000 * (dist.get_rank() + 1))"}, """
    The first stream differs from rank to rank. Every rank has the same activations there, and each would drop
    different elements of them. Next: use the same seed on every rank.
    """)

exercise.edit("swapped", {"return shared, own": "return own, shared"}, """
    The first stream differs from rank to rank, and the second is the same on all. Next: return the shared one first.
    """)

exercise.edit("rank-0-as-shared", {"seed + 2718 + dist": "seed + dist"}, """
    Rank 0's own stream is the shared one: `seed + 0`. So it draws the same masks inside and outside.
    Next: begin the ranks' own seeds somewhere else.
    """)

exercise.edit("seed-ignored", {"manual_seed(seed)": "manual_seed(0)", "seed + 2718 + dist": "2718 + dist"}, """
    You do not use `seed`, so every run draws the same masks. Next: let both seeds depend on it.
    """)

exercise.edit("seed-times-rank", {"seed + 2718 + dist.get_rank()": "2718 + seed * dist.get_rank()"}, """
    You multiply the seed by the rank: on rank 0 nothing is left of it. Next: add the rank instead.
    """)

exercise.edit("unseeded", {"\nown": "\nshared.seed()\nown"}, """
    You seed the shared stream from the system's random source, differently on each rank and in each run.
    Next: use `manual_seed`, with the same number on every rank.
    """)

exercise.variant_edit("far-apart", {"seed + 2718 + dist.get_rank()": "10**6 * (dist.get_rank() + 1) + seed"})


@exercise.variant
def drawn_from_the_seed(seed: int) -> tuple[torch.Generator, torch.Generator]:
    shared, own = torch.Generator(), torch.Generator()
    seeds = torch.randint(2**31, (2 + dist.get_world_size(),), generator=torch.Generator().manual_seed(seed)).tolist()
    shared.manual_seed(seeds[0])
    own.manual_seed(seeds[1 + dist.get_rank()])
    return shared, own
