"""`Progress`: the state of one call of a rank so far."""

import time
from dataclasses import dataclass, replace
from math import inf

from ...meter import SourceLine
from .call import Call
from .values import NamedTensor, Values


@dataclass(kw_only=True, eq=False)
class Progress:
    """The state of a call so far. It outlives the `LocalCall`, which holds tensors."""

    call: Call  # as it was made
    index: int  # its place among the rank's calls, from 0
    started: float  # the start of the run, in seconds of `time.perf_counter` where the rank is
    values: Values | None
    match: int = 0
    matched: float = inf
    done: float = inf
    waited_from: float = inf
    used_at: SourceLine | None = None
    open_handle: bool = False  # the learner's code has the Work, and has not waited or asked for its state
    delivering: bool = False  # the transport's thread has not finished delivering the result

    @property
    def record(self) -> Call:
        return replace(
            self.call,
            values=self.values,
            match=self.match,
            matched=self.matched,
            done=self.done,
            waited_from=self.waited_from,
            used_at=self.used_at,
            open_handle=self.open_handle,
        )

    def now(self) -> float:
        return time.perf_counter() - self.started

    def wait_begins(self) -> None:
        """Record that the rank now only waits for the call, unless it is done."""
        if self.done == inf:
            self.waited_from = self.now()

    def wait_ends(self) -> None:
        """Discard the recorded wait if the call is not done: the rank went on without it."""
        if self.done == inf:
            self.waited_from = inf

    def received(self, tensors: list[NamedTensor]) -> None:
        """Note the values of the result, which these tensors have received, if the world keeps them."""
        if self.values is not None:
            self.values = self.values.with_received(tensors)
