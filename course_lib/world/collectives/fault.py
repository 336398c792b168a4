"""The states of ranks, the reasons why a run cannot go on, and the exception that stops a rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from ...meter import SourceLine
from ..error_report import ErrorReport
from .call import Call


class Stopped(BaseException):
    """The exception that ends a rank; no Exception, so that a learner's `except Exception` does not catch it."""


class State(Enum):
    """The state of a rank."""

    RUNNING = "running"
    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"
    DIED = "died"


Kind = Literal[
    "raised", "exited", "mismatch", "refused", "absent", "deadlock", "not_in_group", "died", "timeout", "interrupted"
]
"""The kinds of faults; `errors.message` writes the message for each."""


Leaving = Literal["returned", "raised", "exited"]
"""How a rank left the learner's function; "exited" is for `SystemExit`."""


def leaving(error: BaseException | None) -> Leaving:
    if error is None:
        return "returned"
    return "exited" if issubclass(type(error), SystemExit) else "raised"  # isinstance reads __class__, which may raise


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The reason why a run cannot go on."""

    kind: Kind
    ranks: tuple[int, ...]  # those that caused it, or to look at first
    calls: dict[int, Call] = field(default_factory=dict)  # those concerned, by rank; ranks that call later are added
    detail: str = ""  # the property that does not match, the backend's refusal, or how a process died

    @property
    def from_outside(self) -> bool:
        return self.kind in ("timeout", "interrupted")


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """The state of one rank when the run ended.

    Attributes:
        source_line: the learner's line that it was at, if any.
        call: the call that it waited in.
        waited: for how many seconds it had waited.
        missing: the ranks that had not made that call.
        raised: its exception.
        raised_in_thread: an exception that ended a thread of the rank.
        stopped: False for a rank that could not be stopped and may still be busy.
    """

    rank: int
    state: str
    source_line: SourceLine | None = None
    call: Call | None = None
    missing: frozenset[int] = frozenset()
    waited: float = 0.0
    raised: ErrorReport | None = None
    raised_in_thread: ErrorReport | None = None
    stopped: bool = True

    def ended(self, raised: ErrorReport | None, *, stopped: bool = True) -> RankReport:
        """Return the report after the rank was asked to stop: with what it `raised`, and whether it `stopped`."""
        state = self.state if raised is None else "raised"
        return replace(self, state=state, raised=raised, stopped=stopped)
