"""How an incident looks in a notebook: its ranks in their colours, its diagnosis as a card."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from ..plots.canvas import ink_on, member

PRE = "margin: 0 0 0.5em; padding: 0; white-space: pre-wrap; overflow-wrap: anywhere; background: none"
CARD = "border: 1px solid #8886; border-left: 4px solid #c92a2a; border-radius: 6px; padding: 8px 14px; max-width: 60em"
STATES = {"completed": "✓", "started": "…"}


def rank_tag(rank: str) -> str:
    """Return a rank's name on its colour, as HTML."""
    colour = member(int(rank))
    look = f"background: {colour}; color: {ink_on(colour)}; border-radius: 3px; padding: 0 5px; font-weight: 600"
    return f'<span style="{look}">rank {rank}</span>'


def logs(text: str) -> str:
    """Return lines such as `[rank2] step 1` as HTML."""
    shown = re.sub(r"^\[rank(\d+)\]", lambda found: rank_tag(found[1]), escape(text), flags=re.MULTILINE)
    return f'<pre style="{PRE}">{shown}</pre>'


def program(text: str) -> str:
    """Return code as HTML, in letters of the size that a code cell's have. Its lines are scrolled, not wrapped."""
    look = f"{PRE}; white-space: pre; overflow-x: auto; font-size: var(--jp-code-font-size)"
    return f'<pre style="{look}" tabindex="0">{escape(text)}</pre>'


def calls(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return calls as an HTML table. The first cell of a row is a rank, and one of the others is a state."""
    lines = ["".join(f"<th>{name}</th>" for name in head)]
    for rank, *rest in rows:
        cells = (rank_tag(rank), *(f"{STATES.get(cell, '')} {escape(cell)}".strip() for cell in rest))
        lines.append("".join(f'<td style="text-align: left">{cell}</td>' for cell in cells))
    shown = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div style="overflow-x: auto"><table>{shown}</table></div>'


class Diagnosis:
    """The course's report of an incident."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        parts = []
        for number, line in enumerate((self._text[:1].upper() + self._text[1:]).splitlines()):
            shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line))
            shown = re.sub(r"^(Next:|Known:)", r"<b>\1</b>", f"<b>{shown}</b>" if number == 0 else shown)
            tag, look = ("pre", PRE) if line.startswith(" ") else ("p", "margin: 4px 0")
            parts.append(f'<{tag} style="{look}">{shown}</{tag}>')
        return f'<div style="{CARD}"><strong>Diagnosis</strong>{"".join(parts)}</div>'
