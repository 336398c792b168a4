"""The time of a collective: the alpha-beta model, for rings and trees, within a node and across nodes.

A message of n bytes takes alpha + n / bandwidth. A ring of N passes each of N pieces from neighbour to neighbour; one
hop in each node crosses the network, with the bandwidth of all its ports. A tree pays alpha for its depth only. For
smaller messages, protocol LL128 sends a flag with every 120 bytes: a smaller alpha, and 92 % of the bandwidth; without
NVLink it is LL, with a flag for every 4 bytes and half the bandwidth. On NVSwitch nodes the switches add (NVLS). NCCL
chooses with the same arithmetic (src/graph/tuning.cc), and calls alpha "hwLat".
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ..training.checks import known

PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1, "all_to_all": 1}
"""How many times a ring of N carries (N-1)/N of the whole from each member to the next.

In an all-to-all each rank sends (N-1)/N of what it has itself, which is called the whole here, to the others.
"""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link: alpha, in seconds per message, and the bytes per second that one direction carries.

    Attributes:
        small_alpha: alpha of NCCL's protocol for smaller messages; None if there is no such protocol.
        small_share: the part of the bandwidth that this protocol reaches: LL128's.
    """

    alpha: float
    bandwidth: float
    small_alpha: float | None = None
    small_share: float = 0.92


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of ranks, and the links between them.

    Attributes:
        members: ranks of the group in one node.
        nodes: the number of nodes that it spans.
        inside: the link from a rank to its neighbour in the node.
        across: the group's share of a node's network link; None if it does not span nodes.
        launch: seconds before the first message of any collective.
        switch: the switches of a node that add; None without them. Its bandwidth is as `bus_bandwidth` counts.
    """

    members: int
    nodes: int
    inside: Link
    across: Link | None = None
    launch: float = 0.0
    switch: Link | None = None

    @property
    def ranks(self) -> int:
        return self.members * self.nodes

    @property
    def bandwidth(self) -> float:
        """Bytes per second along a ring or a tree: the narrowest link's."""
        links = [self.inside] if self.members > 1 else []
        return min(link.bandwidth for link in links + ([self.across] if self.across and self.nodes > 1 else []))

    @cached_property
    def small(self) -> "Group":
        """The group with the protocol for smaller messages on all links, or itself if a link has none."""
        links = [self.inside, *([self.across] if self.across else [])]
        small = [Link(alpha=one.small_alpha, bandwidth=one.small_share * one.bandwidth)
                 for one in links if one.small_alpha is not None]  # fmt: skip
        if len(small) < len(links):
            return self
        return replace(self, inside=small[0], across=small[1] if self.across else None)

    def alphas(self, inside: float, across: float) -> float:
        """Return the seconds for this many hops of each kind, one after the other."""
        return inside * self.inside.alpha + (across * self.across.alpha if self.across else 0.0)


def ring_seconds(op: str, nbytes: float, group: Group) -> float:
    """Return the time of `op` on `nbytes` (of the whole) along a ring.

    (N-1) alpha + (N-1)/N n / bandwidth; an all-reduce is twice that; a broadcast passes all n through each hop.

    Raises:
        PlanError: `op` is none of `PASSES`.
    """
    known("op", op, PASSES)
    if group.ranks == 1:
        return 0.0
    passes, hops, crossings = PASSES[op], group.ranks - 1, group.nodes - 1
    share = 1.0 if op == "broadcast" else hops / group.ranks
    return group.launch + passes * (group.alphas(hops - crossings, crossings) + share * nbytes / group.bandwidth)


def exchange_seconds(nbytes: float, group: Group, copies: int = 1) -> float:
    """Return the time of an all-to-all in which each rank has `nbytes`: a message to each other rank.

    What stays in the node and what leaves it go at once. The ranks of a node share its network link.
    """
    inside = (group.members - 1) / group.ranks * nbytes / group.inside.bandwidth
    across = group.members * crossing(group, copies) * nbytes / group.across.bandwidth if group.across else 0.0
    return group.launch + group.alphas(group.members - 1, group.ranks - group.members) + max(inside, across)


def crossing(group: Group, copies: int = 1) -> float:
    """Return the part of what a rank has that leaves its node in an all-to-all: (N - members)/N.

    If `copies` of each token go to ranks at random, it can cross to each node once and be copied there, as DeepEP does
    (github.com/deepseek-ai/DeepEP): it reaches 1 - (1 - 1/nodes)^copies of the nodes.
    """
    return (group.nodes - 1) * (1 - (1 - 1 / group.nodes) ** copies) / copies


def tree_seconds(op: str, nbytes: float, group: Group) -> float:
    """Return the time of an all-reduce or a broadcast by NCCL's two trees, which together use every link both ways.

    A chain inside each node, a binary tree across them: ((m-1) alpha + log2(nodes) alpha' + n / bandwidth), and twice
    that for an all-reduce, up and down.
    """
    if group.ranks == 1:
        return 0.0
    depth = math.ceil(math.log2(group.nodes))
    return group.launch + PASSES[op] * (group.alphas(group.members - 1, depth) + nbytes / group.bandwidth)


def seconds(op: str, nbytes: float, group: Group, copies: int = 1) -> float:
    """Return the time of `op` by the fastest way, as NCCL chooses: ring or tree, Simple or LL128, or NVLS in a node.

    `copies` of each token are in an all-to-all: see `crossing`.
    """
    if op == "all_to_all":
        return exchange_seconds(nbytes, group, copies) if group.ranks > 1 else 0.0
    times = [
        way(op, nbytes, one)
        for one in (group, group.small)
        for way in ((ring_seconds, tree_seconds) if op in ("all_reduce", "broadcast") else (ring_seconds,))
    ]
    if op == "all_reduce" and group.switch and group.nodes == 1 and group.ranks > 2:
        passed = PASSES[op] * (group.ranks - 1) / group.ranks * nbytes
        times.append(group.launch + group.switch.alpha + passed / group.switch.bandwidth)
    return min(times)


def bus_bandwidth(op: str, nbytes: float, measured_seconds: float, ranks: int) -> float:
    """Return the bytes per second that each rank's link carried, as NCCL's tests define it (doc/PERFORMANCE.md).

    n / t times 2(N-1)/N for an all-reduce, (N-1)/N for a reduce-scatter or an all-gather, 1 for a broadcast. Where
    switches add, as with NVLS, no link carried that much.
    """
    factor = 1.0 if op == "broadcast" else PASSES[op] * (ranks - 1) / ranks
    return factor * nbytes / measured_seconds
