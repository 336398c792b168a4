"""A figure as the notebook shows it: an image with a caption and a text form.

A figure is an `<img>` with its SVG as data, because JupyterLab removes inline SVG from a notebook that it does not
trust. docs/figures.md says how the SVG follows the theme of the page.
"""

import base64
import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

THEMED = "".join(
    f'[data-jp-theme-light="{light}"] figure img {{ color-scheme: {theme} }}'
    for light, theme in (("true", "light"), ("false", "dark"))
)
"""Style for nbconvert's pages, which name their theme and set no color-scheme. JupyterLab, which does, may drop it."""

LEAST = "640px"  # narrower, the smallest letters would have fewer than 9 pixels
WIDE = "overflow-x: auto; padding-right: 24px; mask-image: linear-gradient(to left, transparent, black 24px)"
"""Style of a figure on a narrow page, which scrolls: where there is more to the right, it fades out."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Picture:
    """A figure that shows itself as the last value of a cell.

    Attributes:
        svg: the figure, a file of its own.
        caption: a sentence that says what to see.
        text: the same facts, for those who cannot see it.
        places: what a cursor shows: `labels`, and by its title, each panel's places: bytes, and the place of a label.
    """

    svg: str
    caption: str
    text: str
    places: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"{self.caption}\n\n{self.text}"

    @property
    def html(self) -> str:
        """The figure with its caption, and its text to unfold."""
        return (
            f'<style>{THEMED}</style><figure style="margin: 0.5em 0"><div style="{WIDE}">{self.image}</div>'
            f'<figcaption style="max-width: 44em; margin: 0.4em 0">{escape(self.caption)}</figcaption>'
            f"<details><summary>The figure as text</summary><pre>{escape(self.text)}</pre></details></figure>"
        )

    @property
    def image(self) -> str:
        """The figure as an `<img>`, whose size is known before it is drawn, so that the page does not jump."""
        root, data = ET.fromstring(self.svg).attrib, base64.b64encode(self.svg.encode()).decode()
        ratio = " / ".join(root["viewBox"].split()[2:])
        style = f"width: {root['width']}; aspect-ratio: {ratio}; max-width: 100%; min-width: {LEAST}"
        image = f'<img alt="{escape(self.caption)}" style="{style}" src="data:image/svg+xml;base64,{data}"'
        if self.places is None:
            return f"{image}>"
        cursor = escape((files(__package__) / "moving/static/cursor.js").read_text("utf-8"))
        places = escape(json.dumps(self.places, separators=(",", ":")))
        box = "position: relative; width: fit-content; max-width: 784px"
        return f'<div style="{box}">{image} data-places="{places}" onload="{cursor}"></div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


def framed(page: str, title: str, height: int) -> str:
    """Return a page in a frame, whose script and style are its own; `meter/replay/page.py` says why."""
    content = page.replace("&", "&amp;").replace("'", "&#39;")
    style = f"width: 100%; height: {height}px; border: 0"
    return f"<iframe title='{escape(title)}' style='{style}' srcdoc='{content}'></iframe>"
