"""Cut a checkpoint's shards again, for a different number of ranks."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from ...exercises import Case, Exercise, Solution

PADDING = (torch.nan, 0.0, 7.0)
WORLDS = ((4, 2), (2, 4), (4, 3), (3, 2), (1, 4), (4, 1), (3, 3))
"""The number of ranks before and after, in each draw."""


def draw(rng: random.Random, number: int) -> Case:
    before, after = WORLDS[number % len(WORLDS)]
    numel, padding = rng.randint(3, 5) * 12 + (9, 5, 1, 7, 2, 3, 4)[number % 7], PADDING[number % 3]
    if number in (4, 5):  # `chunk(4)` returns three chunks; the padding of four shards takes more than the last one
        numel = 5
    seed, dtype = rng.getrandbits(32), (torch.float32, torch.float64, torch.float16)[number % 3]

    def args(rank: int) -> tuple[list[Tensor], int, int]:
        values = torch.randint(-9, 10, (numel,), generator=torch.Generator().manual_seed(seed)).to(dtype)
        padded = F.pad(values, (0, -numel % before), value=padding)
        return [shard.clone() for shard in padded.chunk(before)], numel, after

    what = f"from {before} to {after} ranks, {numel} elements, {-numel % before} elements of padding ({padding:g})"
    return Case(world_size=0, args=args, what=what)


def trial(solution: Solution, shards: list[Tensor], numel: int, world_size: int) -> object:
    """Return the shards, and the bytes that each keeps alive besides its own: `torch.save` writes these as well."""
    resharded = solution(shards, numel, world_size)
    if not isinstance(resharded, list | tuple) or not all(isinstance(shard, Tensor) for shard in resharded):
        return resharded
    extra = [shard.untyped_storage().nbytes() - shard.nbytes for shard in resharded]
    return {"shards": list(resharded), "bytes kept in addition to each shard": extra}


exercise = Exercise("capstone.reshard", title="The same values on a different number of ranks", draw=draw, trial=trial,
    case_count=7, task="""
    Each rank saved one of `shards`. They are flat, equally long, and in the order of the ranks. Joined, they contain
    `numel` elements, and then padding, which can have any value. Return the elements as `world_size` shards: again
    flat, equally long and in order, padded with as few zeros as possible. Give each shard its own memory, because a
    saved view brings along all the memory that it belongs to.""", hints="""
    Which of the saved elements have a meaning, and where are they?

    Join the shards and drop the old padding. You then have what a single rank would hold. You cut such a tensor in
    lesson 06.

    `torch.cat`, a slice, `F.pad` with `-numel % world_size` zeros, `chunk`, and `clone`.

    ```python
    flat = torch.cat(shards)[...]
    padded = F.pad(flat, (0, ...))
    return [shard.clone() for shard in ...]
    ```
    """, explanation="""
    Padding depends on the number of ranks, so drop the old padding and add new. Between the two steps, one tensor holds
    all the values. `zero.save_checkpoint` avoids even this tensor: each rank writes its own shards, and when you load,
    each rank reads only the ranges that it needs, from the files that contain them.""")


@exercise
def reshard(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    """Return the same values as shards for `world_size` ranks, each with its own memory.

    Shards are flat and equally long; joined, they contain `numel` elements and then padding.
    Drop the old padding. The new padding is zeros, as few as possible.
    """
    flat = torch.cat(shards)[:numel]
    padded = F.pad(flat, (0, -numel % world_size))
    return [shard.clone() for shard in padded.chunk(world_size)]


exercise.edit("padding-kept", {"[:numel]": "", "-numel": "-flat.numel()"}, """
    You cut the old padding along with the values. It belongs to the old number of ranks, and can have any value.
    Next: keep only the first `numel` elements.""")

exercise.edit("not-padded", {"padded.chunk": "flat.tensor_split"}, """
    Your shards differ in length. Collectives on flat shards need equal lengths.
    Next: pad the values to a multiple of `world_size` before you cut them.""")

exercise.edit("chunks-alone", {"padded.chunk": "flat.chunk"}, """
    You cut values that are not padded. The last shard is then shorter than the others, and few elements can fill fewer
    shards than you need. Next: pad the values to a multiple of `world_size` before you cut them.""")

exercise.edit("pads-each-chunk", {"padded = F.pad(flat, (0, -numel % world_size))\n":
    "length = -(-numel // world_size)\n", "shard.clone() for shard in padded.chunk(world_size)":
    "F.pad(chunk, (0, length - chunk.numel())).clone() for chunk in flat.chunk(world_size)"}, """
    You pad each chunk after `chunk` has cut the values. `chunk` rounds the length of a chunk up, so few elements can
    fill fewer chunks than you asked for: 5 elements in 4 chunks become 2, 2 and 1, and one rank gets no shard.
    Next: pad the values to a multiple of `world_size` before you cut them.""")

exercise.edit("rest-lost", {"F.pad(flat, (0, -numel % world_size))": "flat[: numel - numel % world_size]"}, """
    You round the length of a shard down, so the last elements are lost where `numel` does not divide by `world_size`.
    Next: round the length up, and pad.""")

exercise.edit("one-more-each", {"(0, -numel % world_size)": "(0, world_size - numel % world_size)"}, """
    Where `numel` divides by `world_size`, each of your shards is one element too long: no padding is needed there.
    Next: pad up to the next multiple of `world_size`, which may be `numel` itself.""")

exercise.edit("views", {"[shard.clone() for shard in padded.chunk(world_size)]": "list(padded.chunk(world_size))"}, """
    Your shards are views of one tensor. `torch.save` of one of them writes the whole tensor.
    Next: give each shard its own memory.""")


@exercise.variant
def row_by_row(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    rows = torch.zeros(world_size, -(-numel // world_size), dtype=shards[0].dtype)
    rows.view(-1)[:numel] = torch.stack(shards).view(-1)[:numel]
    return [row.clone() for row in rows.unbind()]


exercise.variant_edit("rows-of-a-view", {"[shard.clone() for shard in padded.chunk(world_size)]":
    "list(map(torch.clone, padded.view(world_size, -1)))"})
