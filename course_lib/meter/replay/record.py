"""The events of each rank, read from the records of a run.

Event   a call, a mark or the end of a rank, with the step of the film at which it happens
Lane    the events of one rank, in order
Film    the lanes of a run
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any

from .steps import schedule

Values = tuple[tuple[str, tuple[Any, ...]], ...]
"""Names and elements of small tensors."""


@dataclass(kw_only=True)
class Event:
    """One event of one rank. `schedule` sets `step` and `done`."""

    kind: str  # call, mark or end
    name: str  # `all_reduce #2`, `after backward`, or `returned`
    op: str = ""  # the function of `torch.distributed`
    seconds: float = 0.0  # when it happened
    line: Any = None  # the learner's line: its label, source, filename, number and function
    match: int = 0  # the number that the calls of one collective share; 0 if the peers are unknown
    blocking: bool = False  # the rank does nothing until the call has ended
    waited_from: float = inf  # when the rank began to wait for a call that is not blocking; inf if it never waited
    ended: bool = True  # whether the call ended
    members: tuple[int, ...] = ()  # the lanes that take part in the call
    sends: Mapping[int, int] = field(default_factory=dict)  # bytes by receiving lane
    tensors: str = ""  # dtype and shapes; at the end, what the rank returned
    held: Mapping[str, int] = field(default_factory=dict)  # bytes by category
    before: Values = ()  # the small tensors that take part
    after: Values = ()
    around: Values = ()  # the learner's other variables
    counters: Values = ()  # the learner's whole numbers that change, such as the number of a loop's iteration
    step: int = 0  # the step at which the rank makes the call
    done: int | None = None  # the step at which the call ends; None if it never ends
    chunk: int = 0  # the number, from 1, of the chunk that a message carries; 0 for other events


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The events of one rank, in order; the last is its end."""

    rank: int
    events: list[Event]

    @property
    def name(self) -> str:
        return f"rank {self.rank}"


@dataclass(frozen=True, kw_only=True)
class Film:
    """A run in steps."""

    lanes: list[Lane]  # one for each rank
    failure: str = ""  # why the run failed
    notes: tuple[str, ...] = ()  # sentences about what the film does not show

    @property
    def last(self) -> int:
        """Return the number of the last step. The film begins at step 1."""
        return max((lane.events[-1].step for lane in self.lanes), default=1)

    def size(self, between: str) -> str:
        """Return the number of ranks and that of steps: `2 ranks, 1 step`."""
        counts = {"rank": len(self.lanes), "step": self.last}
        return between.join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())

    @cached_property
    def is_ring(self) -> bool:
        """Whether every message goes to the next of at least three ranks."""
        sends = [(n, e.sends) for n, lane in enumerate(self.lanes) for e in lane.events if e.op == "send"]
        following = (list(receivers) == [(n + 1) % len(self.lanes)] for n, receivers in sends)
        return len(self.lanes) > 2 and bool(sends) and all(following)

    @cached_property
    def moments(self) -> list[list[tuple[Lane, Event]]]:
        """The events of each step, from step 1: those that begin at it, end at it or are under way."""
        moments: list[list[tuple[Lane, Event]]] = [[] for _ in range(self.last)]
        for lane in self.lanes:
            for event, following in pairwise([*lane.events, lane.events[-1]]):
                until = event.done or max(following.step - 1, event.step)  # a call that never ends, to the rank's end
                for step in range(event.step, until + 1):
                    moments[step - 1].append((lane, event))
        return moments

    @cached_property
    def _parts(self) -> dict[int, dict[int, int]]:
        """The steps at which lanes made each call, by match and lane."""
        parts: dict[int, dict[int, int]] = defaultdict(dict)
        for number, lane in enumerate(self.lanes):
            for event in lane.events:
                parts[event.match][number] = event.step
        return parts

    def missing(self, event: Event, step: int) -> list[Lane]:
        """Return the lanes whose part in a call has not come by `step`."""
        parts = self._parts[event.match]
        return [self.lanes[member] for member in event.members if parts.get(member, inf) > step]


