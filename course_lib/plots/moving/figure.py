"""`Moving`: a figure with controls, which shows itself as the last value of a cell.

It is one page: stills, script and style, without a network and without a kernel. In a notebook it stands in an
`<iframe srcdoc>`, for the reasons that `meter/replay/page.py` gives. A notebook that is not trusted, and a page without
scripts, show the first still.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from itertools import product
from typing import Any

from ..canvas import THEMES, Canvas
from ..picture import Picture
from .shapes import PLAIN, TEXTS, Shape, draw


@dataclass(frozen=True, kw_only=True)
class Control:
    """A row of buttons, or a slider.

    Attributes:
        label: what it sets.
        values: by what the reader reads, what the stills are computed from.
        start: the number of the value at first.
        slider: whether it is a slider.
    """

    label: str
    values: Mapping[str, Any]
    start: int = 0
    slider: bool = False


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """A line across the rows of a figure that the reader moves or plays; it reads the boxes that it crosses.

    Attributes:
        label: what goes from left to right.
        rows: the name of each row, by the upper edge of its boxes.
        steps: how many steps of an arrow key lead from left to right.
    """

    label: str
    rows: Mapping[float, str]
    steps: int


Stills = tuple[Sequence[str], Callable[..., Any]]
"""Names of controls, and a function from their values."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Moving:
    """A figure that a reader moves. `print(figure)` writes it as text.

    Attributes:
        title: what it shows.
        controls: by name.
        layers: shapes, each layer with the controls that it depends on.
        caption: a sentence that says what to see, with the controls that it depends on.
        looks: attributes of the boxes, by name.
        text: the same facts for those who cannot see it.
        height: in pixels.
        left, right: margins, in pixels.
    """

    title: str
    controls: Mapping[str, Control]
    layers: Sequence[Stills]
    caption: Stills
    looks: Mapping[str, Mapping[str, Any]]
    text: str
    height: int
    left: int = 0
    right: int = 0
    cursor: Cursor | None = None

    @cached_property
    def still(self) -> Picture:
        """The figure at first, as a picture that does not move."""
        canvas, start = Canvas(), {name: [*one.values.values()][one.start] for name, one in self.controls.items()}
        for names, function in self.layers:
            draw(canvas, function(*(start[name] for name in names)), PLAIN | self.looks, self.left, self.right)
        canvas.y = self.height
        names, function = self.caption
        return canvas.picture(function(*(start[name] for name in names)), self.text)

    @cached_property
    def page(self) -> str:
        """The figure as a page that needs nothing else."""
        static = files(__package__) / "static"
        page, style, script = (static.joinpath(f"moving.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
        colours = ";".join(f"--{name}:light-dark({THEMES['light'][name]},{THEMES['dark'][name]})" for name in THEMES["light"])
        data = json.dumps(self._data(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        marks = {"TITLE": escape(self.title), "STILL": self.still.svg, "CAPTION": escape(self.still.caption)}
        marks |= {"/*STYLE*/": f":root{{{colours}}}\n{style}", "/*DATA*/": data, "/*SCRIPT*/": script}
        for mark, content in marks.items():
            page = page.replace(mark, content)
        return page

    @property
    def html(self) -> str:
        """The figure as part of a page: a frame, and its text to unfold."""
        page = self.page.replace("&", "&amp;").replace("'", "&#39;")
        style = f"width: 100%; height: {self.height + 170}px; border: 0"
        return (
            "<style>.course-untrusted { display: none }</style>"
            f"<iframe title='{escape(self.title)}' style='{style}' srcdoc='{page}'></iframe>"
            f"<div class='course-untrusted'>{self.still.image}</div>"
            f"<details><summary>The figure as text</summary><pre>{escape(repr(self))}</pre></details>"
        )

    def __repr__(self) -> str:
        return repr(self.still)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def _data(self) -> dict[str, Any]:
        """Return what `moving.js` reads."""
        looks = {name: {key.replace("_", "-"): value for key, value in look.items()}
                 for name, look in (TEXTS | PLAIN | dict(self.looks)).items()}
        controls = [{"label": one.label, "values": [*one.values], "start": one.start, "slider": one.slider}
                    for one in self.controls.values()]
        cursor = self.cursor and {"label": self.cursor.label, "rows": [*self.cursor.rows.items()], "steps": self.cursor.steps}
        return {
            "controls": controls, "looks": looks, "cursor": cursor, "height": self.height,
            "left": self.left, "right": self.right, "captions": self._by_setting(self.caption),
            "layers": [self._by_setting(layer) for layer in self.layers],
        }  # fmt: skip

    def _by_setting(self, stills: Stills) -> dict[str, Any]:
        """Return the numbers of some controls, and what there is for each setting of these."""
        names, function = stills
        values = [enumerate(self.controls[name].values.values()) for name in names]
        found = {}
        for setting in product(*values):
            made = function(*(value for _, value in setting))
            found[",".join(str(number) for number, _ in setting)] = (
                made if isinstance(made, str) else [Shape.row(shape) for shape in made]
            )
        return {"by": [[*self.controls].index(name) for name in names], "of": found}
