"""Reduce-scatter and all-gather on a ring, step by step, with the numbers themselves."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..canvas import FAINT, INK, NOTE, SHADE, SMALL, WIDTH, Canvas, ink_on, member, short
from ..picture import Picture

LEFT, CELL, APART, MOST_RANKS = 120, 26, 42, 6


class Step(NamedTuple):
    """The ranks after a step: what each holds, chunk by chunk, which chunk each received, and which are complete."""

    name: str
    chunks: list[list[Any]]
    received: Sequence[int | None]
    complete: list[set[int]]


def plot_ring(tensors: Sequence[Sequence[Any]]) -> Picture:
    """Return an all-reduce on a ring: each step of its reduce-scatter, and then of its all-gather.

    Args:
        tensors: what each rank brings: one number for each rank, which is a chunk. For example, the result of a run.

    Raises:
        ValueError: there are fewer than two or more than six ranks, or a rank brings another number of chunks.
    """
    ranks = [[value.item() if hasattr(value, "item") else value for value in tensor] for tensor in tensors]
    if not 2 <= len(ranks) <= MOST_RANKS or any(len(chunks) != len(ranks) for chunks in ranks):
        raise ValueError(
            f"plot_ring: {len(ranks)} ranks with {', '.join(str(len(chunks)) for chunks in ranks)} numbers. It draws 2 "
            f"to {MOST_RANKS} ranks; give each as many numbers as there are ranks."
        )
    canvas, steps, column = Canvas(), list(ring(ranks)), (WIDTH - LEFT) / len(ranks)
    for rank in range(len(ranks)):
        canvas.text(LEFT + rank * column + (column + 10) / 2, 18, f"rank {rank}", "middle", font_weight="bold")
    canvas.y = 28
    for step in steps:
        canvas.text(0, canvas.y + 17, step.name)
        for rank in range(len(ranks)):
            _draw_rank(canvas, step, rank, LEFT + rank * column, (column - 26) / len(ranks))
        canvas.y += APART
    canvas.text(0, canvas.y, "Filled: complete. Framed: just received.", **NOTE)
    lines = (f"{step.name}: {'; '.join(' '.join(map(str, chunks)) for chunks in step.chunks)}" for step in steps)
    caption = (
        "In each step, each rank passes one chunk to the rank on its right, and the last rank to rank 0. After "
        f"reduce-scatter ({len(steps) // 2} of {len(steps) - 1} steps), each rank has one complete chunk. All-gather "
        "brings all chunks to all ranks."
    )
    return canvas.picture(caption, "\n".join(lines))


def ring(ranks: Sequence[Sequence[Any]]) -> Iterator[Step]:
    """Yield the ranks at first and after each step. In each step, every rank passes one chunk to the next rank.

    In reduce-scatter, chunk c starts on rank c + 1, and each rank adds its own. It is complete on rank c, and goes on.
    """
    size = len(ranks)
    chunks, complete = [list(rank) for rank in ranks], [set[int]() for _ in ranks]
    yield Step("at first", chunks, [None] * size, complete)
    for number in range(2 * size - 2):
        received = [(rank - number - 2) % size for rank in range(size)]
        passed = [chunks[rank - 1][chunk] for rank, chunk in enumerate(received)]
        chunks, complete = [list(rank) for rank in chunks], [set(done) for done in complete]
        for rank, chunk in enumerate(received):
            chunks[rank][chunk] = passed[rank] + (chunks[rank][chunk] if number < size - 1 else 0)
            if number >= size - 2:
                complete[rank].add(chunk)
        name = f"reduce-scatter {number + 1}" if number < size - 1 else f"all-gather {number - size + 2}"
        yield Step(name, chunks, received, complete)


def _draw_rank(canvas: Canvas, step: Step, rank: int, left: float, cell: float) -> None:
    """Draw the chunks of a rank, and an arrow from the rank on its left to the chunk that it received."""
    if step.received[rank] is not None:
        d = f"M{short(left)} {short(canvas.y + CELL / 2)}h14m-4 -3l4 3l-4 3"
        canvas.add("path", d=d, stroke=FAINT, fill="none", stroke_width=1.5)
    for chunk, value in enumerate(step.chunks[rank]):
        x, done = left + 18 + chunk * cell, chunk in step.complete[rank]
        fill = member(chunk) if done else SHADE
        frame = {"stroke": INK, "stroke_width": 2} if chunk == step.received[rank] else {}
        canvas.rect(x, canvas.y, cell - 2, CELL, fill, **frame)
        look = SMALL | {"font_family": "monospace", "fill": ink_on(fill) if done else INK}
        canvas.text(x + cell / 2 - 1, canvas.y + 17, str(value), "middle", **look)
