"""The steps of a film: a logical clock (Lamport 1978, "Time, clocks, and the ordering of events").

Seconds differ from run to run and from rank to rank; what can only happen after what does not. So a rank's next call
is one step after its last, and a collective ends at the step at which the last of its members calls. A rank that has
to wait stays where it is for as many steps as its peers need. Two runs of the same program have the same steps.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any


def schedule(lanes: Sequence[list[Any]], *, together: bool) -> None:
    """Set `step` and `done` of every event of every lane.

    Args:
        lanes: the events of each rank, in order.
        together: whether all ranks end at the same step: that at which a failed run stops.
    """
    clocks = _Clocks(lanes)
    while clocks.advance() or clocks.force():
        pass
    clocks.finish()
    last = 1 + max(clocks.now, default=0)
    for now, events in zip(clocks.now, lanes, strict=True):
        events[-1].step = events[-1].done = last if together and events[-1].name != "returned" else now + 1
    _join(lanes)


def _join(lanes: Sequence[list[Any]]) -> None:
    """Make one step of a step at which every rank starts calls that all end at the next one, and of that next one."""
    starts: dict[int, dict[int, bool]] = defaultdict(dict)  # by step and lane, whether all that it does is to start
    for lane, events in enumerate(lanes):
        for event in events:
            starts[event.step][lane] = event.done == event.step + 1
    busy = {event.done for events in lanes for event in events}
    joined = [s for s, theirs in starts.items() if s not in busy and len(theirs) == len(lanes) and all(theirs.values())]
    for event in (event for events in lanes for event in events):
        event.step -= sum(step < event.step for step in joined)
        event.done = event.done and event.done - sum(step < event.done for step in joined)


class _Clocks:
    """The step that each rank has come to, and how many of its events it has behind it."""

    def __init__(self, lanes: Sequence[list[Any]]) -> None:
        self.now = [0] * len(lanes)
        self._programs = [_program(events) for events in lanes]
        self._at = [0] * len(lanes)
        self._calls: dict[Any, list[Any]] = defaultdict(list)
        for event in (event for events in lanes for event in events if event.kind == "call"):
            self._calls[event.match or id(event)].append(event)
        for program in self._programs:  # a call that the rank went on after has ended
            for event, _ in program:
                event.ended |= event.blocking and event is not program[-1][0]

    def advance(self) -> bool:
        """Let every rank go on as far as it can. Return whether any did."""
        return sum(self._advance(lane) for lane in range(len(self.now))) > 0

    def force(self) -> bool:
        """Let the first rank that waits for a call which ended go on, if the recorded waits are in a circle."""
        for lane, (program, at) in enumerate(zip(self._programs, self._at, strict=True)):
            if at < len(program) and self._ended(program[at][0]):
                self._at[lane] += 1
                return True
        return False

    def finish(self) -> None:
        """Set the last step of the calls that no rank waits for."""
        for calls in self._calls.values():
            self._done(calls[0])

    def _advance(self, lane: int) -> bool:
        program, began = self._programs[lane], (self._at[lane], self.now[lane])
        while self._at[lane] < len(program):
            event, is_wait = program[self._at[lane]]
            if not is_wait and not event.step:
                self.now[lane] += 1
                event.step = self.now[lane]
            if event.kind == "mark":
                event.done = event.step
            elif is_wait or event.blocking:
                done = self._done(event)
                if done is None:
                    break
                self.now[lane] = max(self.now[lane], done)
            self._at[lane] += 1
        return began != (self._at[lane], self.now[lane])

    def _done(self, event: Any) -> int | None:
        """Return the step at which the call ends, once all its members have made it."""
        if event.done is not None:
            known: int = event.done
            return known
        calls = self._calls[event.match or id(event)]
        if not self._ended(event) or not all(call.step for call in calls):
            return None
        done: int = max(call.step for call in calls)
        for call in calls:
            call.done = done
        return done

    def _ended(self, event: Any) -> bool:
        return any(call.ended for call in self._calls[event.match or id(event)])


def _program(events: list[Any]) -> list[tuple[Any, bool]]:
    """Return the events of a rank except its end, and its waits for earlier calls, in order."""
    program = [(event.seconds, event, False) for event in events[:-1]]
    program += [
        (event.waited_from, event, True)
        for event in events[:-1]
        if not event.blocking and event.seconds < event.waited_from < inf
    ]
    program.sort(key=lambda item: item[0])
    for (_, event, _), (_, following, is_wait) in pairwise(program):
        event.blocking |= is_wait and following is event  # it does nothing between the call and its wait
    return [(event, is_wait) for _, event, is_wait in program]
