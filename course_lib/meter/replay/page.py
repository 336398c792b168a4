"""`Replay`: the film as a page of its own, which shows itself as the last value of a cell.

The page is one file: data, script and style, without a network and without a kernel. In a notebook it stands in an
`<iframe srcdoc>`. There its script and its keys are its own: JupyterLab takes a key pressed in an output for a command
to the notebook, runs the script of an output again and again, and gives its style to the whole page. JupyterLab,
Notebook 7, VS Code, Colab and nbconvert all show such a frame. A notebook that is not trusted loses every frame, script
and style; then the text form is left, with a sentence that says how to get the film.
"""

import os
from dataclasses import replace
from functools import cached_property
from html import escape
from importlib.resources import files
from pathlib import Path

from .data import as_json
from .record import Film
from .words import captions, text

_UNTRUSTED = "The film shows in a trusted notebook: run this cell, or trust the notebook. The text has the same facts."


class Replay:
    """The replay of a run. It shows itself in a notebook; `print(replay)` writes it as text."""

    def __init__(self, film: Film) -> None:
        self._film = film

    @cached_property
    def _captions(self) -> list[str]:
        return captions(self._film)

    @cached_property
    def html(self) -> str:
        """The film as a page that needs nothing else."""
        static = files(__package__) / "static"
        page, style, script = (
            (static / name).read_text("utf-8") for name in ("replay.html", "replay.css", "replay.js")
        )
        data = as_json(self._film, self._captions).replace("<", "\\u003c")  # a tag could end the script that holds it
        for mark, content in (("STYLE", style), ("SCRIPT", script), ("DATA", data)):
            page = page.replace(f"/*{mark}*/", content)
        return page

    def without_code(self) -> "Replay":
        """Return the replay without lines and variables: of a run of the course's own code, they show its callers."""
        lanes = [
            replace(lane, events=[replace(event, line=None, around=(), counters=()) for event in lane.events])
            for lane in self._film.lanes
        ]
        return Replay(replace(self._film, lanes=lanes))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which any browser opens."""
        Path(path).write_text(self.html, encoding="utf-8", errors="replace")

    def __repr__(self) -> str:
        return text(self._film, self._captions)

    def _repr_html_(self) -> str:
        height = 420 + 20 * min(len(self._film.lanes), 16)  # a first guess, so that the notebook jumps little
        page = self.html.replace("&", "&amp;").replace("'", "&#39;")
        title = f"Replay of {self._film.size(' in ')}"
        return (
            "<style>.course-untrusted { display: none }</style>"
            f"<iframe title='{title}' style='width: 100%; height: {height}px; border: 0' srcdoc='{page}'></iframe>"
            f"<p class='course-untrusted'>{_UNTRUSTED}</p>"
            f"<details><summary>The replay as text</summary><pre>{escape(repr(self))}</pre></details>"
        )
