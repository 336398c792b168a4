"""Drawings of the algorithms: they agree with the algorithms themselves, and refuse what they cannot draw."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from course_lib import World
from course_lib.plots import plot_buckets, plot_mesh, plot_ranks
from course_lib.plots.canvas import COMPUTE
from course_lib.plots.diagrams.schedules import schedule
from tests.plots.test_plots import SVG, rects, texts

# Schedules


def test_a_bucket_travels_once_it_is_full_and_the_bucket_before_has_arrived() -> None:
    picture = plot_buckets([[("layer 2", 4), ("layer 1", 2)], [("layer 0", 2)]])
    assert picture.text.split("\n") == [
        "bucket 0 (layer 2, layer 1): fills from 0 to 6, travels from 6 to 12",
        "bucket 1 (layer 0): fills from 6 to 8, travels from 12 to 14",
    ]
    assert "Backward hides 25 % of the time in which they travel." in picture.caption  # 2 of 8
    assert {"backward", "bucket 1", "layer 2", "fills", "travels", "backward ends"} <= texts(picture.svg)


def test_the_last_gradient_has_its_name_behind_a_span_too_narrow_for_it() -> None:
    svg = plot_buckets([[("head", 90)], [("embedding", 10)]]).svg
    (name,) = (element for element in ET.fromstring(svg).iter(f"{{{SVG}}}text") if element.text == "embedding")
    _, last = rects(svg, COMPUTE)
    assert last[0] + last[2] < float(name.attrib["x"]) < last[0] + last[2] + 10


def test_without_prefetch_each_gather_waits_for_the_unit_before() -> None:
    uses = schedule([2, 2, 2], prefetch=0)
    assert [(use.unit, use.when) for use in uses] == [
        (0, "forward"), (1, "forward"), (2, "forward"), (2, "backward"), (1, "backward"), (0, "backward"),
    ]  # fmt: skip
    assert all(after.gather.start == before.compute.end for before, after in pairwise(uses))
    assert all(use.compute.start == use.gather.end for use in uses)


def test_with_prefetch_a_gather_runs_beside_the_unit_before() -> None:
    uses = schedule([2, 2, 2], prefetch=1)
    assert uses[1].gather == uses[0].compute
    assert uses[3].gather.start == uses[2].compute.end  # the first gather of backward waits for forward
    assert uses[-1].compute.end < schedule([2, 2, 2], prefetch=0)[-1].compute.end


# Nodes and ranks


def test_hybrid_sharding_crosses_the_network_with_its_replicas_only() -> None:
    picture = plot_mesh({"replicate": 2, "shard": 4}, ranks_per_node=4)
    assert picture.caption == "8 ranks on 2 nodes. Only the groups of 'replicate' cross the network."
    assert picture.text.split("\n") == [
        "replicate: 4 groups of 2 ranks, across nodes, over the network: (0, 4), (1, 5), (2, 6), (3, 7)",
        "shard: 2 groups of 4 ranks, inside a node: (0, 1, 2, 3), (4, 5, 6, 7)",
    ]
    assert {"node 0", "node 1", "0", "7"} <= texts(picture.svg)


@pytest.mark.parametrize(
    ("mesh", "ranks_per_node", "caption"),
    [
        ({"shard": 8}, 4, "8 ranks on 2 nodes. Only the groups of 'shard' cross the network."),
        ({"data": 4, "tensor": 2}, 8, "8 ranks on 1 node. No group crosses the network."),
        ({"data": 4, "tensor": 2}, 4, "8 ranks on 2 nodes. Only the groups of 'data' cross the network."),
        ({"data": 2, "tensor": 4}, 2, "8 ranks on 4 nodes. Only the groups of 'data' and 'tensor' cross the network."),
    ],
)
def test_an_axis_crosses_where_a_group_has_ranks_on_two_nodes(mesh, ranks_per_node, caption) -> None:
    assert plot_mesh(mesh, ranks_per_node).caption == caption


@pytest.mark.parametrize(
    ("mesh", "ranks_per_node"), [({}, 4), ({"a": 2, "b": 2, "c": 2}, 4), ({"a": 2, "b": 4}, 3), ({"a": 2, "b": 3}, 2)]
)
def test_a_mesh_that_cannot_be_drawn_is_refused(mesh, ranks_per_node) -> None:
    with pytest.raises(ValueError, match="draws one or two axes, whose rows are whole nodes"):
        plot_mesh(mesh, ranks_per_node)


def test_four_ranks_run_one_function() -> None:
    def ten_times():
        return 10 * dist.get_rank()

    picture = plot_ranks(ten_times, World(4).run(ten_times))
    assert {"ten_times()", "rank 0", "rank 3", "returns", "30"} <= texts(picture.svg)
    assert picture.caption == "4 ranks run one function, each on its own. Rank 3 returns 30."
    assert picture.text.split("\n")[1] == "rank 1 returns 10"


def test_a_long_result_is_cut_in_the_figure_and_whole_in_the_text() -> None:
    picture = plot_ranks(len, [torch.arange(20)] * 4)
    assert "[0, 1, 2, 3, 4, 5, 6, 7,…" in texts(picture.svg)
    assert picture.text.startswith(f"rank 0 returns {list(range(20))}")
