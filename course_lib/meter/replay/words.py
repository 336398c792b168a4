"""The film in sentences: a caption for each step, and the text form."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...errors import who
from .record import Event, Film, Lane

MOST_PARTS = 8  # the most messages that a caption names, and the most ranks whose values the text form shows


def captions(film: Film) -> list[str]:
    """Return what happens at each step, from step 1."""
    return [_sentence(film, step, moment) for step, moment in enumerate(film.moments, 1)]


Moment = Sequence[tuple[Lane, Event]]


def _sentence(film: Film, step: int, moment: Moment) -> str:
    found: dict[str, list[Lane]] = defaultdict(list)
    for lane, event in moment:
        if text := _happens(film, lane, event, step):
            found[text].append(lane)
    parts = [*_messages(film, step, moment), *(f"{_who(film, lanes)}: {text}" for text, lanes in found.items())]
    if (name := _differing(step, moment)) is not None:
        parts.append(f"{name} was called from different lines")
    sentence = "; ".join(parts[:MOST_PARTS]) + ("; …" if len(parts) > MOST_PARTS else "")
    return sentence[:1].upper() + sentence[1:]


def _differing(step: int, moment: Moment) -> str | None:
    """Return the name of a collective that ends at `step` and that ranks called from different lines, if any."""
    lines: dict[int, Any] = {}
    for _, event in moment:
        ends = event.done == step and event.match and event.op not in ("send", "recv")
        if ends and lines.setdefault(event.match, event.line) != event.line:
            return event.name
    return None


def _messages(film: Film, step: int, moment: Moment) -> Iterator[str]:
    routes: dict[int, list[str]] = defaultdict(list)
    for lane, event in moment:
        if event.done == step and event.op == "send":
            for receiver, nbytes in event.sends.items():
                to = film.lanes[receiver].rank if receiver >= 0 else event.name.rpartition(" ")[2]
                routes[nbytes].append(f"{lane.name} → {to}")
    for nbytes, found in routes.items():
        if film.is_ring and len(found) == len(film.lanes):
            sends = [event.done or step + 1 for event in film.lanes[0].events if event.op == "send"]
            sent = sum(done <= step for done in sends)
            yield f"every rank passes {in_bytes(nbytes)} on; each has sent {sent} of {len(sends)} chunks"
            continue
        more = f" and {len(found) - MOST_PARTS} more" if len(found) > MOST_PARTS else ""
        each = " each" if len(found) > 1 else ""
        yield f"{in_bytes(nbytes)}{each} from {', '.join(found[:MOST_PARTS])}{more}"


def _happens(film: Film, lane: Lane, event: Event, step: int) -> str:
    """Return what a rank does at `step` by `event`; empty if nothing, or if its message arrives."""
    if event.kind == "end":
        return event.name
    if event.kind == "mark":
        return f"the mark “{event.name}”"
    if event.done == step:
        total = sum(event.sends.values())
        average = " on average" if event.op in ("broadcast", "reduce") else ""  # one rank of the ring passes nothing on
        sent = f", {in_bytes(total)} sent by each{average}" if total else ""
        return "" if event.op in ("send", "recv") else f"{event.name}{sent}"
    if event.blocking:
        missing = film.missing(event, step) if event.op not in ("send", "recv") else []
        why = f" for {_who(film, missing)}" if missing else f" of {event.tensors}" if event.done is None else ""
        return f"waiting in {event.name}{why}"
    name = f"a {event.op}" if event.op in ("send", "recv") else event.name
    return f"starting {name}" if event.step == step else ""


def in_bytes(count: float) -> str:
    """Return `count` bytes in the unit that fits: `12.8 MB`. MB is 10⁶ bytes."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def numbers(values: Iterable[Any]) -> str:
    """Return the elements of a tensor: whole numbers below 10⁷, and four digits of the others, also complex ones."""
    return " ".join(f"{v:.7g}" if not isinstance(v, complex) and v == v // 1 < 1e7 else f"{v:.4g}" for v in values)


# -- the text form -----------------------------------------------------------------------------------------------


def text(film: Film, captions: Sequence[str]) -> str:
    """Return the film as text."""
    lines = [f"Replay: {film.size(', ')}", *film.notes]
    for step, (caption, moment) in enumerate(zip(captions, film.moments, strict=True), 1):
        lines += [f"step {step}: {caption}", *_details(film, step, moment)]
    return "\n".join([*lines, *filter(None, [film.failure])])


def _details(film: Film, step: int, moment: Moment) -> Iterator[str]:
    lines: dict[str, list[Lane]] = defaultdict(list)
    held: dict[str, list[Lane]] = defaultdict(list)
    values: list[str] = []
    for lane, event in moment:
        if event.step == step and event.line is not None:
            lines[f"{event.line}: {event.line.source}"].append(lane)
        if event.kind == "end" and event.tensors and len(values) < MOST_PARTS:
            values.append(f"    {lane.name}: {event.tensors}")
        if event.step == step and event.held and event.kind != "call":
            held[", ".join(f"{name} {in_bytes(n)}" for name, n in event.held.items() if n)].append(lane)
        if event.done == step and (event.before or event.after) and len(values) < MOST_PARTS:
            sides = [", ".join(f"{name} [{numbers(v)}]".strip() for name, v in s) for s in (event.before, event.after)]
            verb = {"send": "sends ", "recv": "receives "}.get(event.op, "")
            values.append(f"    {lane.name}: {verb}{' → '.join(filter(None, sides))}")
    yield from (f"    {_who(film, lanes)} at {line}" for line, lanes in lines.items())
    yield from values
    yield from (f"    {_who(film, lanes)}: {text}" for text, lanes in held.items())


def _who(film: Film, lanes: Sequence[Lane]) -> str:
    return who(list(dict.fromkeys(lane.rank for lane in lanes)), len(film.lanes))
