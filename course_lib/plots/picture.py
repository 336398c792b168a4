"""A figure as the notebook shows it: drawn on white by matplotlib, right in every theme, and readable as text.

A figure is an image: JupyterLab takes inline SVG out of a notebook that it does not trust, and leaves only its words.
An image does not know the colours of the page, and no one colour of text is legible on both white and JupyterLab's
dark background. So a figure has a white background of its own.
Colours are those of Okabe and Ito, which people with any common colour vision tell apart; hatches repeat what they
say, and outlines in `INK` part neighbours.
"""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK, PAPER = "black", "white"
"""Lines and letters that are no data, and what they stand on."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
HATCHES = ("", "////", "----", "xxxx", "||||", "++++", "\\\\\\\\")

_STYLE = {
    "svg.fonttype": "none",  # text stays text, which is shorter than its outlines
    "svg.hashsalt": "course",  # the same figure has the same ids
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "font.size": 10,
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
} | dict.fromkeys(
    ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "patch.edgecolor", "hatch.color"),
    INK,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Picture:
    """A figure that shows itself as the last value of a cell.

    Attributes:
        svg: the figure, a file of its own.
        caption: a sentence that says what to see.
        text: the same facts, for those who cannot see it.
    """

    svg: str
    caption: str
    text: str

    def __repr__(self) -> str:
        return f"{self.caption}\n\n{self.text}"

    @property
    def html(self) -> str:
        """The figure with its caption, and its text to unfold."""
        return (
            f'<figure style="margin: 0.5em 0">{self.image}<figcaption>{escape(self.caption)}</figcaption>'
            f"<details><summary>The figure as text</summary><pre>{escape(self.text)}</pre></details></figure>"
        )

    @property
    def image(self) -> str:
        """The figure as an `<img>`, whose size is known before it is drawn, so that the page does not jump."""
        root, data = ET.fromstring(self.svg).attrib, base64.b64encode(self.svg.encode()).decode()
        ratio = " / ".join(root["viewBox"].split()[2:])
        style = f"width: {root['width']}; aspect-ratio: {ratio}; max-width: 100%"
        return f'<img alt="{escape(self.caption)}" style="{style}" src="data:image/svg+xml;base64,{data}">'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib in the style of the course, for what is drawn inside the block."""
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def picture(figure: Figure, *, caption: str, text: str) -> Picture:
    """Close what was drawn: from here on it is a `Picture`. Call it within `drawing`."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{short_path(path[1])}"', svg[svg.index("<svg") :])
    return Picture(svg=svg, caption=caption, text=text)


def short_path(path: str) -> str:
    """The same path, with places to a tenth of a point, and without those that level and upright lines pass.

    What a long run held is drawn as stairs with many such places, and a saved notebook holds them all.
    """
    steps: list[str] = []
    for step in re.sub(r"(\.\d)\d+", r"\1", path).strip().split("\n"):
        if len(steps) > 1 and _is_passed(steps[-2], steps[-1], step):
            steps.pop()
        steps.append(step.strip())
    return " ".join(steps)


def _is_passed(start: str, middle: str, end: str) -> bool:
    """Return whether the line from `start` to `end`, such as `L 3 4`, is level or upright and passes `middle`."""
    if (middle[:1], end[:1]) != ("L", "L"):
        return False
    xs, ys = zip(*(map(float, step.split()[-2:]) for step in (start, middle, end)), strict=True)
    return any(len(set(same)) == 1 and sorted(along)[1] == along[1] for same, along in ((xs, ys), (ys, xs)))


def in_bytes(count: float) -> str:
    """`count` bytes in the unit that fits: 12.8 MB. MB is 10⁶ bytes."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
