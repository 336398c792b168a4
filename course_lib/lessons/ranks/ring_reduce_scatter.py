"""Reduce-scatter on a ring."""

import torch
import torch.distributed as dist

from ...exercises import Exercise
from .data import RING_RULES, draw_ring_case
from .repair_exchange import pass_right

exercise = Exercise("ranks.ring_reduce_scatter", title="Reduce-scatter on a ring", draw=draw_ring_case,
    rules=RING_RULES, task="""
    Each rank has a flat `tensor` of the same size, cut into world size chunks of equal size: chunk 0, chunk 1, and so
    on. Return, on rank r, chunk r summed over all ranks. In each of world size − 1 steps, every rank passes one chunk
    to its right neighbour, with your `pass_right` or with `send` and `recv`, and adds the chunk that it receives to its
    own. The caller's `tensor` keeps its values.""", hints="""
    Follow one chunk. At the end, its sum has to be on the rank with its number, and it has to have visited every other
    rank before. On which rank does its journey begin?

    Chunk r starts on rank r + 1, with only that rank's part, and each rank on its way adds its own part. Seen from rank
    r: it passes on chunk r − 1 first, and receives its own chunk last.

    `tensor.clone().view(world_size, -1)` has chunk i in row i. `pass_right(row)` returns the left neighbour's row. Take
    every number `% world_size`.

    ```python
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        incoming = pass_right(chunks[(rank - step - 1) % world_size])
        chunks[...] += incoming
    return chunks[rank]
    ```
    """, explanation="""
    In step s, rank r passes on chunk r − s − 1. It receives the chunk that rank r − 1 passes on, r − s − 2, with the
    parts of all ranks that this chunk has visited. In the last step, s = N − 2, this is chunk r, complete. Every rank
    works in every step, and sends N − 1 chunks of 1/N of the tensor: (N − 1)/N of its data, for any number of ranks.
    """)


@exercise
def ring_reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    """Return chunk number `rank` of `tensor`, summed over all ranks.

    `tensor` is flat and keeps its values. Its size is the same on every rank, and divides into
    world size chunks. Each rank passes one chunk at a time to the right, world size − 1 times.
    Use only messages: send, recv, isend, irecv.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.clone().view(world_size, -1)
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = pass_right(outgoing)
        chunks[(rank - step - 2) % world_size] += incoming
    return chunks[rank]


exercise.edit("one-step-short", {"range(world_size - 1)": "range(world_size - 2)"}, """
    One step is missing, so your chunks lack one rank's part. A chunk is passed on world size − 1 times, from the first
    rank that adds to it to the last. Next: count the neighbours that a chunk has to pass until every rank has added to
    it.""")

exercise.edit("one-step-too-many", {"range(world_size - 1)": "range(world_size)"}, """
    The sums are right, but every rank passes on one chunk too many. A chunk that starts on rank r + 1 is on rank r
    after world size − 1 steps. Next: count the neighbours that a chunk has to pass until every rank has added to
    it.""")

exercise.edit("starts-with-its-own", {"rank - step - 1": "rank - step", "rank - step - 2": "rank - step - 1"}, """
    The chunk that you return has only your own part. In the last step, a rank has to receive the chunk with its own
    number, and add it there. Next: write down for each step which chunk rank 0 passes on, to which chunk it adds what
    it receives, and which one it returns.""")

exercise.edit("index-grows", {"rank - step - 1": "rank + step + 1", "rank - step - 2": "rank + step + 2"}, """
    You add parts of different chunks. If you send to the right, the left neighbour's rank is one lower than yours, and
    so is the number of the chunk that it passes on: the number falls by one at each step.
    Next: draw three ranks and follow one chunk: does its number grow or fall from one step of a rank to the next?""")

exercise.edit("overwrites", {"+=": "="}, """
    The received chunk replaces your own part instead of being added to it, so each chunk ends with one rank's data
    only. Next: add what arrives to what the rank has.""")

exercise.edit("sends-and-then-receives", {"pass_right(outgoing)": "torch.empty_like(outgoing)\n"
    "dist.send(outgoing, dst=(rank + 1) % world_size)\ndist.recv(incoming, src=(rank - 1) % world_size)"}, """
    Every rank sends before it receives, so all wait: the deadlock that you repaired in `pass_right`.
    Next: call `pass_right`, or use `dist.isend` and wait for it after the recv.""")


@exercise.mistake
def own_chunks_only(tensor: torch.Tensor) -> torch.Tensor:
    """Each rank passes on the chunk with its own number, so you add chunk 0 of one rank to chunk 1 of another. The
    result needs chunk r of every rank. Next: let the number of the chunk follow from the rank and from the step."""
    passing = tensor.view(dist.get_world_size(), -1)[dist.get_rank()]
    total = passing.clone()
    for _ in range(dist.get_world_size() - 1):
        passing = pass_right(passing)
        total += passing
    return total

exercise.variant_edit("negative-indices", {"(rank - step - 1) % world_size": "rank - step - 1",
    "(rank - step - 2) % world_size": "rank - step - 2"})


@exercise.variant
def carries_one_sum(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = tensor.view(world_size, -1)
    partial = mine[rank - 1]
    for step in range(2, world_size + 1):
        partial = pass_right(partial) + mine[(rank - step) % world_size]
    return partial.clone()
