"""The parts of each tensor that each rank holds, to scale: tensors as frames in a row, ranks as bands below."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from .canvas import HATCH, INK, NOTE, PAPER, SHADE, SMALL, WIDTH, Canvas, member, text_width
from .picture import Picture

Slice = tuple[int, int, int]
"""rank, start, stop: the rank holds elements start to stop - 1 of the flattened tensor."""
Tensor = tuple[str, int, Sequence[Slice]]
"""Name, number of elements, and every slice that a rank holds."""

BAND, PADDING = 26, "padding"
MOST_NAMES = 4  # the most tensors that a caption names


def plot_shards(tensors: Iterable[Tensor]) -> Picture:
    """Return all tensors end to end, to scale, divided into the slices that ranks hold, with the total of each rank.

    Overlapping slices, such as copies, are drawn below each other. Elements that no rank holds stay empty.

    Raises:
        ValueError: there is no tensor, or a slice does not lie within its tensor.

    Example:
        >>> plot_shards([("weight", 10, [(0, 0, 5), (1, 5, 10)])])
    """
    tensors = list(tensors)
    _check(tensors)
    total = sum(numel for _, numel, _ in tensors)
    nobody, several = map(sum, zip(*(_held(slices, numel) for _, numel, slices in tensors), strict=True))
    held = f"Of {total:,} elements, no rank holds {nobody:,}, and more than one rank holds {several:,}."
    if not nobody and not several:
        held = f"Exactly one rank holds each of the {total:,} elements."
    return _ribbon(tensors, f"The ribbon is all tensors end to end, to scale; a band is what one rank holds. {held}")


def plot_flat(params: Iterable[tuple[str, int]], world_size: int) -> Picture:
    """Return a flat tensor: its parameters above, the shards of `world_size` ranks below, and its padding hatched.

    Args:
        params: name and number of elements of each parameter, in order.
        world_size: the number of ranks. The flat tensor is padded to a multiple of it.
    """
    named, tensors, offset = list(params), [], 0
    numel = sum(count for _, count in named)
    padding = -numel % world_size
    shard = (numel + padding) // world_size
    for name, count in [*named, (PADDING, padding)]:
        spans = ((r, max(r * shard - offset, 0), min((r + 1) * shard - offset, count)) for r in range(world_size))
        tensors.append((name, count, [(rank, start, stop) for rank, start, stop in spans if start < stop]))
        offset += count
    cut = [name for name, _, slices in tensors[:-1] if len(slices) > 1]
    names = f": {', '.join(cut)}" if 0 < len(cut) <= MOST_NAMES else ""
    caption = (
        f"{len(named)} parameters, {numel:,} elements end to end, become {world_size} shards of {shard:,} elements. "
        f"Padding: {padding} elements. The borders between ranks cut {len(cut)} of the parameters{names}."
    )
    return _ribbon(tensors if padding else tensors[:-1], caption)


def _ribbon(tensors: Sequence[Tensor], caption: str) -> Picture:
    """Draw tensors as frames above, and below them slices as bands, both to scale, and the total of each rank."""
    offsets = [0, *accumulate(numel for _, numel, _ in tensors)]
    scale = WIDTH / max(offsets[-1], 1)
    filled = offsets[-2] if tensors[-1][0] == PADDING else offsets[-1]
    slices, totals = [], Counter[int]()
    canvas = Canvas()
    canvas.text(0, 14, "tensors, end to end; dashed lines: where a rank's part begins", **NOTE)
    canvas.y += 52
    for offset, (name, numel, held) in zip(offsets, tensors, strict=False):
        _draw_tensor(canvas, name, numel, offset * scale, numel * scale)
        slices += [(rank, offset + start, offset + stop) for rank, start, stop in held]
    lanes = _lanes(slices)
    for border in sorted({start for lane in lanes for _, start, _ in lane if start}):
        x = border * scale - 0.5
        canvas.line(x, canvas.y - 20, x, canvas.y, INK, stroke_width=2, stroke_dasharray="4 2")
    for lane in lanes:
        canvas.rect(0, canvas.y, WIDTH, BAND, SHADE)
        for rank, start, stop in lane:
            totals[rank] += stop - start
            width = (min(stop, filled) - start) * scale - 1
            canvas.block(start * scale, canvas.y, width, BAND, member(rank), f"rank {rank}")
        canvas.y += BAND + 2
    if filled < offsets[-1]:
        for fill in (PAPER, HATCH):
            canvas.rect(filled * scale, canvas.y - BAND - 2, (offsets[-1] - filled) * scale, BAND, fill)
    canvas.legend((f"rank {rank}: {total:,} elements", member(rank)) for rank, total in sorted(totals.items()))
    return canvas.picture(caption, _text(tensors))


def _draw_tensor(canvas: Canvas, name: str, numel: int, left: float, width: float) -> None:
    """Draw a frame, and as much of the tensor's name as there is room for, from the end: `up.weight`, `up`."""
    canvas.rect(left, canvas.y - 16, width, 12, "none", stroke=INK)
    short = ".".join(name.split(".")[-2:])
    names = (f"{name} [{numel:,}]", name, short, short.partition(".")[0])
    shown = next((text for text in names if text_width(text, 11) + 10 <= width), "")
    if shown:
        canvas.text(left + width / 2, canvas.y - 24, shown, "middle", **SMALL)


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
    """Return the slices in the fewest lanes without overlaps, at least one. A rank's neighbouring slices become one."""
    lanes: list[list[Slice]] = [[]]
    for rank, start, stop in sorted(slices, key=lambda piece: (piece[1], piece[0])):
        if start < stop:
            lane = next((lane for lane in lanes if not lane or lane[-1][2] <= start), None)
            if lane is None:
                lanes.append(lane := [])
            if lane and lane[-1][0] == rank and lane[-1][2] == start:
                start = lane.pop()[1]
            lane.append((rank, start, stop))
    return lanes


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


def _text(tensors: Sequence[Tensor]) -> str:
    lines = []
    for name, numel, slices in tensors:
        held = "; ".join(f"rank {rank}: {start:,} to {stop:,}" for rank, start, stop in slices if start < stop)
        lines.append(f"{name} ({numel:,} elements): {held or 'no rank holds them'}")
    return "\n".join(lines)
