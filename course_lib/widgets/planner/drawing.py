"""The drawing of a plan, as HTML: bars as wide as the page has room for, with the plan before as an outline."""

from collections.abc import Iterable, Iterator
from html import escape
from itertools import count
from typing import Any, NamedTuple

from ...planner import AVERAGING, STEP, Collective, Hardware, Plan, Span, costs, duration, how, shortage, size
from ...planner.explain import sender
from ...planner.fit import holder
from ...plots.canvas import CATEGORIES, COMPUTE, EARLIER, FETCHING, FORWARD, MOVING, UPDATE, WAITING
from ...plots.timeline import merged

WORK = {  # what a span's name begins with, what it is called in the legend, and its colour
    "earlier": ("earlier micro-batches", EARLIER),
    "forward": ("forward", FORWARD),
    "backward": ("backward", COMPUTE),
    "optimizer": ("optimizer's step", UPDATE),
    "launch": ("launches by the CPU", EARLIER),
}
MOVED = {
    "activations": ("activations moved", FETCHING),
    "keys and values": ("activations moved", FETCHING),
    "logits": ("activations moved", FETCHING),
    "wait": ("waits", "transparent"),
    "gradients": ("gradients moved", WAITING),
    "parameters": ("parameters moved", MOVING),
}
FACTS = ("held at most", "sent in a step", "a step", "tokens/s on a GPU", "model FLOPs used")
NEAR = 1 / 1000
"""Blocks of time with a smaller gap, as a part of the axis, are drawn as one."""

Block = tuple[float, float, str, str]
"""Start and width in the unit of the axis, colour, and what it is."""


class Shown(NamedTuple):
    """What the page shows: a plan, and the hardware that it is for."""

    plan: Plan
    hardware: Hardware


def axis(least: float, needed: float, earlier: float) -> float:
    """Return the end of an axis: `least` times 1, 2, 5, 10, 20 and so on. The earlier one stays if bars are legible."""
    steps = (least * factor * 10**power for power in count() for factor in (1, 2, 5))
    end = next(step for step in steps if step >= needed)
    return earlier if end <= earlier <= 5 * end else end


def ends(now: Shown, before: Shown | None, earlier: dict[str, float]) -> dict[str, float]:
    """Return the ends of the axes, in bytes and seconds. Memory's is at least twice the device's memory."""
    both = (now, before or now)
    needed = {
        "memory": max(plan.peak_bytes for plan, _ in both),
        "traffic": max(plan.sent_bytes for plan, _ in both),
        "time": max(plan.step_seconds(machine) for plan, machine in both),
    }
    least = {"memory": 2 * now.hardware.memory_bytes, "traffic": 1e3, "time": 1e-6}
    return {what: axis(least[what], needed[what], earlier.get(what, 0)) for what in needed}


def drawing(now: Shown, before: Shown | None, axes: dict[str, float]) -> str:
    """Return the plan's figures and its bars."""
    plan, machine = now
    short, where = shortage(plan, machine)
    how_trained = escape(how(plan.settings))
    return (
        f"<p><strong>{escape(plan.model.name)}</strong>, {plan.model.params / 1e9:.3g} billion parameters. "
        f"{how_trained[0].upper()}{how_trained[1:]}, on {escape(machine.name)}.</p>{_facts(now, before)}"
        + _memory(now, before, axes["memory"])
        + (f"<p>{size(short)} short: {escape(where)}.</p>" if short > 0 else "")
        + _traffic(now, before, axes["traffic"])
        + _time(now, before, axes["time"])
    )


def _facts(now: Shown, before: Shown | None) -> str:
    rows = (
        f"<p><span>{what}</span><strong>{number}</strong>{f'<span>was {was}</span>' if was != number else ''}</p>"
        for what, number, was in zip(FACTS, _numbers(now), _numbers(before or now), strict=True)
    )
    return f'<div class="plan-facts">{"".join(rows)}</div>'


def _numbers(shown: Shown) -> tuple[str, ...]:
    return size(shown.plan.peak_bytes), size(shown.plan.sent_bytes), *costs(*shown)[1:]


def _memory(now: Shown, before: Shown | None, end: float) -> str:
    plan, there = now.plan, now.hardware.memory_bytes
    earlier = before.plan.moments if before else {}
    rows = [_axis(size(end), there / end, f"device: {size(there)}")]
    for moment, held in _distinct(plan):
        total, was = sum(held.values()), sum(earlier[moment].values()) if moment in earlier else None
        blocks = _stacked((nbytes, CATEGORIES[kind], f"{kind} {size(nbytes)}") for kind, nbytes in held.items())
        rows.append(_row(moment, size(total), blocks, end, was, over=total > there))
    if plan.host_bytes:
        rows.append(_row("in the host's memory", size(plan.host_bytes), [], end))
    kinds = [(kind, colour) for kind, colour in CATEGORIES.items() if plan.bytes[kind]]
    return _panel(f"Held by {holder(plan)} on its device", kinds, rows, before, there / end)


