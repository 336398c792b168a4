"""The time of a collective: the alpha-beta model, for rings and trees, within a node and across nodes.

A message of n bytes takes alpha + n / bandwidth. A ring of N passes each of N pieces from neighbour to neighbour. When
it spans nodes, one hop in each node crosses the network. Rings are laid through every network port of the node at once,
so the ring may use the bandwidth of all ports together. A tree pays alpha for its depth, not for its length. For small
messages, protocol LL sends a flag with every 4 bytes: a smaller alpha, and half the bandwidth. On NVSwitch nodes the
switches add (NVLS). NCCL chooses with the same arithmetic (src/graph/tuning.cc), and calls alpha "hwLat".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..training.checks import known, whole

PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1}
"""How many times a ring of N carries (N-1)/N of the whole from each member to the next."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link: alpha, in seconds per message, and the bytes per second that one direction carries.

    Attributes:
        small_alpha: alpha of NCCL's protocol LL, which carries half the bytes; None if there is no such protocol.
    """

    alpha: float
    bandwidth: float
    small_alpha: float | None = None

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and self.bandwidth > 0):
            raise ValueError(
                f"Link(alpha={self.alpha!r}, bandwidth={self.bandwidth!r}): a message cannot take less than no time, "
                "and some bytes must pass. Give alpha >= 0 seconds and bandwidth > 0 bytes a second."
            )


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

    def __post_init__(self) -> None:
        whole("members", self.members)
        whole("nodes", self.nodes)
        if self.nodes > 1 and self.across is None:
            raise ValueError(f"a group that spans {self.nodes} nodes needs a network between them: give `across`.")

    @property
    def ranks(self) -> int:
        return self.members * self.nodes

    @property
    def bandwidth(self) -> float:
        """Bytes per second along a ring or a tree: the narrowest link's."""
        links = [self.inside] if self.members > 1 else []
        return min(link.bandwidth for link in links + ([self.across] if self.across and self.nodes > 1 else []))

    def alphas(self, inside: float, across: float) -> float:
        """Return the seconds for this many hops of each kind, one after the other."""
        return inside * self.inside.alpha + (across * self.across.alpha if self.across else 0.0)


def ring_seconds(op: str, nbytes: float, group: Group) -> float:
    """Return the time of `op` on `nbytes` (of the whole) along a ring.

    (N-1) alpha + (N-1)/N n / bandwidth; an all-reduce is twice that; a broadcast passes all n through each hop.
    """
    known("op", op, PASSES)
    if group.ranks == 1:
        return 0.0
    passes, hops, crossings = PASSES[op], group.ranks - 1, group.nodes - 1
    share = 1.0 if op == "broadcast" else hops / group.ranks
    return group.launch + passes * (group.alphas(hops - crossings, crossings) + share * nbytes / group.bandwidth)


def tree_seconds(op: str, nbytes: float, group: Group) -> float:
    """Return the time of an all-reduce or a broadcast by NCCL's two trees, which together use every link both ways.

    A chain inside each node, a binary tree across them: ((m-1) alpha + log2(nodes) alpha' + n / bandwidth), and twice
    that for an all-reduce, up and down.
    """
    if op not in ("all_reduce", "broadcast"):
        raise ValueError(f"op={op!r}: a tree combines or spreads one whole, it cuts nothing. Ask for a ring instead.")
    if group.ranks == 1:
        return 0.0
    depth = math.ceil(math.log2(group.nodes))
    return group.launch + PASSES[op] * (group.alphas(group.members - 1, depth) + nbytes / group.bandwidth)


def seconds(op: str, nbytes: float, group: Group) -> float:
    """Return the time of `op` by the fastest way, as NCCL chooses: ring or tree, Simple or LL, or NVLS in a node."""
    times = [
        way(op, nbytes, one)
        for one in (group, _small(group))
        for way in ((ring_seconds, tree_seconds) if op in ("all_reduce", "broadcast") else (ring_seconds,))
    ]
    if op == "all_reduce" and group.switch and group.nodes == 1 and group.ranks > 2:
        passed = PASSES[op] * (group.ranks - 1) / group.ranks * nbytes
        times.append(group.launch + group.switch.alpha + passed / group.switch.bandwidth)
    return min(times)


def _small(group: Group) -> Group:
    """Return the group with NCCL's protocol LL on all links, or unchanged if a link has none."""
    links = [group.inside, *([group.across] if group.across else [])]
    small = [Link(alpha=one.small_alpha, bandwidth=one.bandwidth / 2) for one in links if one.small_alpha is not None]
    if len(small) < len(links):
        return group
    return replace(group, inside=small[0], across=small[1] if group.across else None)


def bus_bandwidth(op: str, nbytes: float, measured_seconds: float, ranks: int) -> float:
    """Return the bytes per second that each rank's link carried, as NCCL's tests define it (doc/PERFORMANCE.md).

    That holds where ranks pass messages, as in a ring. Where switches add, as with NVLS, no link carried that much.

    It does not depend on the number of ranks: n / t times 2(N-1)/N for an all-reduce, (N-1)/N for a reduce-scatter or
    an all-gather, 1 for a broadcast.

    Raises:
        ValueError: there is no such op, or it took no time.
    """
    known("op", op, PASSES)
    if not measured_seconds > 0:
        raise ValueError(f"measured_seconds={measured_seconds!r}: what is sent takes time. Measure again, or larger.")
    factor = 1.0 if op == "broadcast" else PASSES[op] * (ranks - 1) / ranks
    return factor * nbytes / measured_seconds


def fit(op: str, sizes: Sequence[float], measured_seconds: Sequence[float], ranks: int) -> Link:
    """Return the link that explains how long `op` on `sizes` bytes took along a ring of `ranks` in one node.

    Least squares on relative errors, so that microseconds count as much as seconds.

    Raises:
        ValueError: fewer than two sizes, or measurements that no link explains.
    """
    known("op", op, PASSES)
    if len(sizes) != len(measured_seconds):
        raise ValueError(f"fit: {len(sizes)} sizes and {len(measured_seconds)} times. Give a time for each size.")
    points = list(zip(sizes, measured_seconds, strict=True))
    if len(set(sizes)) < 2 or ranks < 2 or min(measured_seconds) <= 0:
        raise ValueError(
            f"fit: {len(set(sizes))} different sizes, {ranks} ranks, shortest time {min(measured_seconds, default=0)}: "
            "alpha and bandwidth are two unknowns of messages between ranks. Measure two sizes or more, on two ranks "
            "or more, in positive seconds."
        )
    # t = a + b n, each equation divided by t: minimise the sum of (a / t + b n / t - 1)^2.
    aa, ab, bb = (sum(n**power / t**2 for n, t in points) for power in (0, 1, 2))
    a_side, b_side = sum(1 / t for _, t in points), sum(n / t for n, t in points)
    determinant = aa * bb - ab**2
    constant, slope = (a_side * bb - b_side * ab) / determinant, (aa * b_side - ab * a_side) / determinant
    if slope <= 0 or constant < 0:
        raise ValueError(
            f"fit: the best line is {constant:.3g} s + {slope:.3g} s a byte, which no link is: larger messages did "
            "not take longer, or the smallest took no time. Measure again, more often, or over a wider range of sizes."
        )
    hops = PASSES[op] * (ranks - 1)
    share = 1.0 if op == "broadcast" else hops / ranks
    return Link(alpha=constant / hops, bandwidth=share / slope)
