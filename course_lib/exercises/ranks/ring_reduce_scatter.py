"""Reduce-scatter on a ring."""

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


def ring_reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Return chunk number `rank` of `tensor`, summed over all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = pass_right(outgoing)
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def one_step_short(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 2):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def one_step_too_many(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def starts_with_its_own(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step) % world_size])
        chunks[(rank - step - 1) % world_size] += incoming
    return chunks[rank]


def next_chunk(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step) % world_size])
        chunks[(rank - step - 1) % world_size] += incoming
    return chunks[(rank + 1) % world_size]


def index_grows(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank + step + 1) % world_size])
        chunks[(rank + step + 2) % world_size] += incoming
    return chunks[rank]


def own_chunks_only(tensor: torch.Tensor) -> torch.Tensor:
    passing = tensor.view(dist.get_world_size(), -1)[dist.get_rank()]
    total = passing.clone()
    for _ in range(dist.get_world_size() - 1):
        passing = pass_right(passing)
        total += passing
    return total


def overwrites(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[(rank - step - 2) % world_size] = incoming
    return chunks[rank]


def own_chunk_twice(tensor: torch.Tensor) -> torch.Tensor:
    return ring_reduce_scatter(tensor) + tensor.view(dist.get_world_size(), -1)[dist.get_rank()]


def averages(tensor: torch.Tensor) -> torch.Tensor:
    return ring_reduce_scatter(tensor) / dist.get_world_size()


def adds_into_the_input(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def every_chunk(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks.flatten()


def float32_sums(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = torch.zeros(world_size, tensor.numel() // world_size)
    chunks += tensor.view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def whole_tensors(tensor: torch.Tensor) -> torch.Tensor:
    total, passing = tensor.clone(), tensor
    for _ in range(dist.get_world_size() - 1):
        passing = pass_right(passing)
        total += passing
    return total.view(dist.get_world_size(), -1)[dist.get_rank()]


def sends_and_then_receives(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    incoming = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        dist.send(chunks[(rank - step - 1) % world_size], dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def one_neighbour_for_both(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    incoming = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step - 1) % world_size], dst=(rank - 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        sending.wait()
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


def library_reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    shard = torch.empty_like(tensor[: tensor.numel() // dist.get_world_size()])
    dist.reduce_scatter_single(shard, tensor)
    return shard


def carries_one_sum(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = tensor.view(world_size, -1)
    partial = mine[rank - 1]
    for step in range(2, world_size + 1):
        partial = pass_right(partial) + mine[(rank - step) % world_size]
    return partial.clone()


def in_a_batch(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks: list[torch.Tensor] = list(tensor.split(tensor.numel() // world_size))
    for chunk in range(rank - 1, rank - world_size, -1):
        incoming = torch.empty_like(chunks[0])
        operations = [
            dist.P2POp(dist.isend, chunks[chunk % world_size], (rank + 1) % world_size),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        chunks[(chunk - 1) % world_size] = chunks[(chunk - 1) % world_size] + incoming
    return chunks[rank]


RING_REDUCE_SCATTER = Exercise(
    name="ranks.ring_reduce_scatter",
    title="Reduce-scatter on a ring",
    task="Each rank has a flat `tensor` of the same size, cut into world size chunks of equal size: chunk 0, chunk 1, "
    "and so on. Return, on rank r, chunk r summed over all ranks. In each of world size − 1 steps every rank passes "
    "one chunk to its right neighbour, with your `pass_right`, and adds what came from the left to its own. The "
    "caller's `tensor` keeps its values.",
    stub=stubs.ring_reduce_scatter,
    reference=ring_reduce_scatter,
    draw=draw_ring_case,
    trial=while_rank_0_is_late,
    rules=RING_RULES,
    variants={"carries-one-sum": carries_one_sum, "in-a-batch": in_a_batch},
    mistakes=[
        Mistake(
            id="one-step-short",
            solution=one_step_short,
            told="One step is missing: your chunks lack one rank's part. From the first rank that adds to a chunk to "
            "the last there are world size − 1 passes.",
            action="Let the loop make `world_size - 1` steps.",
        ),
        Mistake(
            id="one-step-too-many",
            solution=one_step_too_many,
            told="The sums are right, but every rank passes one chunk more than it has to. A chunk that starts on "
            "rank r + 1 is on rank r after world size − 1 passes.",
            action="Let the loop make `world_size - 1` steps.",
        ),
        Mistake(
            id="starts-with-its-own",
            solution=starts_with_its_own,
            told="The chunk that you return was never added to. Each rank began by passing on the chunk with its own "
            "number, so that chunk went round the others and is finished on another rank.",
            action="Begin one chunk earlier: pass on chunk `(rank - 1) % world_size` first.",
        ),
        Mistake(
            id="next-chunk",
            solution=next_chunk,
            told="The sums are right and one rank off: rank r returns chunk r + 1.",
            action="Begin one chunk earlier: pass on chunk `(rank - 1) % world_size` first; it ends on its own rank.",
        ),
        Mistake(
            id="index-grows",
            solution=index_grows,
            told="Parts of different chunks are added to each other. What comes from the left is numbered by the "
            "left neighbour, which is one lower than you, so the number of the chunk falls by one at each step.",
            action="Let the number fall: pass on chunk `rank - step - 1`, and add what comes to `rank - step - 2`.",
        ),
        Mistake(
            id="own-chunks-only",
            solution=own_chunks_only,
            told="Each rank passes on the chunk with its own number, so chunk 0 of one rank is added to chunk 1 of "
            "another. Chunk r of the result needs chunk r of every rank.",
            action="Pass on another chunk in each step: `(rank - step - 1) % world_size`.",
        ),
        Mistake(
            id="overwrites",
            solution=overwrites,
            told="What arrives takes the place of your own part instead of being added to it, so each chunk ends "
            "with the data of one rank only.",
            action="Add: `+=` in place of `=`.",
        ),
        Mistake(
            id="own-chunk-twice",
            solution=own_chunk_twice,
            told="Each rank's own part is in its sum twice: once from the ring, and once more at the end.",
            action="Leave out the last addition. Your part goes in when you add what arrives to your chunk.",
        ),
        Mistake(
            id="averages",
            solution=averages,
            told="You return the mean over ranks. A reduce-scatter sums; who wants the mean divides afterwards.",
            action="Leave out the division by the world size.",
        ),
        Mistake(
            id="adds-into-the-input",
            solution=adds_into_the_input,
            told="The sums are right, but they were added into the caller's tensor: `view` and `chunk` make windows "
            "into it, not copies.",
            action="Begin with a copy: `tensor.clone()`.",
        ),
        Mistake(
            id="every-chunk",
            solution=every_chunk,
            told="You return all chunks. Only the one with the rank's own number is finished on it; the others hold "
            "partial sums.",
            action="Return `chunks[rank]`.",
        ),
        Mistake(
            id="float32-sums",
            solution=float32_sums,
            told="The sum has another dtype than the tensor: `torch.zeros` and `torch.empty` make float32 when they "
            "are not told otherwise.",
            action="Make buffers with `torch.empty_like(...)` or `dtype=tensor.dtype`, or start from `tensor.clone()`.",
        ),
        Mistake(
            id="whole-tensors",
            solution=whole_tensors,
            told="Right sums, but whole tensors went round the ring, world size times the data that is needed. "
            "A rank needs the sum of one chunk only.",
            action="Pass one chunk at a time.",
        ),
        Mistake(
            id="sends-and-then-receives",
            solution=sends_and_then_receives,
            told="Every rank sends before it receives, so all wait: the deadlock that you repaired in `pass_right`.",
            action="Call `pass_right`, or use `dist.isend` and wait for it after the recv.",
        ),
        Mistake(
            id="one-neighbour-for-both",
            solution=one_neighbour_for_both,
            told="You send to the rank that you receive from. In a world of two both neighbours are the same rank; in "
            "a larger one nobody sends to where you listen.",
            action="Send to `(rank + 1) % world_size`, receive from `(rank - 1) % world_size`.",
        ),
        Mistake(
            id="library-reduce-scatter",
            solution=library_reduce_scatter,
            told="`dist.reduce_scatter_single` is what you are to build here, so it cannot be a part of it.",
            action="Build it from messages: call `pass_right` in a loop.",
        ),
    ],
    hints=[
        "Follow one chunk. In the end its sum has to be on the rank of its number, and it has to have passed every "
        "other rank before. On which rank does its journey begin?",
        "Chunk r starts on rank r + 1, where only that rank's part is in it, and each rank on its way adds its own "
        "part. Seen from rank r: it passes on chunk r − 1 first, and its own chunk comes in last.",
        "`tensor.clone().view(world_size, -1)` has chunk i in row i. `pass_right(row)` gives you what came from the "
        "left. Take every number `% world_size`.",
        "```python\n"
        "chunks = tensor.clone().view(world_size, -1)\n"
        "for step in range(world_size - 1):\n"
        "    incoming = pass_right(chunks[(rank - step - 1) % world_size])\n"
        "    chunks[...] += incoming\n"
        "return chunks[rank]\n"
        "```",
    ],
    explanation="In step s rank r passes on chunk r − s − 1, and gets from rank r − 1 the chunk that this one passes "
    "on, r − s − 2, with the parts of all ranks that it has been to. In the last step, s = N − 2, that is chunk r, "
    "complete. Every rank is busy in every step, and sends N − 1 chunks of 1/N of the tensor: (N − 1)/N of its data, "
    "however many ranks there are.",
)
