"""The threads that a rank starts: their collectives are the rank's, too."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

from ...meter import is_learners
from ..collectives.fault import Stopped
from ..error_report import ErrorReport
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement


class Threads:
    """The threads that the rank of this process has started in one run.

    Attributes:
        raised: the first exception that ended one of them, which Python only prints.

    Args:
        identity: returns a context in which the calling thread acts as the rank.
    """

    def __init__(self, identity: Callable[[], AbstractContextManager[None]]) -> None:
        self.raised: ErrorReport | None = None
        self._identity = identity
        self._learners: list[threading.Thread] = []

    @property
    def may_call(self) -> bool:
        """Return whether a thread is alive that may make the call which the rank's peers wait for.

        The learner's code or a `ThreadPoolExecutor` has started it. Those of a `DataLoader` and others make no calls.
        """
        self._learners = [thread for thread in self._learners if thread.is_alive()]
        return bool(self._learners)

    def replacements(self) -> Iterator[Replacement]:
        """Yield the replacement with which each new thread acts as the rank."""
        start = threading.Thread.start

        def start_acting(thread: threading.Thread) -> None:
            starter, run = sys._getframe(1), thread.run
            if threading.current_thread() is not threading.main_thread() and not interposer.is_interposed():
                start(thread)  # a thread of ours, started by the listener
                return

            def run_acting() -> None:
                del thread.run  # the thread and this function refer to each other
                with suppress(Stopped), self._identity():
                    try:
                        run()
                    except Exception as error:
                        self.raised = self.raised or ErrorReport.of(error)
                        raise

            thread.run = run_acting  # type: ignore[method-assign]
            start(thread)
            if is_learners(starter.f_code) or starter.f_globals["__name__"] == "concurrent.futures.thread":
                self._learners.append(thread)

        yield threading.Thread, "start", start_acting
