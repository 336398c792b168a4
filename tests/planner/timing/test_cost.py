"""Seconds of collectives: alpha and beta, rings and trees, within a node and across."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from course_lib.errors import CourseError
from course_lib.planner import HARDWARE, Group, Link, bus_bandwidth, ring_seconds
from course_lib.planner.timing.cost import seconds, tree_seconds

LINK = Link(alpha=1e-6, bandwidth=100e9)
NODE = Group(members=4, nodes=1, inside=LINK)
NODES = Group(members=4, nodes=8, inside=LINK, across=Link(alpha=10e-6, bandwidth=50e9))


@pytest.mark.parametrize(
    ("op", "hops", "wholes"),
    [("all_reduce", 6, 1.5), ("reduce_scatter", 3, 0.75), ("all_gather", 3, 0.75), ("broadcast", 3, 1)],
)
def test_a_ring_in_a_node(op: str, hops: int, wholes: float) -> None:
    assert ring_seconds(op, 1e9, NODE) == pytest.approx(hops * 1e-6 + wholes * 1e9 / 100e9)


def test_a_ring_across_nodes_is_as_fast_as_the_nodes_way_out() -> None:
    # Of 31 hops, 7 cross the network.
    assert ring_seconds("all_gather", 1e9, NODES) == pytest.approx(24e-6 + 70e-6 + 31 / 32 * 1e9 / 50e9)


@pytest.mark.parametrize(("ranks", "milliseconds"), [(256, 1.74), (1024, 3.40), (4096, 10.05)])
def test_a_layer_of_llama_7b_is_gathered_with_ll128(ranks: int, milliseconds: float) -> None:
    """8.4 µs; 4 µs for each of `ranks` / 8 - 1 hops between nodes, 1.9 µs for each other; 405 MB at 341 GB/s."""
    group, nbytes = HARDWARE["h100-infiniband"].shard_group(ranks), 2 * 202_383_360

    assert 1e3 * seconds("all_gather", nbytes, group) == pytest.approx(milliseconds, abs=0.005)


def test_without_nvlink_small_messages_go_by_ll() -> None:
    group = HARDWARE["rtx-4090"].shard_group(4)

    assert seconds("all_gather", 1200, group) == pytest.approx(8.4e-6 + 3 * 1e-6 + 900 / 12e9)


def test_a_group_with_one_rank_a_node_uses_only_the_network() -> None:
    """3 hops, 3/4 of 400 bytes at 100 bytes a second, although the link in the node is slower."""
    group = Group(members=1, nodes=4, inside=Link(alpha=0, bandwidth=50), across=Link(alpha=1, bandwidth=100))

    assert ring_seconds("all_gather", 400, group) == 3 + 3


def test_a_group_in_a_node_does_not_use_the_network() -> None:
    group = Group(members=4, nodes=1, inside=Link(alpha=1, bandwidth=100), across=Link(alpha=9, bandwidth=50))

    assert ring_seconds("all_gather", 400, group) == 3 + 3


def test_a_tree_pays_for_its_depth() -> None:
    # Up and down: a chain of 3 in the node, and log2(8) levels across.
    assert tree_seconds("all_reduce", 0, NODES) == pytest.approx(2 * (3e-6 + 30e-6))


def test_trees_win_for_small_messages_and_rings_for_large_ones() -> None:
    for nbytes, faster in ((1e3, tree_seconds), (1e11, ring_seconds)):
        assert seconds("all_reduce", nbytes, NODES) == faster("all_reduce", nbytes, NODES)
    assert tree_seconds("all_reduce", 1e3, NODES) < ring_seconds("all_reduce", 1e3, NODES)


def test_one_rank_sends_nothing() -> None:
    alone = Group(members=1, nodes=1, inside=LINK, launch=1.0)

    assert [f("all_reduce", 1e9, alone) for f in (ring_seconds, tree_seconds)] == [0, 0]


def test_an_operation_that_is_none_is_refused() -> None:
    with pytest.raises(CourseError, match=r"op='all_redce': .* Choose one of 'all_reduce'"):
        ring_seconds("all_redce", 1e9, NODE)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_bus_bandwidth_is_the_links_whatever_the_op_and_the_ranks(op: str) -> None:
    for ranks in (2, 3, 8):
        group = Group(members=ranks, nodes=1, inside=Link(alpha=0, bandwidth=100e9))
        assert bus_bandwidth(op, 1e9, ring_seconds(op, 1e9, group), ranks) == pytest.approx(100e9)


# Which way is chosen: with one rank's link at a byte a second, a second of alpha, and half a second before the first

SWITCHED = Group(
    members=4, nodes=1, inside=Link(alpha=1, bandwidth=1), launch=0.5, switch=Link(alpha=2, bandwidth=3)
)  # fmt: skip


def test_each_way_begins_with_a_launch() -> None:
    """A ring passes 2 x 3 hops and 2 x 3/4 of the bytes, a tree 2 x 3 hops and 2 x all of them."""
    assert ring_seconds("all_reduce", 8, SWITCHED) == 0.5 + 2 * (3 + 6)
    assert tree_seconds("all_reduce", 8, SWITCHED) == 0.5 + 2 * (3 + 8)
    assert tree_seconds("broadcast", 8, SWITCHED) == 0.5 + 3 + 8


def test_switches_add_in_a_node_of_three_or_more() -> None:
    """2 s, and 2 x 3/4 of the bytes at 3 bytes a second. Two ranks, nodes and other calls go along a ring."""
    assert seconds("all_reduce", 8, SWITCHED) == 0.5 + 2 + 12 / 3
    assert seconds("reduce_scatter", 8, SWITCHED) == ring_seconds("reduce_scatter", 8, SWITCHED)
    for other in (replace(SWITCHED, members=2), replace(SWITCHED, switch=None)):
        assert seconds("all_reduce", 8, other) == ring_seconds("all_reduce", 8, other)
    nodes = replace(SWITCHED, nodes=2, across=Link(alpha=1, bandwidth=1))
    assert seconds("all_reduce", 8, nodes) == tree_seconds("all_reduce", 8, nodes)
    three = replace(SWITCHED, members=3, inside=Link(alpha=9, bandwidth=1))
    assert seconds("all_reduce", 9, three) == 0.5 + 2 + 2 * 2 / 3 * 9 / 3


def test_a_broadcast_goes_along_a_tree_if_that_is_faster() -> None:
    """8 nodes of one rank: 7 hops along a ring, 3 levels of a tree."""
    nodes = Group(members=1, nodes=8, inside=LINK, across=Link(alpha=1, bandwidth=1))

    assert seconds("broadcast", 4, nodes) == tree_seconds("broadcast", 4, nodes) == 3 + 4
    assert ring_seconds("broadcast", 4, nodes) == 7 + 4


def test_an_uneven_tree_is_as_deep_as_the_next_power() -> None:
    nodes = Group(members=3, nodes=5, inside=Link(alpha=1, bandwidth=8), across=Link(alpha=10, bandwidth=4))

    assert tree_seconds("broadcast", 8, nodes) == 2 * 1 + 3 * 10 + 8 / 4


def test_small_messages_take_the_protocol_of_small_messages_on_both_links() -> None:
    """4 x 2 ranks: 6 hops in nodes, 1 across; 7/8 of the bytes, at half of the narrower link's 4 bytes a second."""
    fast = {"small_alpha": 1, "small_share": 0.5}
    group = Group(
        members=4, nodes=2, inside=Link(alpha=10, bandwidth=8, **fast), across=Link(alpha=20, bandwidth=4, **fast)
    )

    assert seconds("all_gather", 8, group) == 6 * 1 + 1 + 7 / 2
    assert seconds("all_gather", 8000, group) == 6 * 10 + 20 + 7000 / 4
    half = replace(group, across=Link(alpha=20, bandwidth=4))  # a link without it: no protocol at all
    assert seconds("all_gather", 8, half) == 6 * 10 + 20 + 7 / 4


