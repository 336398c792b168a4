"""The shapes of a still. Places across are parts of the figure's width, so that it fits a phone; others are pixels.

Two stills share a shape if both have its key: then it moves from one place to the other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..canvas import FAINT, INK, NOTE, SHADE, WIDTH, Canvas, ink_on, short, text_width

TEXTS: dict[str, dict[str, Any]] = {
    "big": {"font_size": 46, "font_weight": 650},
    "value": {"font_size": 17, "font_weight": 650},
    "title": {"font_size": 13, "font_weight": 600},
    "word": {"font_size": 13},
    "note": NOTE | {"font_size": 12},
}
"""The looks of texts."""
PLAIN: dict[str, dict[str, Any]] = {
    "shade": {"fill": SHADE},
    "ghost": {"fill": "none", "stroke": FAINT, "stroke_dasharray": "3 3"},
    "line": {"fill": INK},
}
"""The looks of boxes that are not data."""
LABEL = 11.5
"""The font size of labels in boxes."""


class Shape(NamedTuple):
    """A box or a text.

    Attributes:
        x, w: left edge and width, as parts of the width between the margins; w of a text is 0. A text below 0 stands at
            the left edge of the figure, and one above 1 at its right edge.
        y, h: upper edge and height, in pixels; of a text, its foot and 0.
        look: a name in `TEXTS` or among the figure's looks.
        label: the text, or what stands in the box if there is room.
        anchor: of a text.
        start, stop: how high the box is filled at its left and at its right edge, as parts of its height.
    """

    key: str
    x: float
    y: float
    w: float
    h: float
    look: str
    label: str = ""
    anchor: str = "start"
    start: float = 1
    stop: float = 1


class Box(NamedTuple):
    """A box of a lane: from where the box before it ends until `until`. The cursor reads its note."""

    key: str
    until: float
    look: str
    label: str
    note: str
    start: float = 1
    stop: float = 1


class Lane(NamedTuple):
    """Boxes side by side, with a name in the left margin; what the cursor reads stands in the right margin."""

    key: str
    name: str
    y: float
    h: float
    boxes: Sequence[Box]

    def shapes(self) -> Iterator[Shape]:
        """Yield the name and the boxes as shapes."""
        yield text(self.key, -1, self.y + self.h / 2 + 4, "word", self.name)
        for at, box in pairwise([Box("", 0, "", "", ""), *self.boxes]):
            place = Shape(f"{self.key} {box.key}", at.until, self.y, box.until - at.until, self.h, box.look, box.label)
            yield place._replace(start=box.start, stop=box.stop)


Still = Sequence[Shape | Lane]


def text(key: str, x: float, y: float, look: str, label: str, anchor: str = "start") -> Shape:
    """Return a shape that is only text."""
    return Shape(key, x, y, 0, 0, look, label, anchor)


def filled(colours: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return looks: boxes of these colours, with legible labels. An outline shows them on grounds of both themes."""
    return {
        name: {"fill": fill, "stroke": FAINT, "stroke_width": 0.5, "ink": ink_on(fill)}
        for name, fill in colours.items()
    }


def packed(still: Still) -> list[list[Any]]:
    """Return a still as `moving.js` reads it: numbers rounded, and no defaults at the end."""
    return [
        [*lane[:-1], [_packed(box, Box) for box in lane.boxes]] if isinstance(lane, Lane) else _packed(lane, Shape)
        for lane in still
    ]


def _packed(values: Iterable[Any], kind: Any) -> list[Any]:
    row = [round(value, 4) if isinstance(value, float) else value for value in values]
    while row[-1] == kind._field_defaults.get(kind._fields[len(row) - 1]):
        row.pop()
    return row


def draw(canvas: Canvas, still: Still, looks: Mapping[str, Any], left: float, right: float) -> None:
    """Draw a still on a canvas, as `moving.js` draws it on the page."""
    for one in still:
        for shape in one.shapes() if isinstance(one, Lane) else [one]:
            _draw(canvas, shape, looks, left, WIDTH - left - right)


def _draw(canvas: Canvas, shape: Shape, looks: Mapping[str, Any], left: float, wide: float) -> None:
    x, width, foot = left + shape.x * wide, shape.w * wide, shape.y + shape.h
    if shape.look in TEXTS:
        x = 0 if shape.x < 0 else WIDTH if shape.x > 1 else x
        canvas.text(x, shape.y, shape.label, shape.anchor, **TEXTS[shape.look])
        return
    first, last = (short(foot - shape.h * part) for part in (shape.start, shape.stop))
    look = {name: value for name, value in looks[shape.look].items() if name != "ink"}
    canvas.add("path", d=f"M{short(x)} {short(foot)}V{first}L{short(x + width)} {last}V{short(foot)}Z", **look)
    if shape.label and text_width(shape.label, LABEL) + 4 <= width:
        ink = looks[shape.look].get("ink", INK)
        canvas.text(x + width / 2, shape.y + shape.h / 2 + 4, shape.label, "middle", font_size=LABEL, fill=ink)
