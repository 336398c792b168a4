"""All-gather on a ring."""

import torch
import torch.distributed as dist

from ...exercises import Exercise
from .data import RING_RULES, draw_ring_case
from .repair_exchange import pass_right

exercise = Exercise("ranks.ring_all_gather", title="All-gather on a ring", draw=draw_ring_case,
    rules=RING_RULES, task="""
    Each rank has a flat `shard` of the same size. Return, on every rank, the shards of all ranks in one flat tensor:
    rank 0's shard first, then rank 1's, and so on. In each of world size − 1 steps, every rank passes one shard to its
    right neighbour, with your `pass_right` or with `send` and `recv`. The caller's
    `shard` keeps its values.""", hints="""
    After the first step you have two shards. Which of them does your right neighbour not have yet?

    Each rank passes on the shard that it received in the step before; in the first step, its own. The shard that you
    receive in step s has travelled s + 1 ranks, so you know whose it is.

    A list with a place for each rank, `pass_right` for each step, and `torch.cat` at the end. Take every number
    `% world_size`.

    ```python
    shards = [shard] * world_size
    for step in range(world_size - 1):
        incoming = pass_right(shards[(rank - step) % world_size])
        shards[...] = incoming
    return torch.cat(shards)
    ```
    """, explanation="""
    In step s, rank r passes on the shard of rank r − s, which it received in the step before (in step 0, its own). It
    receives the shard of rank r − s − 1. After N − 1 steps, every shard has visited every rank. Each rank sends N − 1
    shards of 1/N of the result: (N − 1)/N of it, as much as in the reduce-scatter.""")


@exercise
def ring_all_gather(shard: torch.Tensor) -> torch.Tensor:
    """Return the shards of all ranks, in the order of ranks, as one flat tensor.

    `shard` is flat and keeps its values. Its size is the same on every rank.
    Each rank passes one shard at a time to the right, world size − 1 times.
    Use only messages: send, recv, isend, irecv.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = [shard] * world_size
    for step in range(world_size - 1):
        outgoing = shards[(rank - step) % world_size]
        incoming = pass_right(outgoing)
        shards[(rank - step - 1) % world_size] = incoming
    return torch.cat(shards)


exercise.edit("one-step-short", {"range(world_size - 1)": "range(world_size - 2)"}, """
    One step is missing: each rank lacks the shard of its right neighbour, which arrives last.
    Next: count the shards that a rank has to receive.""")

exercise.edit("one-step-more", {"range(world_size - 1)": "range(world_size)"}, """
    You make one step too many: after `world_size - 1` steps, every rank has all shards. A single rank has no
    neighbour, so it makes no step. Next: count the shards that a rank has to receive.""")

exercise.edit("passes-its-own", {"shards[(rank - step) % world_size]": "shard"}, """
    Every rank passes on its own shard in every step, so its right neighbour receives the same data each time, and no
    other rank receives it. Next: pass on the shard that you received in the step before.""")

exercise.edit("as-they-arrive", {"[shard] * world_size": "[shard]", "shards[(rank - step) % world_size]": "shards[-1]",
    "shards[(rank - step - 1) % world_size] = incoming": "shards.append(incoming)"}, """
    You joined the shards in the order in which they arrive: on rank r this is r, r − 1, r − 2, and so on, a different
    order on each rank. Next: work out from the rank and the step whose shard arrives, and put it at that index.""")

exercise.edit("in-front", {"[shard] * world_size": "[shard]", "shards[(rank - step) % world_size]": "shards[0]",
    "shards[(rank - step - 1) % world_size] = incoming": "shards.insert(0, incoming)"}, """
    You put each received shard in front of the others, so a rank's own shard comes last. This is the order of ranks
    only on the last rank.
    Next: work out from the rank and the step whose shard arrives, and put it at that index.""")

exercise.edit("index-grows", {"shards = ": "incoming = shard\nshards = ",
    "shards[(rank - step) % world_size]": "incoming", "rank - step - 1": "rank + step + 1"}, """
    The shards are at mirrored indices. In each step, you receive the shard of a rank one further to the left than
    before, so its number falls by one. Next: draw three ranks, and write down whose shard rank 0 receives in each
    step.""")

exercise.edit("sends-and-then-receives", {"pass_right(outgoing)": "torch.empty_like(outgoing)\n"
    "dist.send(outgoing, dst=(rank + 1) % world_size)\ndist.recv(incoming, src=(rank - 1) % world_size)"}, """
    Every rank sends before it receives, so all wait: the deadlock that you repaired in `pass_right`.
    Next: call `pass_right`, or use `dist.isend` and wait for it after the recv.""")

exercise.variant_edit("negative-indices", {"(rank - step) % world_size": "rank - step",
    "(rank - step - 1) % world_size": "rank - step - 1"})


@exercise.variant
def turns_the_order(shard: torch.Tensor) -> torch.Tensor:
    arrived = [shard]  # this rank's, its left neighbour's, and so on, down the ring
    for _ in range(dist.get_world_size() - 1):
        arrived.append(pass_right(arrived[-1]))
    return torch.cat([arrived[(dist.get_rank() - rank) % len(arrived)] for rank in range(len(arrived))])
