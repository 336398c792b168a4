"""The film as JSON, for the page's script: what many events share is in a table, and events hold its place there."""

import inspect
import json
import linecache
import re
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from .record import Event, Film
from .words import numbers

MOST_LINES = 60  # the most lines of a function that the page shows; of a longer one, those around the lines in use
AROUND = 2  # lines before and after the lines in use, if a function is not shown as a whole


def as_json(film: Film, captions: Sequence[str]) -> str:
    """Return the film as JSON. `replay.js` reads it, and says there what each entry means."""
    names, lines, held, members = (dict[Any, int]() for _ in range(4))  # different values, by place

    def place(table: dict[Any, int], value: Any) -> int:
        return table.setdefault(value, len(table))

    def packed(event: Event) -> list[Any]:
        line = event.line
        at = 1 + place(lines, (line.filename, line.function, line.line, str(line))) if line is not None else 0
        sends = [part for share in event.sends.items() for part in share]
        sides = (event.before, event.after, event.around, event.counters)
        values = [[[name, numbers(v)] for name, v in side] for side in sides]
        row: list[Any] = [event.step, event.done or 0, place(names, (event.kind, event.name, event.op, event.tensors))]
        row += [at, place(held, tuple(event.held.items())), event.match, place(members, event.members)]
        row += [int(event.blocking), sends, *values, event.chunk]
        while not row[-1]:
            row.pop()
        return row

    film_data = {
        "lanes": [
            {"name": lane.name, "rank": lane.rank, "events": [packed(event) for event in lane.events]}
            for lane in film.lanes  # first: they fill the tables
        ],
        "captions": captions,
        "ring": film.is_ring,
        "failure": film.failure,
        "notes": film.notes,
        "names": [*names],
        "lines": [label for *_, label in lines],
        "held": [dict(items) for items in held],
        "members": [*members],
        "blocks": _blocks([*lines]),
    }
    return json.dumps(film_data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _blocks(lines: list[Any]) -> list[dict[str, Any]]:
    """Return the functions that the lines are in: label, number of the first line, text, and the lines' places."""
    used: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for place, (filename, function, number, label) in enumerate(lines, 1):
        used[filename, function].append((number, place, label))
    found = []
    for (filename, function), uses in used.items():
        whole = linecache.getlines(filename)
        first, last = _extent(whole, function, [number for number, _, _ in uses])
        text = textwrap.dedent("".join(whole[first - 1 : last])).rstrip()
        label = re.sub(r",? ?line \d+$", "", uses[0][2])
        places = {place: number for number, place, _ in uses}
        found.append({"label": label, "first": first, "text": text.split("\n") if text else [], "places": places})
    return found


def _extent(lines: list[str], function: str, used: list[int]) -> tuple[int, int]:
    """Return the first and the last line to show of the function that the lines `used` are in."""
    head = re.compile(rf"\s*def {re.escape(function)}\b")
    start = max((number for number, line in enumerate(lines[: min(used)], 1) if head.match(line)), default=0)
    try:
        block = inspect.getblock(lines[start - 1 :]) if start > 0 else []
    except (SyntaxError, tokenize.TokenError):  # of a file that was edited while it ran
        block = []
    if block and len(block) <= MOST_LINES and max(used) < start + len(block):
        return start, start + len(block) - 1
    return max(1, min(used) - AROUND), min(len(lines), max(used) + AROUND)
