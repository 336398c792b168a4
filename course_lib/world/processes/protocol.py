"""The protocol between the kernel and a worker: each message is one of these records.

A worker's message is preceded by the number of its run, because it may arrive late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...meter import MemoryReport
from ..collectives.call import Call
from ..learner_code import ErrorReport, SourceLine
from ..pickling import Packed
from .placement import Place

# -- from the kernel ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Group:
    """The means by which ranks find each other.

    Attributes:
        name: on one machine, the path of a file; on several, the prefix of the group's keys in a store.
        store: address and port of that store; None if there is a file.
    """

    name: str
    store: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The kernel's environment, which ranks on the same machine share.

    Attributes:
        environ: its environment variables.
        folder: its working directory.
        path: its `sys.path`.
    """

    environ: dict[str, str]
    folder: str
    path: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, for one rank.

    Attributes:
        number: of the run, from 1.
        rank, world_size: this process's rank, and the number of ranks.
        place: where the rank is.
        group: where the ranks find each other. A change means a new default group.
        nccl: tensors on GPUs go through NCCL; if not, through gloo.
        packed: function and arguments; see `pickling.unpack_call`.
        size_of: how memory is counted, pickled by name; None if it is not measured.
        started: when the run began, in seconds of `time.perf_counter` on the rank's machine.
        kernel: the kernel's environment, if the rank is on its machine; None if not.
        environ: additional environment variables.
        interface: the network interface through which ranks reach each other.
        threads: the number of threads that compute: the rank's part of the cores.
        sources: source code that is in no file, such as that of cells: lines by filename.
    """

    number: int
    rank: int
    world_size: int
    place: Place
    group: Group
    nccl: bool
    packed: bytes
    size_of: Callable[[int], int] | None
    started: float
    kernel: Kernel | None
    environ: dict[str, str]
    interface: str
    threads: int
    sources: Mapping[str, list[str]]

    @property
    def device(self) -> int | None:
        """Return the GPU to use; None for the CPU."""
        return self.place.device


@dataclass(frozen=True, kw_only=True)
class Proceed:
    """Every member has made this call: the rank may enter the backend."""

    call: int


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The run is over; the rank must send its `Location` and stop."""


# -- from a rank -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Started:
    """The rank has joined its group and now calls the function."""


@dataclass(frozen=True, kw_only=True)
class CallArrived:
    """The rank has made a call.

    Attributes:
        index: of the call among all calls of the rank in this run.
        call: the call.
        tag: of a message.
        waits: the rank does nothing until the call may proceed.
        gated: the rank waits for `Proceed` before the backend sees the call.
    """

    index: int
    call: Call
    tag: int
    waits: bool
    gated: bool


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """The rank now only waits for an earlier call."""

    index: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The backend refused a call after the rank had gone on."""

    index: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class OutsideGroup:
    """The rank called a collective on a group that it does not belong to."""

    call: Call


@dataclass(frozen=True, kw_only=True)
class Location:
    """The learner's line that the rank is at; None if it is in library code."""

    source_line: SourceLine | None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The rank has finished a run.

    Attributes:
        stopped: the run was stopped.
        raised: the function's exception.
        exited: that exception is `SystemExit`.
        result: the function's return value; None if there is none.
        calls: the rank's calls.
        span: when it entered and left the function.
        memory: what it held, if that was measured.
        has_group: the default group still exists for the next run.
        spent: the process is unusable: an error on the GPU, such as an index out of bounds, has broken its context.
    """

    stopped: bool
    raised: ErrorReport | None
    exited: bool
    result: Packed
    calls: list[Call]
    span: tuple[float, float]
    memory: MemoryReport | None
    has_group: bool
    spent: bool

    def earlier(self, seconds: float) -> Finished:
        """Return this message with all times that much earlier."""
        for call in self.calls if seconds else ():
            for name in ("issued", "matched", "done", "waited_from"):
                setattr(call.times, name, getattr(call.times, name) - seconds)
        entered, left = self.span
        return replace(self, span=(entered - seconds, left - seconds))


FromRank = Started | CallArrived | Blocked | Refused | OutsideGroup | Location | Finished
ToRank = Job | Proceed | Stop

END_OF_RUN = b"\0course: end of run\0"
"""The worker's last output of a run. The kernel reads the output until this mark, which it does not show."""
