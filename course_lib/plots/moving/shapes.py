"""The shapes of a still. Places across are parts of the figure's width, so that it fits a phone; others are pixels."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..canvas import FAINT, INK, NOTE, SHADE, WIDTH, Canvas, ink_on, short, text_width

TEXTS: dict[str, dict[str, Any]] = {
    "big": {"font_size": 46, "font_weight": 650},
    "value": {"font_size": 17, "font_weight": 650},
    "title": {"font_size": 13, "font_weight": 600},
    "word": {"font_size": 13},
    "note": NOTE | {"font_size": 12},
}
"""The looks of shapes that are only text."""
PLAIN: dict[str, dict[str, Any]] = {
    "shade": {"fill": SHADE},
    "ghost": {"fill": "none", "stroke": FAINT, "stroke_dasharray": "3 3"},
    "line": {"fill": INK},
}
"""The looks of shapes that are not data."""


class Shape(NamedTuple):
    """A box or a text. Two stills share a shape if both have its key: then it moves from one place to the other.

    Attributes:
        x, w: left edge and width, as parts of the width between the margins. Text below 0 stands at the left edge of
            the figure, text above 1 in the right margin.
        y, h: upper edge and height, in pixels; of text, its foot and 0.
        look: a name in `TEXTS` or among the figure's looks.
        label: a text, or what stands in the box if there is room.
        note: what the cursor reads where it crosses the box.
        start, stop: how high the box is filled at its left and at its right edge, as parts of its height.
        anchor: of text.
    """

    key: str
    x: float
    y: float
    w: float
    h: float
    look: str
    label: str = ""
    note: str = ""
    start: float = 1
    stop: float = 1
    anchor: str = "start"

    def row(self) -> list[Any]:
        """Return the shape as `moving.js` reads it, without defaults at the end."""
        row = [round(field, 4) if isinstance(field, float) else field for field in self]
        for default in ("start", 1, 1, "", ""):
            if row[-1] != default:
                break
            row.pop()
        return row


def text(key: str, x: float, y: float, look: str, label: str, anchor: str = "start") -> Shape:
    """Return a shape that is only text."""
    return Shape(key, x, y, 0, 0, look, label, anchor=anchor)


def legend(names: Mapping[str, str], y: float, step: float) -> list[Shape]:
    """Return a square and a word for each look, `step` of the width apart."""
    shapes = []
    for place, (look, name) in enumerate(names.items()):
        shapes += [Shape(f"key {look}", place * step, y - 10, 0.016, 11, look)]
        shapes += [text(f"key of {look}", place * step + 0.026, y, "note", name)]
    return shapes


def filled(colours: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return looks: boxes of these colours, with legible labels. An outline shows them on grounds of both themes."""
    return {name: {"fill": fill, "stroke": FAINT, "stroke_width": 0.5, "ink": ink_on(fill)} for name, fill in colours.items()}


def draw(canvas: Canvas, shapes: Iterable[Shape], looks: Mapping[str, Any], left: float, right: float) -> None:
    """Draw a still on a canvas, as `moving.js` draws it on the page."""
    wide = WIDTH - left - right
    for shape in shapes:
        x, width = left + shape.x * wide, shape.w * wide
        if not width:
            x = 0 if shape.x < 0 else WIDTH - right + 8 if shape.x > 1 else x
            canvas.text(x, shape.y, shape.label, shape.anchor, **TEXTS[shape.look])
            continue
        foot = shape.y + shape.h
        edges = (short(foot - shape.h * part) for part in (shape.start, shape.stop))
        first, last = short(x), short(x + width)
        look = {name: value for name, value in looks[shape.look].items() if name != "ink"}
        path = "M{0} {4}V{2}L{1} {3}V{4}Z".format(first, last, *edges, short(foot))
        canvas.add("path", d=path, **look)
        if shape.label and text_width(shape.label, 11.5) + 4 <= width:
            ink = looks[shape.look].get("ink", INK)
            canvas.text(x + width / 2, shape.y + shape.h / 2 + 4, shape.label, "middle", font_size=11.5, fill=ink)
