"""A figure as the notebook shows it: drawn by matplotlib, right in light and in dark themes, and readable as text.

No one colour of text is legible on both white and JupyterLab's dark background: a contrast of 4.5 to 1 with the one
excludes it with the other. So a figure is inline SVG in which whatever would be black is drawn in `INK`, and `INK`
then becomes `currentColor`: the text colour of the page, whichever theme is on, also when it changes later.
Colours are those of Okabe and Ito, which people with any common colour vision tell apart; hatches repeat what they
say, and outlines in `INK` part what the background would swallow.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK = "#0a0b0c"
"""Stands for the page's text colour; used by nothing else."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#999999"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
HATCHES = ("", "////", "----", "xxxx", "||||", "++++", "\\\\\\\\")

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's size when it is zoomed
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
        svg: the figure.
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
            f'<figure style="margin: 0.5em 0">{self.svg}<figcaption>{escape(self.caption)}</figcaption>'
            f"<details><summary>The figure as text</summary><pre>{escape(self.text)}</pre></details></figure>"
        )

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
    with matplotlib.rc_context({"svg.hashsalt": caption + text}):  # ids: other figures have others, the same the same
        figure.savefig(out, format="svg", transparent=True)
    svg = _at_home_in_a_page(out.getvalue()).replace(INK, "currentColor")
    head = f'<svg role="img" aria-label="{escape(caption)}" style="max-width: 100%; height: auto; {_LINES}"'
    return Picture(svg=head + svg.removeprefix("<svg"), caption=caption, text=text)


_LINES = "stroke-linejoin: round; stroke-linecap: butt"  # matplotlib's own rule, which would hold for the whole page


def _at_home_in_a_page(svg: str) -> str:
    """The `<svg>` of a file without what only a file needs, without ids that it does not use itself (a page may have
    an id once, and figures are many), and with short paths."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{short_path(path[1])}"', svg)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)


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
    """Whether the line from `start` to `end`, such as `L 3 4`, is level or upright and passes `middle`."""
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
