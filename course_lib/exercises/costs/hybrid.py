"""What leaves a node in hybrid sharding."""

from __future__ import annotations

import random

from ..form.declare import Case, Exercise, Mistake
from . import stubs

WIDTH = 2  # bytes of a parameter, and of a gradient


def leaving_bytes(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    """Return the bytes that leave a node of so many devices in a step of hybrid stage 3, all in 16 bits."""
    whole, replicas = 2 * psi, world_size // shard_size
    leaving = 0.0
    if shard_size > devices:  # the groups that share one model span nodes: two all-gathers, one reduce-scatter
        leaving += 3 * (shard_size - 1) / shard_size * whole
    if world_size > devices:  # one ring for each shard that the node holds
        rings = min(shard_size, devices)
        leaving += rings * 2 * (replicas - 1) / replicas * whole / shard_size
    return leaving


def priced(
    psi: int, world_size: int, devices: int, shard_size: int, *, rounds: float = 3, all_reduce: float = 2,
    rings: int | None = None, shards_leave: bool | None = None, shard: float | None = None,
) -> float:  # fmt: skip
    """As `leaving_bytes`, with what a mistake counts differently: rounds of the shard groups, what the all-reduce of
    a whole of 1 byte sends, rings that leave a node, whether shard groups leave it, and the bytes of a shard."""
    whole, replicas = WIDTH * psi, world_size // shard_size
    leaves = shard_size > devices if shards_leave is None else shards_leave
    rings = min(shard_size, devices) if rings is None else rings
    shard = whole / shard_size if shard is None else shard
    gathers = rounds * (shard_size - 1) / shard_size * whole if leaves else 0.0
    return gathers + (rings * all_reduce * (replicas - 1) / replicas * shard if world_size > devices else 0.0)


def groups_always_leave(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, shards_leave=world_size > devices)


def groups_never_leave(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, shards_leave=False)


def one_gather(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, rounds=2)


def sharded_over_all(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return 3 * (world_size - 1) / world_size * WIDTH * psi


def copies_alone(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    replicas = world_size // shard_size
    return 2 * (replicas - 1) / replicas * WIDTH * psi


def a_copy_each_node(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    nodes = max(1, world_size // devices)
    return 2 * (nodes - 1) / nodes * WIDTH * psi


def no_all_reduce(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, rings=0)


def one_ring(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, rings=1)


def a_ring_each_device(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, rings=devices)


def a_ring_each_shard(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, rings=shard_size)


def whole_gradients(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, shard=WIDTH * psi)


def all_reduce_once_round(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return priced(psi, world_size, devices, shard_size, all_reduce=1)


def elements(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return leaving_bytes(psi, world_size, devices, shard_size) / WIDTH


def in_fp32(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return 2 * leaving_bytes(psi, world_size, devices, shard_size)


def every_rank(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return devices * leaving_bytes(psi, world_size, devices, shard_size)


def all_nodes(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    return max(1, world_size // devices) * leaving_bytes(psi, world_size, devices, shard_size)


def also_in_one_node(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    more = priced(psi, max(world_size, devices + 1), devices, shard_size)
    return more if world_size > devices else priced(psi, world_size, 0, shard_size, rings=min(shard_size, devices))


def shares_forgotten(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    whole, replicas = WIDTH * psi, world_size // shard_size
    gathers = 3 * whole if shard_size > devices else 0.0
    sums = 2 * min(shard_size, devices) * whole / shard_size if world_size > devices and replicas > 1 else 0.0
    return gathers + sums


def by_fractions(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    if world_size <= devices:
        return 0
    sums = 4 * psi * (1 - shard_size / world_size) * min(devices / shard_size, 1)
    return sums + (0 if shard_size <= devices else 6 * psi * (1 - 1 / shard_size))


def ring_by_ring(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    def sent_by_last_rank_of_node(group: list[int], nbytes: float) -> float:
        """Bytes on the hop of the ring that leaves the first node, if there is one."""
        inside = [rank for rank in group if rank < devices]
        return nbytes * (len(group) - 1) / len(group) if inside and len(inside) < len(group) else 0.0

    gradient = 2 * psi
    leaving = 3 * sent_by_last_rank_of_node(list(range(shard_size)), gradient)
    for shard in range(min(shard_size, devices)):
        leaving += 2 * sent_by_last_rank_of_node(list(range(shard, world_size, shard_size)), gradient / shard_size)
    return leaving


WORLDS = ((32, 8, 8), (32, 8, 32), (64, 4, 16), (8, 8, 4), (24, 4, 2))
"""(world_size, devices, shard_size) of each draw."""


def draw(rng: random.Random, number: int) -> Case:
    psi, (world_size, devices, shard_size) = rng.randint(10**3, 10**6), WORLDS[number % len(WORLDS)]
    about = f"psi = {psi:,}, {world_size} ranks in nodes of {devices}, sharded over {shard_size}"
    return Case(world_size=0, args=lambda rank: (psi, world_size, devices, shard_size), about=about)


HYBRID = Exercise(
    name="costs.hybrid",
    title="What leaves a node",
    task="Return the bytes that one node sends to other nodes in a step. Neighbouring ranks share one copy of the "
    "model, `shard_size` of them: two all-gathers of its parameters and a reduce-scatter of its gradients, along one "
    "ring for each such group. Then the ranks that hold the same shard all-reduce the gradient *of this shard*, along "
    "one ring for each shard. Parameters and gradients have 2 bytes. A ring whose ranks lie in several nodes leaves "
    "each of these once, and carries there what any rank of it sends.",
    stub=stubs.leaving_bytes,
    reference=leaving_bytes,
    draw=draw,
    case_count=len(WORLDS),
    variants={"fractions": by_fractions, "ring-by-ring": ring_by_ring},
    mistakes=[
        Mistake(
            id="groups-always-leave",
            solution=groups_always_leave,
            told="The gathers leave the node even where the group that shares the model fits into it. That they do not "
            "is what hybrid sharding is for.",
            action="Count gathers and reduce-scatter only where `shard_size > devices`.",
        ),
        Mistake(
            id="groups-never-leave",
            solution=groups_never_leave,
            told="Gathers and the reduce-scatter never leave the node in your count. They do where the group is larger "
            "than the node.",
            action="Add them where `shard_size > devices`.",
        ),
        Mistake(
            id="one-gather",
            solution=one_gather,
            told="You count two rounds of the group that shares the model. Stage 3 makes three: gathered in forward, "
            "gathered again in backward, and gradients reduce-scattered.",
            action="Count three rounds.",
        ),
        Mistake(
            id="sharded-over-all",
            solution=sharded_over_all,
            told="You count as if all ranks shared one copy. They do so in groups of `shard_size`.",
            action="Use `shard_size` for the gathers, and then add the all-reduce among the copies.",
        ),
        Mistake(
            id="copies-alone",
            solution=copies_alone,
            told="You count one all-reduce of the whole gradient among the copies. That is right where a copy fits the "
            "node. It is too little where gathers leave the node, and wrong where nothing does.",
            action="Tell apart where `shard_size > devices`, and where all ranks are in one node.",
        ),
        Mistake(
            id="a-copy-each-node",
            solution=a_copy_each_node,
            told="You count as if each node had one copy of the model. There are `world_size // shard_size` copies.",
            action="Compute the number of copies from `shard_size`.",
        ),
        Mistake(
            id="no-all-reduce",
            solution=no_all_reduce,
            told="The copies of the model never agree: after the reduce-scatter, each group has the sum of its own "
            "gradients only.",
            action="Add the all-reduce among ranks with the same shard.",
        ),
        Mistake(
            id="one-ring",
            solution=one_ring,
            told="One ring of the all-reduce leaves your node. There is one for each shard that the node holds.",
            action="Count as many rings as there are different shards in the node.",
        ),
        Mistake(
            id="a-ring-each-device",
            solution=a_ring_each_device,
            told="You count a ring for each device. Where the node holds several copies of a shard, these are in the "
            "same ring, which leaves the node once.",
            action="Count as many rings as there are *different* shards in the node.",
        ),
        Mistake(
            id="a-ring-each-shard",
            solution=a_ring_each_shard,
            told="You count the rings of all shards. Where there are more shards than devices, a node holds some only.",
            action="Count no more rings than the node has devices.",
        ),
        Mistake(
            id="whole-gradients",
            solution=whole_gradients,
            told="Each ring of the all-reduce carries the whole gradient. A rank has the gradient of its shard, "
            "1/shard_size of it.",
            action="Divide the bytes of the all-reduce by `shard_size`.",
        ),
        Mistake(
            id="all-reduce-once-round",
            solution=all_reduce_once_round,
            told="The all-reduce goes round once. It is two rounds: 2(R−1)/R of its bytes, for R copies.",
            action="Count the all-reduce twice.",
        ),
        Mistake(
            id="elements",
            solution=elements,
            told="These are elements, and not bytes.",
            action="Multiply by 2: everything has 16 bits.",
        ),
        Mistake(
            id="in-fp32",
            solution=in_fp32,
            told="You count 4 bytes for each parameter. All is in 16 bits here.",
            action="Count 2 bytes.",
        ),
        Mistake(
            id="every-rank",
            solution=every_rank,
            told="You count as if each device of the node sent the node's bytes to the others. On a ring one rank of "
            "the node hands on what leaves it.",
            action="Do not multiply by `devices`.",
        ),
        Mistake(
            id="all-nodes",
            solution=all_nodes,
            told="This is what all nodes send together.",
            action="Do not multiply by the number of nodes.",
        ),
        Mistake(
            id="also-in-one-node",
            solution=also_in_one_node,
            told="Something leaves the node although all ranks are in it.",
            action="Ask whether `world_size > devices`.",
        ),
        Mistake(
            id="shares-forgotten",
            solution=shares_forgotten,
            told="You leave out the (N−1)/N of a ring of N ranks: of what goes round, each rank has one piece already.",
            action="Multiply by (N−1)/N: N is `shard_size` in one ring, and the number of copies in the other.",
        ),
    ],
    hints=[
        "There are two kinds of rings. Which ranks are in one of each kind, and are all of them in one node?",
        "A group that shares the model has `shard_size` neighbours: it leaves the node if that is more than `devices`. "
        "The ring of one shard has every `shard_size`-th rank: it leaves the node if there are several nodes. A node "
        "holds `min(shard_size, devices)` different shards.",
        "On a ring of N, a rank sends (N−1)/N of the bytes a round: three rounds for the groups, two for the "
        "all-reduce, of which each ring carries `2 * psi / shard_size` bytes.",
        "```python\nreplicas = world_size // shard_size\nleaving = 0.0\nif shard_size > devices:\n"
        "    leaving += 3 * ...\nif world_size > devices:\n"
        "    leaving += min(shard_size, devices) * 2 * (replicas - 1) / replicas * ...\n```",
    ],
    explanation="With groups that fit the node, the rings of all its shards together carry 4Ψ bytes out of the node, "
    "the volume of plain data parallel, and only once a step; with one group of all ranks it is 6Ψ. A group of two "
    "nodes has both bills to pay. Whether that hurts is a question of the network: the lesson goes on to weigh what "
    "leaves a node against seconds and memory.",
)
