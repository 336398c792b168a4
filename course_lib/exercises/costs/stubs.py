"""What the cells of lesson 08 start from, under the names that the learner's functions have."""

from __future__ import annotations


def ring_seconds(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    """Return how long a collective takes along a ring of so many ranks.

    `op` is "all_reduce", "reduce_scatter" or "all_gather", `nbytes` is the size of the whole tensor.
    A message takes alpha seconds, and 1 / bandwidth seconds more for each of its bytes.
    """
    raise NotImplementedError


def fit_link(sizes: list[int], seconds: list[float], ranks: int) -> tuple[float, float]:
    """Return alpha and bandwidth, from the seconds that all-reduces of these sizes took along a ring.

    They make the sum of the squared relative errors smallest: with
    error = (what ring_seconds says - what was measured) / what was measured.
    """
    raise NotImplementedError


def forward_seconds(gather: list[float], compute: list[float], ahead: int) -> float:
    """Return how long the forward of stage 3 takes. Unit i is gathered in gather[i], computed in compute[i].

    One gather runs at a time, and one unit computes at a time, both in the order of the units.
    Unit i computes once it is gathered. Its own gather begins when unit i - ahead - 1 has computed.
    """
    raise NotImplementedError


def leaving_bytes(psi: int, world_size: int, devices: int, shard_size: int) -> float:
    """Return the bytes that leave a node of so many devices in a step of hybrid stage 3, all in 16 bits.

    Groups of `shard_size` neighbouring ranks gather parameters twice, and reduce-scatter gradients;
    then ranks with the same shard all-reduce its gradient. A ring leaves a node once, or never.
    """
    raise NotImplementedError


def count_paths(log: str) -> dict[str, int]:
    """Return how many connections NCCL's log tells of, by their path.

    Paths are "P2P", "SHM", "NET/Socket", "NET/IB" and "NET/IB/GDRDMA"; those that do not occur are
    left out. A connection over the network is told twice, by its sender and by its receiver.
    """
    raise NotImplementedError