def _stacked(parts: Iterable[tuple[float, str, str]]) -> Iterator[Block]:
    """Yield blocks one after the other."""
    start = 0.0
    for wide, colour, what in parts:
        yield start, wide, colour, what
        start += wide


def _distinct(plan: Plan) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the moments; "averaging" only if an engine then holds something that it does not hold in the step."""
    for moment, held in plan.moments.items():
        if moment != AVERAGING or any(held[kind] > plan.moments[STEP][kind] for kind in CATEGORIES):
            yield moment, held


def _traffic(now: Shown, before: Shown | None, end: float) -> str:
    calls = [
        (float(call.sent), CATEGORIES[_category(call)], f"{call.op} of {call.what}, {call.when}")
        for call in now.plan.collectives
    ]
    sent, was = size(now.plan.sent_bytes), before and before.plan.sent_bytes
    rows = [_axis(size(end)), _row("all together", sent, _stacked(calls), end, was)]
    rows += [_row(what, size(nbytes), [(0, nbytes, colour, what)], end) for nbytes, colour, what in calls]
    kinds = dict.fromkeys(map(_category, now.plan.collectives))
    return _panel(f"Sent by {sender(now.plan)} in a step", [(kind, CATEGORIES[kind]) for kind in kinds], rows, before)


def _category(call: Collective) -> str:
    """Return what the call moves: parameters, gradients or activations, of which logits are some."""
    return "activations" if call.what == "logits" else call.what.rpartition(" ")[2]


def _time(now: Shown, before: Shown | None, end: float) -> str:
    timeline = now.plan.timeline(now.hardware)
    took = before and before.plan.step_seconds(before.hardware)
    whole = [(0, timeline.seconds, EARLIER, "the step")]
    rows = [_axis(duration(end)), _row("the step", duration(timeline.seconds), whole, end, took)]
    kinds = dict.fromkeys(map(_kind, timeline.spans))
    for stream in dict.fromkeys(span.stream for span in timeline.spans):
        blocks: list[Block] = []
        for kind in kinds:
            spans = (span for span in timeline.spans if span.stream == stream and _kind(span) == kind)
            blocks += [(at, to - at, kind[1], kind[0]) for at, to, _ in merged(spans, end * NEAR)]
        rows.append(_row(stream, duration(timeline.busy(stream)), blocks, end))
    return _panel("The time of a step", kinds, rows, before)


def _kind(span: Span) -> tuple[str, str]:
    """Return the span's name in the legend, and its colour."""
    first = span.name.partition(" ")[0]
    return WORK.get(first) or MOVED[next((what for what in MOVED if what in span.name), "parameters")]


def _panel(title: str, kinds: Iterable[tuple[str, str]], rows: list[str], before: Any, line: float = 0) -> str:
    """Return rows with a title and a legend; `line` is where the device ends, as a part of the axis, if it is there."""
    names = [f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in kinds]
    mark = f' style="--device:{line:.2%}"' if line else ""
    if before:
        names.append('<span><i class="plan-before"></i>the plan before</span>')
    return f'<p class="plan-title">{title}</p><p class="plan-legend">{"".join(names)}</p><ul{mark}>{"".join(rows)}</ul>'


def _row(
    label: str, number: str, blocks: Iterable[Block], end: float, before: float | None = None, over: bool = False
) -> str:
    """Return a label, a number and blocks, with an outline of what the number was before."""
    drawn = "".join(
        f'<i style="left:{at / end:.3%};width:{wide / end:.3%};background:{colour}" title="{escape(what)}"></i>'
        for at, wide, colour, what in blocks
        if wide
    )
    if before is not None:
        drawn += f'<i class="plan-before" style="width:{before / end:.3%}"></i>'
    return (
        f"<li><strong{' class=plan-over' * over}>{number}</strong><span>{escape(label)}</span>"
        f'<div aria-hidden="true">{drawn}</div></li>'
    )


def _axis(last: str, mark: float = 2.0, label: str = "") -> str:
    marked = f'<small style="left:{mark:.3%}">{label}</small>' if label else "<small>0</small>"
    return f'<li class="plan-axis" aria-hidden="true"><div>{marked}<small style="right:0">{last}</small></div></li>'
