"""`Moving`: a figure with controls, which shows itself as the last value of a cell.

It is one page: stills, script and style, without a network and without a kernel. In a notebook it stands in an
`<iframe srcdoc>`, for the reasons that `meter/replay/page.py` gives. A notebook that is not trusted, and a page without
scripts, show the first still.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

from ..canvas import THEMES, Canvas
from ..picture import Picture, framed
from .shapes import PLAIN, TEXTS, Still, draw, packed

CONTROLS = 170
"""A first guess of the height of controls and caption, so that the notebook jumps little."""

Stills = tuple[Sequence[str], Callable[..., Still]]
"""Names of controls, and a function from their values to a part of the still."""
Captions = tuple[Sequence[str], Callable[..., str]]


class Control(NamedTuple):
    """Buttons, or with many values a slider: its label, its values, and the place of the value at first."""

    label: str
    values: Sequence[Any]
    start: int = 0

    @property
    def names(self) -> list[str]:
        """The values as a reader sees them."""
        return [value if isinstance(value, str) else f"{value:,}" for value in self.values]


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
        height, left, right: of the figure and of its margins, in pixels.
        cursor: if the reader can move a line over the lanes, which reads the boxes that it crosses: the look of what it
            reads where notes are numbers, otherwise "", for the look of the box.
    """

    title: str
    controls: Mapping[str, Control]
    layers: Sequence[Stills]
    caption: Captions
    looks: Mapping[str, Mapping[str, Any]]
    legend: Mapping[str, str]
    height: int
    left: int = 0
    right: int = 0
    cursor: str | None = None

    @cached_property
    def still(self) -> Picture:
        """The figure at first, as a picture that does not move."""
        canvas, start = Canvas(), {name: control.values[control.start] for name, control in self.controls.items()}
        for names, part in self.layers:
            draw(canvas, part(*map(start.get, names)), PLAIN | {**self.looks}, self.left, self.right)
        canvas.y = self.height
        canvas.legend((name, self.looks[look]["fill"]) for look, name in self.legend.items())
        names, caption = self.caption
        return canvas.picture(caption(*map(start.get, names)), "\n".join(self._as_text()))

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
        return (
            "<style>.course-untrusted { display: none }</style>"
            f"{framed(self.page, self.title, self.height + CONTROLS)}"
            f"<div class='course-untrusted'>{self.still.image}</div>"
            "<details><summary>The figure as text</summary>"
            f"<pre style='white-space: pre-wrap'>{escape(repr(self))}</pre></details>"
        )

    def __repr__(self) -> str:
        return repr(self.still)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    @property
    def _data(self) -> dict[str, Any]:
        """The figure as `moving.js` reads it."""
        looks = (TEXTS | PLAIN | {**self.looks}).items()
        return {
            "controls": [control._asdict() | {"values": control.names} for control in self.controls.values()],
            "looks": {name: {key.replace("_", "-"): value for key, value in look.items()} for name, look in looks},
            "texts": [*TEXTS],
            "layers": [self._by_setting(names, lambda *v, part=part: packed(part(*v))) for names, part in self.layers],
            "captions": self._by_setting(*self.caption),
        } | {name: getattr(self, name) for name in ("height", "left", "right", "cursor")}

    def _by_setting(self, names: Sequence[str], make: Callable[..., Any]) -> dict[str, Any]:
        """Return the numbers of some controls, and an entry for each setting of these."""
        numbers = product(*(range(len(self.controls[name].values)) for name in names))
        values = product(*(self.controls[name].values for name in names))
        of = {",".join(map(str, place)): make(*setting) for place, setting in zip(numbers, values, strict=True)}
        return {"by": [[*self.controls].index(name) for name in names], "of": of}

    def _as_text(self) -> Iterator[str]:
        """Yield a line for each setting: its values and its caption."""
        names, caption = self.caption
        chosen = [self.controls[name] for name in names]
        named = product(*([f"{one.label}: {name}" for name in one.names] for one in chosen))
        for setting, values in zip(named, product(*(one.values for one in chosen)), strict=True):
            yield f"{', '.join(setting)}. {caption(*values)}"
