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
from .shapes import PLAIN, TEXTS, Still, draw, packed

CONTROLS = 170
"""A first guess of the height of controls and caption, so that the notebook jumps little."""

Stills = tuple[Sequence[str], Callable[..., Still]]
"""Names of controls, and a function from their values."""
Captions = tuple[Sequence[str], Callable[..., str]]


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
    """A line across the lanes of a figure that the reader moves or plays; it reads the boxes that it crosses.

    Attributes:
        label: what goes from left to right.
        look: of what the cursor reads, where the notes are numbers; without it, the look of the box.
        start: where it stands at first, as a part of the way.
    """

    label: str
    look: str = ""
    start: float = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class Moving:
    """A figure that a reader moves. `print(figure)` writes it as text.

    Attributes:
        title: what it shows.
        controls: by name.
        layers: parts of the stills, each with the controls that it depends on.
        caption: a sentence that says what to see, with the controls that it depends on.
        looks: attributes of the boxes, by name.
        legend: what looks stand for.
        text: the same facts for those who cannot see it.
        height: in pixels.
        left, right: margins, in pixels.
        cursor: if there is one.
    """

    title: str
    controls: Mapping[str, Control]
    layers: Sequence[Stills]
    caption: Captions
    looks: Mapping[str, Mapping[str, Any]]
    legend: Mapping[str, str]
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
            draw(canvas, function(*(start[name] for name in names)), PLAIN | {**self.looks}, self.left, self.right)
        canvas.y = self.height
        canvas.legend((name, self.looks[look]["fill"]) for look, name in self.legend.items())
        names, caption = self.caption
        return canvas.picture(caption(*(start[name] for name in names)), self.text)

    @cached_property
    def page(self) -> str:
        """The figure as a page that needs nothing else."""
        static = files(__package__) / "static"
        page, style, script = (static.joinpath(f"moving.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
        light, dark = THEMES.values()
        colours = "".join(f"--{name}: light-dark({light[name]}, {dark[name]}); " for name in light)
        names = ((self.looks[look]["fill"], escape(name)) for look, name in self.legend.items())
        marks = {
            "TITLE": escape(self.title),
            "STILL": self.still.svg,
            "LEGEND": "".join(f'<li><i style="background: {fill}"></i>{name}</li>' for fill, name in names),
            "CAPTION": escape(self.still.caption),
            "/*STYLE*/": f":root {{ {colours}}}\n{style}",
            "/*DATA*/": json.dumps(self._data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
            "/*SCRIPT*/": script,
        }
        for mark, content in marks.items():
            page = page.replace(mark, content)
        return page

    @property
    def html(self) -> str:
        """The figure as part of a page: a frame, and its text to unfold."""
        page = self.page.replace("&", "&amp;").replace("'", "&#39;")
        style = f"width: 100%; height: {self.height + CONTROLS}px; border: 0"
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

    @property
    def _data(self) -> dict[str, Any]:
        """Return what `moving.js` reads."""
        looks = (TEXTS | PLAIN | {**self.looks}).items()
        return {
            "controls": [vars(one) | {"values": [*one.values]} for one in self.controls.values()],
            "looks": {name: {key.replace("_", "-"): value for key, value in look.items()} for name, look in looks},
            "cursor": self.cursor and vars(self.cursor),
            "texts": [*TEXTS],
            "height": self.height,
            "left": self.left,
            "right": self.right,
            "captions": self._by_setting(*self.caption),
            "layers": [self._by_setting(names, lambda *v, f=f: packed(f(*v))) for names, f in self.layers],
        }

    def _by_setting(self, names: Sequence[str], function: Callable[..., Any]) -> dict[str, Any]:
        """Return the numbers of some controls, and what there is for each setting of these."""
        settings = product(*(enumerate(self.controls[name].values.values()) for name in names))
        numbers_and_values = (zip(*setting, strict=True) if setting else ((), ()) for setting in settings)
        of = {",".join(map(str, numbers)): function(*values) for numbers, values in numbers_and_values}
        return {"by": [[*self.controls].index(name) for name in names], "of": of}
