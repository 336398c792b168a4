"""Four ranks, one function: what a run is."""

from collections.abc import Sequence
from typing import Any

from ..canvas import INK, MEMBERS, NOTE, SHADE, WIDTH, Canvas, ink_on, short
from ..picture import Picture

MOST_RANKS = 8


def plot_ranks(function: Any, results: Sequence[Any]) -> Picture:
    """Return a drawing of `function`, of the ranks that ran it, and of what each of them returned.

    Args:
        function: what ran; its name is shown.
        results: what each rank returned, such as a run. The first eight are drawn.
    """
    name, shown = getattr(function, "__name__", str(function)), [_shortened(result) for result in results]
    canvas, column = Canvas(), WIDTH / min(len(shown), MOST_RANKS)
    middle = WIDTH / 2
    canvas.rect(middle - 110, 10, 220, 34, SHADE, rx=6)
    canvas.text(middle, 32, f"{name}()", "middle", font_family="monospace", font_size=14)
    for rank, result in enumerate(shown[:MOST_RANKS]):
        x, width = (rank + 0.5) * column, min(column - 10, 130)
        canvas.line(middle, 44, x, 78)
        canvas.rect(x - width / 2, 78, width, 34, MEMBERS[0], rx=6)
        canvas.text(x, 100, f"rank {rank}", "middle", fill=ink_on(MEMBERS[0]), font_weight="bold")
        canvas.add("path", d=f"M{short(x)} 112v24m-3 -4l3 4l3 -4", stroke=INK, fill="none", stroke_width=1.5)
        canvas.text(x, 154, result, "middle", font_family="monospace")
        canvas.text(x + 8, 130, "returns", **NOTE)
    canvas.y = 158
    caption = f"{len(shown)} ranks run one function, each on its own. Rank {len(shown) - 1} returns {shown[-1]}."
    return canvas.picture(caption, "\n".join(f"rank {rank} returns {result}" for rank, result in enumerate(shown)))


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 14 else text[:13] + "…"