# Where groups lie

MACHINE = HARDWARE["h100-infiniband"]


@pytest.mark.parametrize(
    ("shards", "replicas", "members", "nodes", "rivals"),
    [(1, 8, 8, 1, 1), (1, 64, 8, 8, 1), (2, 32, 4, 8, 2), (8, 8, 1, 8, 8), (16, 4, 1, 4, 8), (3, 2, 2, 1, 3),
     (1, 12, 8, 2, 1), (4, 3, 2, 2, 4), (12, 2, 1, 2, 8)],
)  # fmt: skip
def test_replicas_share_the_nodes_way_out(shards: int, replicas: int, members: int, nodes: int, rivals: int) -> None:
    group = MACHINE.replica_group(shards, replicas)

    assert (group.members, group.nodes) == (members, nodes)
    assert group.across is not None and group.across.bandwidth == 400e9 / rivals


def test_a_shard_group_fills_a_node_before_the_next() -> None:
    assert (MACHINE.shard_group(4).members, MACHINE.shard_group(4).nodes) == (4, 1)
    assert (MACHINE.shard_group(32).members, MACHINE.shard_group(32).nodes) == (8, 4)


@pytest.mark.parametrize(
    ("group", "reason"),
    [(lambda: MACHINE.shard_group(12), "no whole number of nodes of 8"),
     (lambda: MACHINE.replica_group(3, 8), "do not fall evenly"),
     (lambda: MACHINE.shard_group(20), "no whole number")],
)  # fmt: skip
def test_groups_that_do_not_fit_the_nodes_are_refused(group: Callable[[], Group], reason: str) -> None:
    with pytest.raises(CourseError, match=reason):
        group()


def test_one_node_has_no_way_out() -> None:
    node = HARDWARE["h100"]

    assert node.shard_group(8).across is None
    with pytest.raises(CourseError, match="one node with 8 devices"):
        node.shard_group(16)
