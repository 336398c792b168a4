"""A heat map of the bytes that each rank sent to each other rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from .picture import INK, Picture, drawing, in_bytes, picture

MOST_NUMBERS = 12
"""With more ranks than this, cells are too small for numbers, and a colour bar replaces them."""

LIGHT = 0.467
"""From this fraction of its range on, cividis is so light that black text is clearer than white."""


def plot_comm(matrix: Sequence[Sequence[int]]) -> Picture:
    """Return a heat map: `matrix[a][b]` is the number of bytes that rank a sent to rank b."""
    ranks = len(matrix)
    side = min(max(2.5, 0.75 * ranks), 7.0)
    edges = np.arange(ranks + 1) - 0.5
    sent = np.ma.masked_equal(np.array(matrix, dtype=float), 0)
    with drawing():
        figure = Figure(figsize=(side + 1, side), layout="constrained")
        axes = figure.subplots()
        mesh = axes.pcolormesh(edges, edges, sent, cmap="cividis", vmin=0, rasterized=ranks > MOST_NUMBERS)
        axes.set(xlabel="to rank", ylabel="from rank", aspect="equal", ylim=(edges[-1], edges[0]))
        axes.spines[["top", "right"]].set_visible(True)
        axes.grid(which="minor", color=INK, alpha=0.3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=MOST_NUMBERS))
            axis.set_minor_locator(FixedLocator(edges[1:-1].tolist()))
            axis.set_tick_params(which="both", length=0)
        if ranks <= MOST_NUMBERS:
            _write_numbers(axes, matrix)
        else:
            figure.colorbar(mesh, label="sent", format=lambda count, _: in_bytes(count))
        return picture(figure, caption=_caption(matrix), text=_text(matrix))


def _write_numbers(axes: Axes, matrix: Sequence[Sequence[int]]) -> None:
    most = max(map(max, matrix))
    for sender, row in enumerate(matrix):
        for receiver, sent in enumerate(row):
            if sent:
                colour = "white" if sent < LIGHT * most else "black"
                axes.text(receiver, sender, in_bytes(sent), ha="center", va="center", size=8, color=colour)


def _caption(matrix: Sequence[Sequence[int]]) -> str:
    reading = "Each row is a rank that sends, each column one that gets; an empty cell is nothing."
    sends = {(a, b): sent for a, row in enumerate(matrix) for b, sent in enumerate(row) if sent}
    if not sends:
        return f"{reading} No rank sent anything."
    (a, b), most = max(sends.items(), key=lambda item: item[1])
    if all(receiver == (sender + 1) % len(matrix) for sender, receiver in sends):
        even = "the same" if len(set(sends.values())) == 1 and len(sends) == len(matrix) else "at most"
        return f"{reading} All bytes go to the next rank, as on a ring: {even} {in_bytes(most)} from each."
    return f"{reading} Most went from rank {a} to rank {b}: {in_bytes(most)}."


def _text(matrix: Sequence[Sequence[int]]) -> str:
    lines = []
    for sender, row in enumerate(matrix):
        to = ", ".join(f"{sent:,} to rank {receiver}" for receiver, sent in enumerate(row) if sent)
        lines.append(f"rank {sender} sent {sum(row):,} bytes" + (f": {to}" if to else ""))
    return "\n".join(lines)
