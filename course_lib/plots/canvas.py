"""The canvas of every figure: SVG of one width, that grows downwards, in colours that follow the theme.

Colours are of three kinds, and no figure uses one kind for another:

    CATEGORIES   what memory holds; six colours of Okabe and Ito, which people with any common colour vision tell apart
    time         what a rank does: computing is slate and waiting red, in tints; bytes that travel are sky blue
    MEMBERS      ranks, and runs that are compared: four tints of violet, always with a label beside them
"""

import re
from collections.abc import Iterable
from html import escape
from math import floor, log10
from typing import Any

from .picture import Picture

INK, PAPER, FAINT, SHADE = "var(--ink)", "var(--paper)", "var(--faint)", "var(--shade)"
"""Lines and letters that are not data; what they stand on; secondary ones; areas that are not data."""
HATCH = "url(#hatch)"
THEMES = {
    "light": {"ink": "#1f2328", "paper": "#ffffff", "faint": "#636c76", "shade": "#eef1f4"},
    "dark": {"ink": "#e6e6e6", "paper": "#111111", "faint": "#9aa4af", "shade": "#23282e"},
}
CATEGORIES = {  # from the bottom up: persistent state, then transient memory
    "parameters": "#0072B2",
    "optimizer": "#009E73",
    "gradients": "#E69F00",
    "activations": "#CC79A7",
    "communication": "#56B4E9",
    "other": "#999999",
}
EARLIER, FORWARD, COMPUTE, UPDATE = "#C5CED6", "#8696A8", "#5D6D7E", "#41505E"
WAITING, STALLED, FETCHING, MOVING = "#B5342C", "#E06A53", "#256E9C", CATEGORIES["communication"]
MEMBERS = ("#4C3D8F", "#8D7CD0", "#B3A6E4", "#D6CEF4")
WIDTH, MARGIN, ROW = 760, 12, 22
SMALL: dict[str, Any] = {"font_size": 11}
NOTE = SMALL | {"fill": FAINT}

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NARROW, _WIDE = set("iljtfrI.,:;'|()[] "), set("mwMW%@—→")


class Canvas:
    """SVG that grows downwards: `y` is where the next row goes."""

    def __init__(self) -> None:
        self.y = 4.0
        self._elements: list[str] = []

    def add(self, tag: str, content: str = "", **attributes: Any) -> None:
        """Add an element. Underscores in names of attributes become hyphens."""
        shown = "".join(f' {name.replace("_", "-")}="{short(value)}"' for name, value in attributes.items())
        content = escape(_NOT_IN_XML.sub("\ufffd", content))  # a name in a program may hold any character
        self._elements.append(f"<{tag}{shown}>{content}</{tag}>" if content else f"<{tag}{shown}/>")

    def text(self, x: float, y: float, text: str, anchor: str = "start", **look: Any) -> None:
        """Write `text`, with the foot of its letters at `y`."""
        self.add("text", text, x=x, y=y, **({} if anchor == "start" else {"text_anchor": anchor}), **look)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **look: Any) -> None:
        self.add("rect", x=x, y=y, width=max(width, 0.5), height=height, fill=fill, **look)

    def block(self, x: float, y: float, width: float, height: float, fill: str, label: str = "") -> bool:
        """Draw a filled rectangle, with a label inside if there is room. Return whether there is.

        Its outline shows it on grounds of both themes, from which some fills hardly differ.
        """
        self.rect(x, y, width, height, fill, **({"stroke": FAINT} if min(width, height) > 3 else {}))
        fits = text_width(label, 11) + 4 <= width
        if label and fits:
            self.text(x + width / 2, y + height / 2 + 4, label, "middle", **SMALL | {"fill": ink_on(fill)})
        return fits

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT, **look: Any) -> None:
        self.add("path", d=f"M{short(x1)} {short(y1)}L{short(x2)} {short(y2)}", stroke=stroke, fill="none", **look)

    def title(self, text: str) -> None:
        """Write a title in a row of its own."""
        self.y += ROW + 10
        self.text(0, self.y - 5, text, font_weight="bold")

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Write names in as many rows as they take, each behind a square of its colour."""
        x = 0.0
        self.y += ROW
        for name, colour in entries:
            if x > 0 and x + 18 + text_width(name) > WIDTH:
                x, self.y = 0.0, self.y + ROW - 4
            self.block(x, self.y - 15, 12, 12, colour)
            self.text(x + 18, self.y - 5, name)
            x += 34 + text_width(name)

    def nest(self, svg: str, height: float) -> None:
        """Add the elements of an SVG that is as wide as the canvas."""
        self._elements.append(f'<g transform="translate(0 {short(self.y)})">{svg}</g>')
        self.y += height

    def picture(self, caption: str, text: str, places: dict[str, Any] | None = None) -> Picture:
        """Return what was drawn as a `Picture`."""
        width, height = WIDTH + 2 * MARGIN, short(self.y + MARGIN)
        light, dark = (";".join(f"--{name}:{colour}" for name, colour in theme.items()) for theme in THEMES.values())
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}px" height="{height}px" '
            f'viewBox="-{MARGIN} 0 {width} {height}" font-size="12px" font-family="system-ui, sans-serif" fill="{INK}">'
            f"<style>:root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
            '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<path d="M0 0v5" stroke="{INK}" stroke-width="2"/></pattern>'
            f'<rect x="-{MARGIN}" width="100%" height="100%" fill="{PAPER}"/>{"".join(self._elements)}</svg>'
        )
        return Picture(svg=svg, caption=caption, text=text, places=places)


def short(value: float | str) -> str:
    """Return a number with at most one decimal, and a string as an attribute's value."""
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def text_width(text: str, size: float = 12) -> float:
    """Return about how wide `text` is, in pixels. Fonts differ, so this is a little too much."""
    return size * sum(0.36 if c in _NARROW else 0.95 if c in _WIDE else 0.7 if c.isupper() else 0.63 for c in text)


def cut(text: str, letters: int) -> str:
    """Return `text` with at most this many letters."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def ink_on(colour: str) -> str:
    """Return black or white, whichever is more legible on `colour`."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if luminance > 0.18 else "#ffffff"  # where black and white are equally legible, in WCAG's formula


def percent(part: float) -> str:
    """Return `36 %` for 0.36."""
    return f"{100 * part:.0f} %"


def member(number: int) -> str:
    """Return the colour of a rank."""
    return MEMBERS[number % len(MEMBERS)]


def ticks(highest: float, most: int = 4) -> list[float]:
    """Return round numbers from 0 to `highest`, about `most` of them."""
    if highest <= 0:
        return [0.0]
    unit = 10.0 ** floor(log10(highest / most))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= highest / most)
    return [number * step for number in range(int(highest / step + 1e-9) + 1)]
