"""All-gather on a ring."""

# mypy: disable-error-code="union-attr"
# (isend is declared to give None where the rank is not in the group; here it always is.)

from __future__ import annotations

import torch
import torch.distributed as dist

from ..declare import Exercise, Mistake
from . import stubs
from .data import draw_ring_case, while_rank_0_is_late
from .exchange import pass_right
from .rules import RING_RULES


def ring_all_gather(shard: torch.Tensor) -> torch.Tensor:
    """Return the shards of all ranks, in the order of ranks, as one flat tensor."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    for step in range(world_size - 1):
        outgoing = shards[(rank - step) % world_size]
        incoming = pass_right(outgoing)
        shards[(rank - step - 1) % world_size] = incoming
    return torch.cat(shards)


def one_step_short(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    for step in range(world_size - 2):
        shards[(rank - step - 1) % world_size] = pass_right(shards[(rank - step) % world_size])
    return torch.cat(shards)


def one_step_short_of_zeros(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [torch.zeros_like(shard)] * world_size
    shards[rank] = shard
    for step in range(world_size - 2):
        shards[(rank - step - 1) % world_size] = pass_right(shards[(rank - step) % world_size])
    return torch.cat(shards)


def passes_its_own(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    for step in range(world_size - 1):
        shards[(rank - step - 1) % world_size] = pass_right(shard)
    return torch.cat(shards)


def as_they_arrive(shard: torch.Tensor) -> torch.Tensor:
    shards = [shard]
    for _ in range(dist.get_world_size() - 1):
        shards.append(pass_right(shards[-1]))
    return torch.cat(shards)


def in_front(shard: torch.Tensor) -> torch.Tensor:
    shards = [shard]
    for _ in range(dist.get_world_size() - 1):
        shards.insert(0, pass_right(shards[0]))
    return torch.cat(shards)


def index_grows(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    passing = shard
    for step in range(world_size - 1):
        passing = pass_right(passing)
        shards[(rank + step + 1) % world_size] = passing
    return torch.cat(shards)


def one_buffer(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    incoming, outgoing = torch.empty_like(shard), shard
    for step in range(world_size - 1):
        sending = dist.isend(outgoing, dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        sending.wait()
        shards[(rank - step - 1) % world_size] = incoming
        outgoing = incoming.clone()
    return torch.cat(shards)


def sums(shard: torch.Tensor) -> torch.Tensor:
    total, passing = shard.clone(), shard
    for _ in range(dist.get_world_size() - 1):
        passing = pass_right(passing)
        total += passing
    return total


def stacks(shard: torch.Tensor) -> torch.Tensor:
    return ring_all_gather(shard).view(dist.get_world_size(), -1)


def returns_a_list(shard: torch.Tensor) -> list[torch.Tensor]:
    return list(ring_all_gather(shard).chunk(dist.get_world_size()))


def repeats_its_own(shard: torch.Tensor) -> torch.Tensor:
    return shard.repeat(dist.get_world_size())


def only_rank_zero(shard: torch.Tensor) -> torch.Tensor:
    gathered = ring_all_gather(shard)
    return gathered if dist.get_rank() == 0 else shard


def float32_buffer(shard: torch.Tensor) -> torch.Tensor:
    gathered = torch.zeros(shard.numel() * dist.get_world_size())
    gathered[:] = ring_all_gather(shard)
    return gathered


def receives_into_the_shard(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard.clone()] * world_size
    for step in range(world_size - 1):
        sending = dist.isend(shard.clone(), dst=(rank + 1) % world_size)
        dist.recv(shard, src=(rank - 1) % world_size)
        sending.wait()
        shards[(rank - step - 1) % world_size] = shard.clone()
    return torch.cat(shards)


def sends_and_then_receives(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    for step in range(world_size - 1):
        dist.send(shards[(rank - step) % world_size], dst=(rank + 1) % world_size)
        incoming = torch.empty_like(shard)
        dist.recv(incoming, src=(rank - 1) % world_size)
        shards[(rank - step - 1) % world_size] = incoming
    return torch.cat(shards)


def library_all_gather(shard: torch.Tensor) -> torch.Tensor:
    gathered = shard.repeat(dist.get_world_size())
    dist.all_gather_single(gathered, shard)
    return gathered


def turns_the_order(shard: torch.Tensor) -> torch.Tensor:
    arrived = [shard]  # this rank's, its left neighbour's, and so on, down the ring
    for _ in range(dist.get_world_size() - 1):
        arrived.append(pass_right(arrived[-1]))
    return torch.cat([arrived[(dist.get_rank() - rank) % len(arrived)] for rank in range(len(arrived))])


def rows_of_a_buffer(shard: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = torch.empty(world_size, shard.numel(), dtype=shard.dtype)
    gathered[rank] = shard
    for owner in range(rank, rank - world_size + 1, -1):
        sending = dist.isend(gathered[owner % world_size], dst=(rank + 1) % world_size)
        dist.recv(gathered[(owner - 1) % world_size], src=(rank - 1) % world_size)
        sending.wait()
    return gathered.flatten()


RING_ALL_GATHER = Exercise(
    name="ranks.ring_all_gather",
    title="All-gather on a ring",
    task="Each rank has a flat `shard` of the same size. Return, on every rank, the shards of all ranks in one flat "
    "tensor: that of rank 0 first, then that of rank 1, and so on. In each of world size − 1 steps every rank passes "
    "one shard to its right neighbour, with your `pass_right`. The caller's `shard` keeps its values.",
    stub=stubs.ring_all_gather,
    reference=ring_all_gather,
    draw=draw_ring_case,
    trial=while_rank_0_is_late,
    rules=RING_RULES,
    variants={"turns-the-order": turns_the_order, "rows-of-a-buffer": rows_of_a_buffer},
    mistakes=[
        Mistake(
            id="one-step-short",
            solution=one_step_short,
            told="One step is missing: each rank lacks the shard of its right neighbour, the last to arrive.",
            action="Let the loop make `world_size - 1` steps.",
        ),
        Mistake(
            id="one-step-short-of-zeros",
            solution=one_step_short_of_zeros,
            told="One step is missing: where the shard of the right neighbour belongs, the last to arrive, zeros are "
            "left.",
            action="Let the loop make `world_size - 1` steps.",
        ),
        Mistake(
            id="passes-its-own",
            solution=passes_its_own,
            told="Every rank passes on its own shard again and again, so its right neighbour gets the same data each "
            "time, and nobody further away gets any.",
            action="Pass on what arrived in the step before.",
        ),
        Mistake(
            id="as-they-arrive",
            solution=as_they_arrive,
            told="All shards are there, joined as they arrived: on rank r that is r, r − 1, r − 2, ..., another order "
            "on each rank.",
            action="Put each shard in the place of the rank that it comes from, `(rank - step - 1) % world_size`.",
        ),
        Mistake(
            id="in-front",
            solution=in_front,
            told="What arrives is put in front of what is there, so a rank's own shard comes last. Only on the last "
            "rank is that the order of ranks.",
            action="Put each shard in the place of the rank that it comes from, `(rank - step - 1) % world_size`.",
        ),
        Mistake(
            id="index-grows",
            solution=index_grows,
            told="The shards are in mirrored places. What arrives in a step comes from one rank further to the left "
            "than before, so its number falls by one at each step.",
            action="Put what arrives in place `(rank - step - 1) % world_size`.",
        ),
        Mistake(
            id="one-buffer",
            solution=one_buffer,
            told="All places but your own hold the last shard that arrived: they are one and the same tensor, which "
            "each recv overwrites.",
            action="Receive into a new tensor at each step, as `pass_right` does.",
        ),
        Mistake(
            id="sums",
            solution=sums,
            told="You add the shards up. An all-gather keeps them apart, one after the other.",
            action="Collect them in a list and join them with `torch.cat`.",
        ),
        Mistake(
            id="stacks",
            solution=stacks,
            told="The shards are right and stand in the rows of a matrix; one flat tensor was asked for.",
            action="Join them with `torch.cat` in place of `torch.stack`, or flatten the result.",
        ),
        Mistake(
            id="returns-a-list",
            solution=returns_a_list,
            told="You return a list of shards; one flat tensor was asked for.",
            action="Join them: `torch.cat(shards)`.",
        ),
        Mistake(
            id="repeats-its-own",
            solution=repeats_its_own,
            told="Every place holds this rank's own shard, as if nothing had been sent.",
            action="Pass shards round the ring with `pass_right`, and keep what arrives.",
        ),
        Mistake(
            id="only-rank-zero",
            solution=only_rank_zero,
            told="Only rank 0 returns all shards. That is a gather; in an all-gather every rank gets the whole.",
            action="Return the joined tensor on every rank.",
        ),
        Mistake(
            id="float32-buffer",
            solution=float32_buffer,
            told="The result has another dtype than the shards: `torch.zeros` and `torch.empty` make float32 when they "
            "are not told otherwise.",
            action="Make the buffer with `dtype=shard.dtype`.",
        ),
        Mistake(
            id="receives-into-the-shard",
            solution=receives_into_the_shard,
            told="The result is right, but the caller's `shard` was used to receive into, and now holds another "
            "rank's data.",
            action="Receive into a new tensor, as `pass_right` does.",
        ),
        Mistake(
            id="sends-and-then-receives",
            solution=sends_and_then_receives,
            told="Every rank sends before it receives, so all wait: the deadlock that you repaired in `pass_right`.",
            action="Call `pass_right`, or use `dist.isend` and wait for it after the recv.",
        ),
        Mistake(
            id="library-all-gather",
            solution=library_all_gather,
            told="`dist.all_gather_single` is what you are to build here, so it cannot be a part of it.",
            action="Build it from messages: call `pass_right` in a loop.",
        ),
    ],
    hints=[
        "After the first step you have two shards. Which of them does your right neighbour not have yet?",
        "Each rank passes on what arrived in the step before; its own shard in the first. What arrives in step s has "
        "come s + 1 ranks far, so you know whose it is.",
        "A list with a place for each rank, `pass_right` for each step, and `torch.cat` at the end. Take every number "
        "`% world_size`.",
        "```python\n"
        "shards = [shard] * world_size\n"
        "for step in range(world_size - 1):\n"
        "    incoming = pass_right(shards[(rank - step) % world_size])\n"
        "    shards[...] = incoming\n"
        "return torch.cat(shards)\n"
        "```",
    ],
    explanation="In step s rank r passes on the shard of rank r − s, which it got in the step before (in step 0 its "
    "own), and gets that of rank r − s − 1. After N − 1 steps every shard has been to every rank. Each rank sends "
    "N − 1 shards of 1/N of the result: (N − 1)/N of it, as much as in the reduce-scatter.",
)
