"""A chart of the slices of each tensor that each rank holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .picture import BLUE, HATCHES, INK, PALETTE, Picture, drawing, picture

Slice = tuple[int, int, int]
"""rank, start, stop: the rank holds elements start to stop - 1 of the flattened tensor."""

Tensor = tuple[str, int, Sequence[Slice]]
"""Name, number of elements, and every slice that a rank holds."""

_BAR, _GAP = 0.8, 0.3  # height of a bar, and the space between two tensors, in units of a row
_NARROW = 0.03  # of the width: a narrower slice has no room for its rank's number


def plot_shards(tensors: Iterable[Tensor]) -> Picture:
    """Return one bar for each tensor, from its first element to its last, divided into the slices that ranks hold.

    Overlapping slices, such as copies, are drawn below each other. Elements that no rank holds stay empty.

    Raises:
        ValueError: there is no tensor, or a slice does not lie within its tensor.

    Example:
        >>> plot_shards([("weight", 10, [(0, 0, 5), (1, 5, 10)])])
    """
    tensors = list(tensors)
    _check(tensors)
    lanes = [_lanes(slices) for _, _, slices in tensors]
    with drawing():
        figure = Figure(figsize=(9, 0.8 + 0.3 * sum(map(len, lanes))), layout="constrained")
        axes = figure.subplots()
        top, middles = 0.0, []
        for (_, numel, _), of_tensor in zip(tensors, lanes, strict=True):
            middles.append(top + (len(of_tensor) - 1 + _BAR) / 2)
            for lane in of_tensor:
                axes.broken_barh([(0, 1)], (top, _BAR), facecolor="none", edgecolor=INK, linewidth=0.4)
                for rank, start, stop in lane:
                    _draw(axes, rank, start / numel, stop / numel, top)
                top += 1
            top += _GAP
        axes.set(xlim=(0, 1), ylim=(top - _GAP, -0.1))
        axes.set_xticks([0, 1], ["first element", "last"])
        axes.set_yticks(middles, [f"{name} [{numel:,}]" for name, numel, _ in tensors])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return picture(figure, caption=_caption(tensors), text=_text(tensors))


def _check(tensors: Sequence[Tensor]) -> None:
    if not tensors:
        raise ValueError("plot_shards got no tensor. Give at least one: (name, numel, [(rank, start, stop), ...]).")
    for name, numel, slices in tensors:
        for rank, start, stop in slices:
            if not 0 <= start <= stop <= numel:
                raise ValueError(
                    f"rank {rank} holds elements {start} to {stop} of {name!r}, which has {numel}: a slice lies within "
                    "its tensor. Give start and stop without padding, 0 <= start <= stop <= numel."
                )


def _lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return the slices in the smallest number of lanes without overlaps; at least one lane."""
    lanes: list[list[Slice]] = [[]]
    for rank, start, stop in sorted(slices, key=lambda piece: (piece[1], piece[0])):
        if start < stop:
            lane = next((lane for lane in lanes if not lane or lane[-1][2] <= start), None)
            if lane is None:
                lanes.append(lane := [])
            lane.append((rank, start, stop))
    return lanes


def _draw(axes: Axes, rank: int, start: float, stop: float, top: float) -> None:
    colour, hatch = PALETTE[rank % len(PALETTE)], HATCHES[rank // len(PALETTE) % len(HATCHES)]
    axes.broken_barh([(start, stop - start)], (top, _BAR), facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.4)
    if stop - start >= _NARROW:
        label = f"rank {rank}" if stop - start >= 3 * _NARROW else str(rank)
        ink = "white" if colour == BLUE else "black"
        axes.text((start + stop) / 2, top + _BAR / 2, label, ha="center", va="center", size=8, color=ink)


def _held(slices: Iterable[Slice], numel: int) -> tuple[int, int]:
    """Return how many elements no rank holds, and how many more than one rank holds."""
    changes: Counter[int] = Counter()
    for _, start, stop in slices:
        changes[start] += 1
        changes[stop] -= 1
    nobody = several = holders = last = 0
    for edge in sorted({*changes, numel}):
        nobody += (edge - last) * (holders == 0)
        several += (edge - last) * (holders > 1)
        holders, last = holders + changes[edge], edge
    return nobody, several


def _caption(tensors: Sequence[Tensor]) -> str:
    total = sum(numel for _, numel, _ in tensors)
    nobody, several = map(sum, zip(*(_held(slices, numel) for _, numel, slices in tensors), strict=True))
    if not nobody and not several:
        sentence = f"Each of the {total:,} elements is held by exactly one rank."
    else:
        sentence = f"Of {total:,} elements, {nobody:,} are held by nobody and {several:,} by more than one rank."
    return f"A bar is a tensor, a coloured part the slice that one rank holds. {sentence}"


def _text(tensors: Sequence[Tensor]) -> str:
    lines = []
    for name, numel, slices in tensors:
        held = "; ".join(f"rank {rank}: {start:,} to {stop:,}" for rank, start, stop in slices if start < stop)
        lines.append(f"{name} ({numel:,} elements): {held or 'held by nobody'}")
    return "\n".join(lines)