def film(
    calls: Sequence[Sequence[Any]],
    memory: Sequence[Any],
    ends: Iterable[tuple[str, Any, str]],
    ranks: Iterable[int],
    failure: str = "",
    *,
    show_memory: bool = True,
) -> Film:
    """Return the film of a run.

    Args:
        calls: such as `run.calls`. The arguments up to `ranks` have an entry for each rank.
        memory: such as `run.memory`; empty if it was not measured. These attributes are read: `timeline`, `marks`,
            `by_category`.
        ends: the state in which each rank ended, such as `returned`, the line that it was at, if known, and what it
            returned.
        ranks: the numbers of the ranks.
        failure: why the run failed.
        show_memory: whether the film shows what each rank held.
    """
    notes = [] if memory or failure else ["Bytes were not measured: the world was made with measure=False."]
    if any(calls) and not any(call.values for theirs in calls for call in theirs):
        notes.append("To see loop counters and small tensors' values too, make the world with World(…, replay=True).")
    place = {rank: number for number, rank in enumerate(ranks)}
    lanes = []
    for index, (rank, theirs, end) in enumerate(zip(place, calls, ends, strict=True)):
        events = [_call(place, rank, call) for call in theirs]
        if memory:
            _weigh(events, memory[index].timeline)
            events += [
                Event(kind="mark", name=label, seconds=snapshot.seconds, held=snapshot.by_category)
                for label, snapshot in memory[index].marks.items()
            ]
            events.sort(key=lambda event: event.seconds)
        held = memory[index].by_category if memory else {}
        events.append(Event(kind="end", name=end[0], line=end[1], tensors=end[2], held=held))
        for event in events if not show_memory else ():
            event.held = {}
        lanes.append(Lane(rank=rank, events=events))
    by_lane = [lane.events for lane in lanes]
    _leave_out_constants(by_lane)
    schedule(by_lane, together=bool(failure))
    _follow_chunks(by_lane)
    return Film(lanes=lanes, failure=failure, notes=tuple(notes))


def _call(place: Mapping[int, int], rank: int, call: Any) -> Event:
    members = (rank, call.root) if call.op in ("send", "recv") and call.root is not None else call.ranks
    values = ("before", "after", "around", "counters") if call.values else ()
    return Event(
        kind="call",
        name=call.name,
        op=call.variant,
        seconds=call.issued,
        line=call.line,
        match=call.match,
        blocking=call.waited_from == call.issued,
        waited_from=call.waited_from,
        ended=call.matched < inf,
        members=tuple(place[member] for member in members if member in place),
        sends={place.get(receiver, -1): int(share) for receiver, share in call.shares.items()},
        tensors=call.tensors,
        **{name: getattr(call.values, name) for name in values},
    )


def _follow_chunks(lanes: Sequence[Sequence[Event]]) -> None:
    """Give each message the number of its chunk.

    A rank passes on what has come first, and never back to where it came from. If nothing has come that it can pass on,
    its message begins a new chunk.
    """
    arrived: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by lane: step, sender, and number of the chunk
    chunks: dict[int, int] = {}  # by match
    sends = [(lane, event) for lane, events in enumerate(lanes) for event in events if event.op == "send"]
    for lane, event in sorted(sends, key=lambda send: send[1].step):
        for receiver in event.sends if event.match and event.done else ():
            came = [one for one in arrived[lane] if one[0] < event.step and one[1] != receiver][:1]
            chunks[event.match] = came[0][2] if came else len({*chunks.values()}) + 1
            arrived[lane] = [one for one in arrived[lane] if one not in came]
            arrived[receiver].append((event.done or 0, lane, chunks[event.match]))
    for event in (event for events in lanes for event in events):
        event.chunk = chunks.get(event.match, 0)


def _leave_out_constants(lanes: Sequence[Sequence[Event]]) -> None:
    """Keep the counters that change on at least one rank, and the variables that change or differ between ranks."""
    on_a_rank: dict[tuple[int, str], set[Any]] = defaultdict(set)
    on_all: dict[str, set[Any]] = defaultdict(set)
    events = [(lane, event) for lane, theirs in enumerate(lanes) for event in theirs]
    for lane, event in events:
        for name, value in event.counters:
            on_a_rank[lane, name].add(value)
        for name, value in event.around:
            on_all[name].add(value)
    changing = {name for (_, name), values in on_a_rank.items() if len(values) > 1}
    telling = {name for name, values in on_all.items() if len(values) > 1}
    for _, event in events:
        event.counters = tuple(item for item in event.counters if item[0] in changing)
        event.around = tuple(item for item in event.around if item[0] in telling)


def _weigh(events: list[Event], changes: Sequence[Any]) -> None:
    """Set the bytes that the rank held at each of `events`, which are in order."""
    held: dict[str, int] = {}
    number = 0
    for event in events:
        while number < len(changes) and changes[number].seconds <= event.seconds:
            for category, delta in changes[number].deltas.items():
                held[category] = held.get(category, 0) + delta
            number += 1
        event.held = {category: nbytes for category, nbytes in held.items() if nbytes}
