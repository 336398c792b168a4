"""A checkpoint's shards, cut again for another number of ranks."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs


def reshard(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    """Return the same values as shards for `world_size` ranks, each on memory of its own."""
    flat = torch.cat(shards)[:numel]
    padded = F.pad(flat, (0, -numel % world_size))
    return [shard.clone() for shard in padded.chunk(world_size)]


def cut(flat: Tensor, world_size: int) -> list[Tensor]:
    return [shard.clone() for shard in F.pad(flat, (0, -flat.numel() % world_size)).chunk(world_size)]


def padding_kept(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    return cut(torch.cat(shards), world_size)


def not_padded(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    return [shard.clone() for shard in torch.cat(shards)[:numel].tensor_split(world_size)]


def chunks_alone(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    return [shard.clone() for shard in torch.cat(shards)[:numel].chunk(world_size)]


def pads_each_chunk(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    length = -(-numel // world_size)
    chunks = torch.cat(shards)[:numel].chunk(world_size)
    return [F.pad(chunk, (0, length - chunk.numel())).clone() for chunk in chunks]


def rest_lost(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    length = numel // world_size
    return [shard.clone() for shard in torch.cat(shards)[: length * world_size].split(length)]


def padded_by_remainder(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    padded = F.pad(torch.cat(shards)[:numel], (0, numel % world_size))
    return [shard.clone() for shard in padded.tensor_split(world_size)]


def one_more_each(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    length = numel // world_size + 1
    return [s.clone() for s in F.pad(torch.cat(shards)[:numel], (0, length * world_size - numel)).split(length)]


def padded_in_front(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    return cut(F.pad(torch.cat(shards)[:numel], (-numel % world_size, 0)), world_size)


def each_by_itself(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    pieces = [cut(shard, world_size) for shard in shards]
    return [torch.cat(mine) for mine in zip(*pieces, strict=True)]


def in_turn(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    flat = torch.cat(shards)[:numel]
    padded = F.pad(flat, (0, -numel % world_size))
    return [padded[rank::world_size].clone() for rank in range(world_size)]


def by_value(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    flat = torch.cat(shards)
    return cut(flat[(flat != 0) & ~flat.isnan()], world_size)


def views(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    padded = F.pad(torch.cat(shards)[:numel], (0, -numel % world_size))
    return list(padded.chunk(world_size))


def the_same_again(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    return [shard.clone() for shard in shards]


def first_ones(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    flat = torch.cat([*shards[:world_size], *[torch.zeros(0)] * (world_size - len(shards))])[:numel]
    length = -(-numel // world_size)
    return [s.clone() for s in F.pad(flat, (0, length * world_size - flat.numel())).split(length)]


def whole_to_each(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    return [torch.cat(shards)[:numel].clone() for _ in range(world_size)]


def shard_by_shard(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    length = (numel + world_size - 1) // world_size
    flat, resharded = torch.cat(shards), []
    for rank in range(world_size):
        shard = flat.new_zeros(length)
        mine = flat[min(rank * length, numel) : min((rank + 1) * length, numel)]
        shard[: len(mine)] = mine
        resharded.append(shard)
    return resharded


def row_by_row(shards: list[Tensor], numel: int, world_size: int) -> list[Tensor]:
    rows = torch.zeros(world_size, -(-numel // world_size), dtype=shards[0].dtype)
    rows.view(-1)[:numel] = torch.stack(shards).view(-1)[:numel]
    return [row.clone() for row in rows.unbind()]


def trial(solution: Solution, shards: list[Tensor], numel: int, world_size: int) -> object:
    """The shards, and of each whether it is more than its own memory: saved, a view brings all of it along."""
    resharded = solution(shards, numel, world_size)
    if not isinstance(resharded, list | tuple) or not all(isinstance(shard, Tensor) for shard in resharded):
        return resharded
    extra = [shard.untyped_storage().nbytes() - shard.nbytes for shard in resharded]
    return {"shards": list(resharded), "bytes kept beside each shard": extra}


PADDING = (torch.nan, 0.0, 7.0)
WORLDS = ((4, 2), (2, 4), (4, 3), (3, 2), (1, 4), (4, 1))
"""From how many ranks to how many, in each draw."""


def draw(rng: random.Random, number: int) -> Case:
    before, after = WORLDS[number % len(WORLDS)]
    numel, padding = rng.randint(3, 5) * 12 + (9, 5, 1, 7, 2, 3)[number % 6], PADDING[number % 3]
    if number == 4:
        numel = 5  # `chunk(4)` gives three chunks
    seed, dtype = rng.getrandbits(32), (torch.float32, torch.float64)[number % 2]

    def args(rank: int) -> tuple[list[Tensor], int, int]:
        values = torch.randint(-9, 10, (numel,), generator=torch.Generator().manual_seed(seed)).to(dtype)
        padded = F.pad(values, (0, -numel % before), value=padding)
        return [shard.clone() for shard in padded.chunk(before)], numel, after

    about = f"from {before} to {after} ranks, {numel} elements, {-numel % before} elements of padding ({padding:g})"
    return Case(world_size=0, args=args, about=about)


RESHARD = Exercise(
    name="capstone.reshard",
    title="Other ranks, the same values",
    task="`shards` were saved by as many ranks as there are shards: flat, equally long, in the order of the ranks. "
    "Together they are `numel` elements, and behind these padding, of any value. Return them as `world_size` shards: "
    "again flat, equally long and in order, padded with as few zeros as possible. Each has memory of its own: a file "
    "holds all the memory that a view belongs to.",
    stub=stubs.reshard,
    reference=reshard,
    draw=draw,
    trial=trial,
    variants={"shard-by-shard": shard_by_shard, "row-by-row": row_by_row},
    mistakes=[
        Mistake(
            id="padding-kept",
            solution=padding_kept,
            told="The old padding is cut along with the values. It belonged to the old number of ranks, and can be "
            "anything.",
            action="Keep the first `numel` elements only.",
        ),
        Mistake(
            id="not-padded",
            solution=not_padded,
            told="Your shards have different lengths. Collectives of flat shards need them equally long.",
            action="Pad the values to a multiple of `world_size` before you cut them.",
        ),
        Mistake(
            id="chunks-alone",
            solution=chunks_alone,
            told="`chunk` without padding leaves the last shard shorter, and sometimes gives fewer than asked for.",
            action="Pad the values to a multiple of `world_size` before you cut them.",
        ),
        Mistake(
            id="pads-each-chunk",
            solution=pads_each_chunk,
            told="`chunk` rounds the length of a chunk up, so a few elements can fill fewer chunks than you asked for: "
            "5 elements in 4 chunks are 2, 2 and 1. Then ranks are left without a shard.",
            action="Pad the values to a multiple of `world_size` before you cut them.",
        ),
        Mistake(
            id="rest-lost",
            solution=rest_lost,
            told="What does not divide by `world_size` is gone: the last parameters were never saved.",
            action="Round the length of a shard up, and pad.",
        ),
        Mistake(
            id="padded-by-remainder",
            solution=padded_by_remainder,
            told="You pad by as many as are left over, and not by as many as are missing.",
            action="Pad by `-numel % world_size`.",
        ),
        Mistake(
            id="one-more-each",
            solution=one_more_each,
            told="Each shard has one element more than a quotient rounded down. Where the division comes out even, "
            "that is one too many.",
            action="Round up: `-(-numel // world_size)`.",
        ),
        Mistake(
            id="padded-in-front",
            solution=padded_in_front,
            told="The zeros stand before the values, so that every element has moved.",
            action="Pad behind the last: `F.pad(flat, (0, missing))`.",
        ),
        Mistake(
            id="each-by-itself",
            solution=each_by_itself,
            told="You cut each old shard by itself, and give a part of each to everybody. The order of the elements "
            "is lost.",
            action="Join all shards first, then cut.",
        ),
        Mistake(
            id="in-turn",
            solution=in_turn,
            told="You deal the elements out in turn. A shard is a run of neighbours.",
            action="Cut with `chunk` or `split`.",
        ),
        Mistake(
            id="by-value",
            solution=by_value,
            told="You tell padding by its value. A parameter can be zero as well, and padding can be anything.",
            action="Tell padding by its place: it lies behind the first `numel` elements.",
        ),
        Mistake(
            id="views",
            solution=views,
            told="Your shards are views of one tensor. `torch.save` of one of them writes all of it.",
            action="Give each its own memory: `shard.clone()`.",
        ),
        Mistake(
            id="the-same-again",
            solution=the_same_again,
            told="These are the shards as they were saved, for the old number of ranks.",
            action="Join them, then cut for `world_size` ranks.",
        ),
        Mistake(
            id="first-ones",
            solution=first_ones,
            told="The shards of ranks that are there no more are left out.",
            action="Join all of them.",
        ),
        Mistake(
            id="whole-to-each",
            solution=whole_to_each,
            told="Everybody gets everything.",
            action="Cut the joined values into `world_size` shards.",
        ),
    ],
    hints=[
        "Which of the elements that were saved mean anything, and where are they?",
        "Joined and without the old padding they are what one rank would have. You have cut that in lesson 05.",
        "`torch.cat`, a slice, `F.pad` with `-numel % world_size` zeros, `chunk`, and `clone`.",
        "```python\nflat = torch.cat(shards)[...]\npadded = F.pad(flat, (0, ...))\n"
        "return [shard.clone() for shard in ...]\n```",
    ],
    explanation="Padding depends on the number of ranks, so it is dropped and made anew. In between, the values are "
    "whole in one place; a checkpoint in pieces, as `zero.save_checkpoint` writes it, avoids even that: each rank "
    "reads the ranges that it needs from whichever files have them.",
)
