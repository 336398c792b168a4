"""A sequence that several ranks share: the blocks that a ring passes on, and tokens that are swapped for heads."""

from collections.abc import Mapping, Sequence

from ..canvas import FAINT, NOTE, SHADE, WIDTH, Canvas, member, percent
from ..picture import Picture

LEFT, HEIGHT, APART, SIDE = 60, 24, 12, 30

Rounds = Sequence[Sequence[tuple[int, float]]]
"""For each rank its rounds: whose keys and values it has then, and how much it computes with them."""


def plot_ring(rings: Mapping[str, Rounds]) -> Picture:
    """Return a chart of the rounds of ring attention: which block each rank has, and how long it computes.

    Args:
        rings: by name, for each rank its rounds, as pairs of the rank that a block comes from, and the work with it in
            any unit. The charts share one time axis. Every rank has as many rounds.

    Example:
        >>> plot_ring({"in order": [[(0, 1), (1, 0)], [(1, 1), (0, 2)]]})
    """
    totals = {name: [max(work for _, work in each) for each in zip(*ring, strict=True)] for name, ring in rings.items()}
    count = max(len(rounds) for rounds in totals.values())
    scale = (WIDTH - LEFT - APART * (count - 1)) / max(map(sum, totals.values()))
    canvas, waits, lines = Canvas(), [], []
    for name, ring in rings.items():
        lasts = totals[name]
        idle = percent(1 - sum(work for row in ring for _, work in row) / sum(lasts) / len(ring))
        waits.append(f"{idle} ({name})")
        canvas.title(f"{name} (the ranks wait {idle} of the time)")
        lines.append(name)
        x = float(LEFT)
        for number, last in enumerate(lasts):
            if last * scale > 50:
                canvas.text(x, canvas.y + 12, f"round {number}", **NOTE)
            for rank, row in enumerate(ring):
                source, work = row[number]
                y = canvas.y + 18 + rank * (HEIGHT + 4)
                canvas.rect(x, y, last * scale, HEIGHT, SHADE)
                if work:
                    canvas.block(x, y, work * scale, HEIGHT, member(source), str(source))
            x += last * scale + APART
        for rank, row in enumerate(ring):
            canvas.text(0, canvas.y + 34 + rank * (HEIGHT + 4), f"rank {rank}")
            seen = ", ".join(f"block {source}: {work:g}" for source, work in row)
            lines.append(f"rank {rank}: {seen}; together {sum(work for _, work in row):g}")
        canvas.y += 18 + len(ring) * (HEIGHT + 4)
    caption = (
        "Each box is a rank that computes with a block. Its number and colour say whose keys and values these are; its "
        f"width is the work. The ranks wait {' and '.join(waits)} of the time, if messages take none."
    )
    return canvas.picture(caption, "\n".join(lines))


def plot_swap(world_size: int) -> Picture:
    """Return a drawing of an all-to-all that swaps tokens for heads: who has what before, and who after.

    Each of the N × N squares is one rank's tokens of one rank's heads.
    """
    canvas, apart = Canvas(), world_size * SIDE + 150
    for chart, title in enumerate(("before: some tokens of all heads", "after: all tokens of some heads")):
        left = 70 + chart * apart
        canvas.text(left, 16, title, font_weight="bold")
        canvas.text(left, 34, "heads, from left to right", **NOTE)
        for row in range(world_size):
            canvas.text(left - 70, 60 + row * SIDE, f"tokens {row}", fill=FAINT)
            for column in range(world_size):
                rank = (row, column)[chart]
                canvas.block(left + column * SIDE, 42 + row * SIDE, SIDE, SIDE, member(rank), str(rank))
    canvas.y = 46 + world_size * SIDE
    caption = (
        f"The number in a square is the rank that has it. Each rank keeps 1 of its {world_size} squares, and sends one "
        "to each other rank."
    )
    numbers = range(world_size)
    before = "\n".join(f"tokens {rank}, all heads: rank {rank} before" for rank in numbers)
    after = "\n".join(f"heads {rank}, all tokens: rank {rank} after" for rank in numbers)
    return canvas.picture(caption, f"{before}\n{after}")
