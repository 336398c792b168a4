"""What ranks are doing, why their run cannot go on, and what ends them then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from ..learner_code import ErrorReport, SourceLine
from .call import Call


class Stopped(BaseException):
    """Ends a rank whose run has failed; not an Exception, so that a learner's `except Exception` lets it pass."""


class State(Enum):
    """What a rank is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    RETURNED = "returned"
    RAISED = "raised"
    DIED = "died"


Kind = Literal[
    "raised",
    "exited",
    "mismatch",
    "refused",
    "absent",
    "deadlock",
    "not_in_group",
    "died",
    "timeout",
    "interrupted",
]
"""What can be wrong with a run; `telling` has a teller for each."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a run cannot go on.

    Attributes:
        kind: what is wrong.
        ranks: the ranks to blame, or to look at first.
        calls: the calls that the fault is about, by rank; ranks that come late are added.
        detail: for a mismatch, the property that differs; for a refused call, what the backend said; for a process
            that died, how.
    """

    kind: Kind
    ranks: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    detail: str = ""

    @property
    def from_outside(self) -> bool:
        """Whether no rank led to it: the time was over, or the run was interrupted."""
        return self.kind in ("timeout", "interrupted")


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """What one rank was doing when the run ended.

    Attributes:
        rank: its number.
        state: running, waiting, returned, raised or died.
        site: the learner's line it was at, if it was in one.
        call: the call that it waited in.
        raised: its exception.
        stopped: False for a rank that could not be stopped and may still be busy.
    """

    rank: int
    state: str
    source_line: SourceLine | None = None
    call: Call | None = None
    raised: ErrorReport | None = None
    stopped: bool = True

    def ended(self, raised: ErrorReport | None, *, stopped: bool = True) -> RankReport:
        """The same, when the rank has been told to stop: with what it `raised`, and whether it did stop."""
        state = self.state if raised is None else "raised"
        return replace(self, state=state, raised=raised, stopped=stopped)
