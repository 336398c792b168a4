"""A heat map of the bytes that each rank sent to each other rank."""

from collections.abc import Sequence

from ..planner import size
from .canvas import NOTE, SHADE, SMALL, Canvas, ink_on
from .picture import Picture

MOST_NUMBERS = 8
"""With more ranks than this, cells are too small for numbers."""
LEFT, TOP = 60, 34
LEAST, MOST = (0xDC, 0xEC, 0xF8), (0x1F, 0x78, 0xA8)
"""The colours of hardly any bytes and of the most: tints of the colour of communication."""


def plot_comm(matrix: Sequence[Sequence[int]]) -> Picture:
    """Return a heat map: `matrix[a][b]` is the number of bytes that rank a sent to rank b."""
    ranks, most = len(matrix), max(map(max, matrix))
    cell = min(64.0, 480 / ranks)
    canvas = Canvas()
    canvas.text(LEFT, 14, "to rank →", **NOTE)
    canvas.text(0, 30, "from ↓", **NOTE)
    canvas.rect(LEFT, TOP, ranks * cell, ranks * cell, SHADE)
    for rank in range(0, ranks, -(-ranks // MOST_NUMBERS)):
        middle = (rank + 0.5) * cell
        canvas.text(LEFT + middle, TOP - 4, str(rank), "middle")
        canvas.text(LEFT - 8, TOP + 4 + middle, str(rank), "end")
    for sender, row in enumerate(matrix):
        for receiver, sent in enumerate(row):
            if sent:
                colour, x, y = tint(sent / most), LEFT + receiver * cell, TOP + sender * cell
                canvas.block(x, y, cell - 1, cell - 1, colour)
                if ranks <= MOST_NUMBERS:
                    look = SMALL | {"fill": ink_on(colour)}
                    canvas.text(x + cell / 2, y + cell / 2 + 4, size(sent), "middle", **look)
    canvas.y = TOP + ranks * cell
    return canvas.picture(_caption(matrix), _text(matrix))


def tint(part: float) -> str:
    """Return the colour of `part`, from 0 to 1, of the most bytes."""
    mixed = (round(low + part * (high - low)) for low, high in zip(LEAST, MOST, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _caption(matrix: Sequence[Sequence[int]]) -> str:
    reading = "Each row is a sender and each column a receiver. An empty cell means no bytes."
    sends = {(a, b): sent for a, row in enumerate(matrix) for b, sent in enumerate(row) if sent}
    if not sends:
        return f"{reading} No rank sent anything."
    (a, b), most = max(sends.items(), key=lambda item: item[1])
    if all(receiver == (sender + 1) % len(matrix) for sender, receiver in sends):
        even = "the same" if len(set(sends.values())) == 1 and len(sends) == len(matrix) else "at most"
        return f"{reading} All bytes go to the next rank, as on a ring: {even} {size(most)} from each rank."
    alike = sum(sent == most for sent in sends.values()) - 1
    as_much = f" {alike} other pair{'s' * (alike > 1)} of ranks sent as much." if alike else ""
    return f"{reading} Rank {a} sent most, to rank {b}: {size(most)}.{as_much}"


def _text(matrix: Sequence[Sequence[int]]) -> str:
    lines = []
    for sender, row in enumerate(matrix):
        to = ", ".join(f"{sent:,} to rank {receiver}" for receiver, sent in enumerate(row) if sent)
        lines.append(f"rank {sender} sent {sum(row):,} bytes" + (f": {to}" if to else ""))
    return "\n".join(lines)
