"""Ranks: one function on all of them, and the nodes that they are on."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from ..canvas import FAINT, INK, MEMBERS, NOTE, SHADE, SMALL, WAITING, WIDTH, Canvas, cut, ink_on, short
from ..picture import Picture

LEFT, SIDE, APART = 70, 34, 66


def plot_ranks(function: Any, results: Sequence[Any]) -> Picture:
    """Return a drawing of `function`, of the ranks that ran it, and of what each of them returned.

    Args:
        function: what ran; its name is shown.
        results: what each rank returned, such as a run. The first eight are drawn.
    """
    name, canvas, column = getattr(function, "__name__", function), Canvas(), WIDTH / min(len(results), 8)
    shown = [repr(result.tolist() if hasattr(result, "tolist") else result) for result in results]
    room = int(column / 7.5)  # letters
    middle = WIDTH / 2
    canvas.rect(middle - 110, 10, 220, 34, SHADE, rx=6)
    canvas.text(middle, 32, f"{name}()", "middle", font_family="monospace", font_size=14)
    for rank, result in enumerate(shown[:8]):
        x, width = (rank + 0.5) * column, min(column - 10, 130)
        canvas.line(middle, 44, x, 78)
        canvas.rect(x - width / 2, 78, width, 34, MEMBERS[0], stroke=FAINT, rx=6)
        canvas.text(x, 100, f"rank {rank}", "middle", fill=ink_on(MEMBERS[0]), font_weight="bold")
        canvas.add("path", d=f"M{short(x)} 112v24m-3 -4l3 4l3 -4", stroke=INK, fill="none", stroke_width=1.5)
        canvas.text(x, 154, cut(result, room), "middle", font_family="monospace")
        canvas.text(x + 8, 130, "returns", **NOTE)
    canvas.y = 158
    caption = f"{len(shown)} ranks run one function, each on its own. Rank {len(shown) - 1} returns {shown[-1]}."
    return canvas.picture(caption, "\n".join(f"rank {rank} returns {result}" for rank, result in enumerate(shown)))


class Axis(NamedTuple):
    """An axis of a mesh: its name, the groups of ranks along it, and whether a group crosses from node to node."""

    name: str
    groups: list[tuple[int, ...]]
    crosses: bool

    def __str__(self) -> str:
        many = f"{len(self.groups)} groups" if len(self.groups) > 1 else "1 group"
        where = "across nodes, over the network" if self.crosses else "inside a node"
        return f"{self.name}: {many} of {len(self.groups[0])} ranks, {where}"


def plot_mesh(mesh: Mapping[str, int], ranks_per_node: int) -> Picture:
    """Return the ranks of a mesh in rows and columns, the nodes around them, and the links of each axis.

    Args:
        mesh: one or two axes with their sizes, in the order of `init_device_mesh`: the last one counts fastest.
        ranks_per_node: ranks 0 to `ranks_per_node` - 1 are on node 0, and so on.

    Raises:
        ValueError: the mesh has no axis or more than two; or its rows are neither whole nodes nor parts of one.

    Example:
        >>> plot_mesh({"replicate": 2, "shard": 4}, ranks_per_node=4)
    """
    columns = [*mesh.values(), 1][-2] if mesh else 0
    if len(mesh) not in (1, 2) or (columns % ranks_per_node and ranks_per_node % columns):
        raise ValueError(
            f"plot_mesh({dict(mesh)}, ranks_per_node={ranks_per_node}) draws one or two axes, whose rows are whole "
            "nodes or equal parts of a node. Choose such sizes."
        )
    world_size = prod(mesh.values())
    axes = [_axis(list(mesh), at, list(mesh.values()), ranks_per_node) for at in range(len(mesh))]
    canvas = Canvas()
    across = min(90.0, (WIDTH - LEFT - SIDE - 10) / max(columns - 1, 1))
    top = 16.0 if columns <= ranks_per_node else 34.0  # names of nodes stand on the left, or above
    places = [(LEFT + r % columns * across, top + r // columns * APART) for r in range(world_size)]
    for first in range(0, world_size, ranks_per_node):
        (left, top), (right, low) = places[first], places[min(first + ranks_per_node, world_size) - 1]
        canvas.rect(left - 10, top - 12, right - left + SIDE + 20, low - top + SIDE + 24, SHADE, rx=8)
        label = (0, top + SIDE / 2 + 4) if columns <= ranks_per_node else (left - 6, top - 16)
        canvas.text(label[0], label[1], f"node {first // ranks_per_node}", **SMALL)
    colours = [WAITING if axis.crosses else FAINT for axis in axes]
    for axis, colour in zip(axes, colours, strict=True):
        for (x1, y1), (x2, y2) in (map(places.__getitem__, ends) for group in axis.groups for ends in pairwise(group)):
            canvas.line(x1 + SIDE / 2, y1 + SIDE / 2, x2 + SIDE / 2, y2 + SIDE / 2, colour, stroke_width=3)
    for rank, (x, y) in enumerate(places):
        canvas.block(x, y, SIDE, SIDE, MEMBERS[0], str(rank))
    canvas.y = places[-1][1] + SIDE + 20
    canvas.legend(zip(map(str, axes), colours, strict=True))
    text = "\n".join(f"{axis}: {', '.join(map(str, axis.groups))}" for axis in axes)
    crossing = " and ".join(repr(axis.name) for axis in axes if axis.crosses)
    nodes = -(-world_size // ranks_per_node)
    caption = f"{world_size} ranks on {nodes} node{'s' * (nodes > 1)}. "
    caption += f"Only the groups of {crossing} cross the network." if crossing else "No group crosses the network."
    return canvas.picture(caption, text)


def _axis(names: list[str], at: int, sizes: list[int], ranks_per_node: int) -> Axis:
    stride = prod(sizes[at + 1 :])
    firsts = (rank for rank in range(prod(sizes)) if rank // stride % sizes[at] == 0)
    groups = [tuple(range(first, first + stride * sizes[at], stride)) for first in firsts]
    return Axis(names[at], groups, any(len({r // ranks_per_node for r in group}) > 1 for group in groups))
