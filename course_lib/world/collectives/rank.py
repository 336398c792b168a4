"""`InterposedRank`: one rank's collectives, from the operator to the result. Every backend's ranks are of this class.

Backends differ in the rank's peers: threads of this process, other processes, or nobody.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ...meter import MemoryMeter, SourceLine, unwatched
from ..learner_code import in_cpp_of_backward
from ..torch_hooks import default_group, private
from .call import Call, Progress
from .fault import Stopped
from .in_flight import InFlight
from .local_call import LocalCall
from .recorder import CallRecorder, is_asynchronous
from .values import received


class Peers(Protocol):
    """The coordinator, as one rank sees it."""

    def called(self, local: LocalCall) -> None:
        """Report a call. It enters the backend once every member has called."""

    def wait_for(self, local: LocalCall) -> None:
        """Wait until the call may enter the backend.

        Raises:
            Stopped: the run is over.
        """

    def called_outside(self, rank: int, call: Call) -> None:
        """Fail the run, because `rank` does not belong to the group of `call`, and raise `Stopped`."""


class InterposedRank:
    """The handler of one rank's calls to torch.

    Attributes:
        store: where the ranks of its default group find each other.
        generator: its own random number generator; None for the process's.
        meter: measures its memory; None if that is not measured.
        in_flight: watches the tensors of asynchronous calls; None in a world that is not strict.
        exited_at: the line at which its program called `sys.exit()`, if it did.
        value: what its function returned, if torchrun's own function has started it from a program.
        groups: every group that it has made, destroyed or not: see `torch_hooks.gloo.LoopbackGloo`.
    """

    store: dist.Store
    generator: torch.Generator | None = None
    exited_at: SourceLine | None = None
    value: Any = None

    def __init__(
        self,
        rank: int,
        world_size: int,
        peers: Peers,
        started: float,
        thread: threading.Thread,
        devices: tuple[str, ...] = ("cpu",),
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._given: list[dist.Store | None] = []  # to keep them alive: see `init_process_group`
        self._joined = 0  # how often the program itself has made the default group
        self._latest_join: Progress | None = None
        self.meter: MemoryMeter | None = None
        self.recorder = CallRecorder(rank, started, thread)
        self._peers, self._devices = peers, devices
        # The asynchronous calls whose results have not arrived. One that failed stays: torch's C++ waits for a Work
        # without reading its error, so each wait must raise it.
        self._promised: dict[LocalCall, None] = {}
        self._open_handles: dict[LocalCall, None] = {}
        self.in_flight: InFlight | None = None
        self.groups: list[dist.ProcessGroup] = []

    def shielded(self) -> AbstractContextManager[None]:
        """Return a context in which the rank is not stopped."""
        return nullcontext()

    def identity(self) -> AbstractContextManager[None]:
        """Return a context in which the calling thread acts as this rank."""
        return nullcontext()

    @contextmanager
    def watching_calls(self) -> Iterator[None]:
        """Watch the tensors of asynchronous calls inside the block."""
        with InFlight() as self.in_flight:
            yield

    @contextmanager
    def _in_the_world(self) -> Iterator[None]:
        """Do not stop the rank inside the block, and do not report what a call itself does with its tensors."""
        with self.shielded(), nullcontext() if self.in_flight is None else self.in_flight.paused():
            yield

    @property
    def delivering(self) -> bool:
        """Return whether a result is being delivered to the rank, which may have left without waiting for it."""
        return any(call.delivering for call in self.recorder.made)

    def held_by(self, seconds: float) -> LocalCall | None:
        """Return a call for which DDP's C++ has waited for `seconds` at the end of a backward pass; None if there is
        none.

        The rank cannot report that wait. After seconds it is certain: the end of a backward pass takes no time, unless
        a callback runs, whose Python code would be on the stack, or the result of a call is still on its way.
        """
        ended = [one for one in list(self._promised) if one.progress.at_end_of_backward]
        if any(one.execute is None or one.progress.waited_for < seconds for one in ended):
            return None
        return ended[0] if ended and in_cpp_of_backward(self.recorder.thread) else None

    # -- for interposer and dispatch -----------------------------------------------------------------------------

    def collective(self, operator: Any, arguments: dict[str, Any], execute: Callable[..., Any]) -> Any:
        """Run a `c10d` operator. `execute(*arguments.values())`, with these tensors or others that share their memory,
        hands it to the backend and returns its result."""
        with self._in_the_world():
            if self.meter is None:
                local = self._recorded(operator, arguments, partial(execute, *arguments.values()))
                return self._collective(operator, arguments, local)
            loan = self.meter.lend(arguments.values())
            local = self._recorded(operator, arguments, unwatched(partial(execute, *loan.arguments)))
            result = self._collective(operator, arguments, local)
            self.meter.lent(loan, local.progress, local.handle)
            return result

    def new_group(self, group_name: str, ranks: list[int]) -> None:
        """Wait until every member creates the group: gloo's own wait for a missing member could not be stopped."""
        with self.shielded():
            progress = self.recorder.new_group(group_name, ranks)
            self._completed(LocalCall(progress=progress, execute=lambda: None))

    def init_process_group(self, given: dist.Store | None) -> None:
        """Make the default group, as the program asks; do nothing if the world has made it.

        The ranks do not find each other in the `given` store, which lives as long as theirs: a store of torch's deletes
        its file at its end.
        """
        self._given.append(given)
        if not dist.is_initialized():
            self._joined += 1
            with self.shielded():  # wait here for every rank: gloo's own wait could not be stopped
                self._latest_join = progress = self.recorder.init_process_group(self.world_size, self._joined)
                self._completed(LocalCall(progress=progress, execute=lambda: None))
                self.join_group(dist.PrefixStore(f"joined {self._joined}", self.store))
        elif self._joined:
            raise ValueError("trying to initialize the default process group twice!")  # as torch

    def program_ended(self) -> None:
        if self._latest_join is not None:
            self._latest_join.open_handle = dist.is_initialized()

    def join_group(self, store: dist.Store) -> None:
        default_group.join(store, self.rank, self.world_size)

    def not_in_group(self, op: str) -> None:
        with self.shielded():
            self._peers.called_outside(self.rank, self.recorder.made_here(op, "", ()))

    def asked(self, work: Any, *, waits: bool = False) -> None:
        """Note that the thread waits for a Work, or asked for its state or its future."""
        for local in [one for one in list(self._open_handles) if one.is_of(work)]:  # a callback's thread may ask, too
            local.progress.open_handle = False
            if waits:
                local.progress.handle_waited = local.progress.now()
            self._open_handles.pop(local, None)
            if self.in_flight is not None:
                self.in_flight.give_back(local)

    def waiting(self, waited: Any) -> None:
        """Wait for the result, before `waited.wait()` of a Work or `wait_tensor(waited)` of a functional collective.
        Raise the error that ended the call or the run."""
        if self.meter is not None:
            self.meter.waited(waited)
        if not self._promised and not self._open_handles:
            return
        with self._in_the_world():
            self.asked(waited, waits=True)
            for local in [one for one in list(self._promised) if one.is_of(waited)]:
                local.progress.wait_begins()
                self._peers.wait_for(local)
                assert local.arrived is not None
                local.arrived.wait()

    # -- a call --------------------------------------------------------------------------------------------------

    def _recorded(self, operator: Any, arguments: dict[str, Any], execute: Callable[[], Any]) -> LocalCall:
        progress = self.recorder.collective(operator, arguments, self._devices)
        local, call = LocalCall(progress=progress, execute=execute), progress.call
        if call.values is not None:
            local.receiving = received(call.variant, call.root == self.rank, arguments)
        return local

    def _collective(self, operator: Any, arguments: dict[str, Any], local: LocalCall) -> Any:
        """Make the call, and return the operator's result: at the end of the call, or at once if it is
        asynchronous."""
        if self.in_flight is not None:
            self.in_flight.used(operator, arguments, local)
        if not is_asynchronous(local.call, arguments):
            return self._completed(local)
        self._promised[local] = None
        result = local.promise(operator, arguments, self.identity, self._promised.pop)
        if local.progress.open_handle:
            self._open_handles[local] = None
        try:
            self._peers.called(local)
        except Stopped:  # a promise that is never kept would hold the group forever
            local.call_off()
            raise
        if self.in_flight is not None and local.progress.open_handle:
            self.in_flight.lend(local, operator, arguments)  # only now: the backend may copy inside `called`
        return result

    def _completed(self, local: LocalCall) -> Any:
        """Make the call, wait for its end, and return the operator's result."""
        progress = local.progress
        progress.waited_from = local.call.issued
        self._peers.called(local)
        self._peers.wait_for(local)
        result = local.result()
        if result is not None and local.call.op != "recv":  # the caller waits for a recv's Work, which is possible once
            private.work_of(result).wait()  # the caller would wait next; waiting here measures the end
            local.note_values()
        progress.done = progress.now()
        return result
