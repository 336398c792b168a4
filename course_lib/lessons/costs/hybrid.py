"""Hybrid sharding: the bytes that leave a node."""

import random

from ...exercises import Case, Exercise

WORLDS = ((32, 8, 8), (32, 8, 32), (64, 4, 16), (8, 8, 4), (24, 4, 2))
"""(world_size, devices, shard_size) of each draw."""


def draw(rng: random.Random, number: int) -> Case:
    psi, (world_size, devices, shard_size) = rng.randint(10**3, 10**6), WORLDS[number % len(WORLDS)]
    what = f"psi = {psi:,}, {world_size} ranks in nodes of {devices}, sharded over {shard_size}"
    return Case(world_size=0, args=lambda rank: (psi, world_size, devices, shard_size), what=what)


exercise = Exercise("costs.hybrid", title="What leaves a node", draw=draw, case_count=len(WORLDS), task="""
    Return the bytes that one node sends to other nodes in a step. There are two kinds of rings:
    - `shard_size` neighbouring ranks share one copy of the model. Each such group makes two all-gathers of the
      parameters and one reduce-scatter of the gradients, along its own ring.
    - The ranks that hold the same shard all-reduce the gradient *of this shard*, along one ring for each shard.

    A parameter has 2 bytes, and so has a gradient. A ring whose ranks lie in several nodes leaves each of these nodes
    once. There it carries the bytes that one of its ranks sends.""", hints="""
    For each of the two kinds of rings: are all its ranks in one node?

    A group that shares the model has `shard_size` neighbours: its ring leaves the node if that is more than `devices`.
    The ring of one shard has every `shard_size`-th rank: it leaves the node if there are several nodes. A node holds
    `min(shard_size, devices)` different shards.

    On a ring of N ranks, a rank sends (N−1)/N of the bytes in each round. The groups make three rounds. The all-reduce
    is two rounds, and each of its rings carries `2 * psi / shard_size` bytes.

    ```python
    replicas = world_size // shard_size
    leaving = 0.0
    if shard_size > devices:
        leaving += 3 * ...
    if world_size > devices:
        leaving += min(shard_size, devices) * 2 * (replicas - 1) / replicas * ...
    ```
    """, explanation="""
    If a group fits in a node, the rings of all its shards together carry 4Ψ bytes out of the node, as in plain data
    parallelism. If one group contains all ranks, its ring carries 6Ψ bytes. Groups of two nodes send both kinds of
    bytes. Whether that costs time depends on the network: next, the lesson compares bytes, seconds and memory.""")


@exercise
def leaving_bytes(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    """Return the bytes that leave a node of `devices` devices in a step of hybrid stage 3, all in 16 bits.

    Groups of `shard_size` neighbouring ranks gather parameters twice, and reduce-scatter gradients;
    then ranks with the same shard all-reduce its gradient. A ring leaves a node once, or never.
    """
    whole, replicas = 2 * psi, world_size // shard_size
    leaving = 0.0
    if shard_size > devices:  # the groups that share one model span nodes: two all-gathers, one reduce-scatter
        leaving += 3 * (shard_size - 1) / shard_size * whole
    if world_size > devices:  # one ring for each shard that the node holds
        rings = min(shard_size, devices)
        leaving += rings * 2 * (replicas - 1) / replicas * whole / shard_size
    return leaving


exercise.edit("groups-always-leave", {"if shard_size > devices": "if world_size > devices"}, """
    You count the gathers as leaving the node even where a group fits in the node. Hybrid sharding exists to keep these
    gathers inside. Next: count the gathers and the reduce-scatter only where a group does not fit in a node.""")

exercise.edit("one-gather", {"3 * (": "2 * ("}, """
    You count two rounds for a group that shares the model. Stage 3 makes three: it gathers in forward, gathers again in
    backward, and reduce-scatters the gradients. Next: count three rounds.""")

exercise.edit("no-all-reduce", {"rings * 2": "rings * 0"}, """
    Your count has no all-reduce between the copies. After the reduce-scatter, each group has the sum of its own
    gradients only. Next: add the all-reduce between the ranks that hold the same shard.""")

exercise.edit("all-reduce-once", {"rings * 2": "rings"}, """
    Your all-reduce sends each byte once. An all-reduce is a reduce-scatter and an all-gather. Next: count both.""")

exercise.edit("elements-for-bytes", {"whole, replicas = 2 * psi": "whole, replicas = psi"}, """
    You count elements, and each has 2 bytes. Next: multiply the number of parameters by the bytes of each.""")

exercise.edit("every-group-leaves", {"if shard_size > devices": "if shard_size > 1"}, """
    You count the gathers of a group wherever it lies, even if all of its ranks are in one node. Next: ask whether a
    group has ranks in more than one node.""")

exercise.edit("one-kind-of-ring", {"if world_size > devices": "elif world_size > devices"}, """
    If a group spans nodes, you count its own rings only. Where several groups have a copy of the model, they also
    all-reduce gradients across nodes. Next: add the two kinds of rings, each under its own condition.""")

exercise.edit("one-ring", {"min(shard_size, devices)": "1"}, """
    In your count, one ring of the all-reduce leaves the node. There is one ring for each shard that the node holds.
    Next: count as many rings as the node has different shards.""")

exercise.edit("a-ring-each-device", {"min(shard_size, devices)": "devices"}, """
    You count a ring for each device. If the node holds several copies of a shard, the ranks with these copies are in
    the same ring, which leaves the node once. Next: count as many rings as the node has *different* shards.""")

exercise.edit("a-ring-each-shard", {"min(shard_size, devices)": "shard_size"}, """
    You count the rings of all shards. If there are more shards than devices, a node holds only some of the shards.
    Next: count at most as many rings as the node has devices.""")

exercise.edit("whole-gradients", {"whole / shard_size": "whole"}, """
    Each ring of your all-reduce carries the whole gradient. A rank holds the gradient of its shard, 1/shard_size of the
    whole. Next: divide the bytes of the all-reduce by `shard_size`.""")

exercise.edit("also-in-one-node", {"if world_size > devices": "if replicas > 1"}, """
    In your count, the all-reduce leaves the node even if all ranks are in one node.
    Next: count it only if there is a second node.""")


@exercise.variant
def fractions(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    if world_size <= devices:
        return 0
    sums = 4 * psi * (1 - shard_size / world_size) * min(devices / shard_size, 1)
    return sums + (0 if shard_size <= devices else 6 * psi * (1 - 1 / shard_size))


exercise.variant_edit("without-the-own-piece", {"3 * (shard_size - 1) / shard_size * whole":
    "3 * (whole - whole / shard_size)"})
