"""Axes that matplotlib draws on the canvas, in the ink of the theme."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..canvas import FAINT, INK, WIDTH, Canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAND_INS = {INK: "#1f2328", FAINT: "#636c76"}
"""Colours that matplotlib draws with, in place of those of the theme, which it does not know."""
_STYLE: dict[Any, Any] = {
    "savefig.format": "svg",
    "svg.fonttype": "none",  # text stays text, which is shorter than its outlines
    "svg.hashsalt": "course",  # the same figure has the same ids
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.edgecolor": STAND_INS[INK],
} | dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), STAND_INS[FAINT])


@contextmanager
def axes(canvas: Canvas, height: float, columns: int = 1, width: float = WIDTH) -> Iterator[list[Axes]]:
    """Return axes side by side, together `width` pixels wide. What the block draws on them goes onto the canvas."""
    import matplotlib  # here, because most figures do without, and so does a machine without notebooks
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(_STYLE):
        layout = ConstrainedLayoutEngine(rect=(0, 0, width / WIDTH, 1))
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout=layout, facecolor="none")
        yield list(figure.subplots(1, columns, squeeze=False)[0])
        out = io.StringIO()
        figure.savefig(out, metadata={"Date": None})
    svg = re.sub(r"<!--.*?-->|xlink:(?=href)", "", out.getvalue(), flags=re.DOTALL)
    for variable, colour in STAND_INS.items():
        svg = svg.replace(colour, variable)
    canvas.nest(svg[svg.index("<g ") : svg.rindex("</svg>")], height)


def in_pixels(panel: Axes, x: float, y: float) -> tuple[float, float]:
    """Return where x, y of a panel is, from the top left corner of what matplotlib draws."""
    across, up = panel.transData.transform((x, y))
    return across, panel.figure.bbox.height - up
