"""What the kernel and a rank's process tell each other.

Every message is one of these records, pickled; a rank's comes with the number of its run, for it may be late. Two
signals reach a rank whatever it does.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...meter import MemoryReport
from ..collectives.call import Call
from ..learner_code import ErrorReport, SourceLine
from ..results import Packed
from .placement import Place

STOP, TELL_STACK = signal.SIGUSR1, signal.SIGUSR2
"""To its main thread: end the learner's function, with `Stopped`; and: write where your Python code is.

The second is for a thread in native code that keeps the GIL. In the midst of Python code it ends the process now and
then (once in 130 times in CPython 3.11, in a loop of calls), for `faulthandler` reads a frame that is half made.
"""

# -- from the kernel ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Group:
    """Where ranks find each other.

    Attributes:
        name: on one machine, the path of a file; on several, what their keys in a store begin with.
        store: address and port of that store; None where there is a file.
    """

    name: str
    store: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What surrounds the kernel, and its ranks where they are on the same machine.

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
        rank, world_size: which rank this process is in it.
        place: where that is.
        group: where the ranks find each other. Another than the last asks for a new default group.
        nccl: tensors on GPUs go through NCCL; if not, through gloo.
        packed: function and arguments; see `copies.unpack`.
        size_of: how memory is counted, by its name in a module; None if it is not measured.
        started: when the run began, in seconds of `time.perf_counter` on the rank's machine.
        kernel: where the rank is on the kernel's machine, and so has its environment; None where it has another.
        environ: variables to be set besides.
        interface: the network interface through which ranks reach each other.
        threads: on how many threads it computes: its part of the cores.
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
        """The GPU to work on; None for the CPU."""
        return self.place.device


@dataclass(frozen=True, kw_only=True)
class Proceed:
    """Every member has come to this rank's call: it may enter the backend."""

    call: int


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The run is over, whatever this rank does."""


@dataclass(frozen=True, kw_only=True)
class Locate:
    """Say where you are. A rank answers as soon as a second thread of it gets the GIL."""


# -- from a rank -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Started:
    """The rank has a group and all that the function needs, and calls it now."""


@dataclass(frozen=True, kw_only=True)
class CallArrived:
    """The rank has come to a call.

    Attributes:
        index: of the call among all of the rank's in this run.
        call: what it asks.
        tag: of a message.
        waits: the rank does nothing until it may go on.
        gated: it waits for `Go` before the backend sees the call.
    """

    index: int
    call: Call
    tag: int
    waits: bool
    gated: bool


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """The rank does nothing from now on but wait for a call that it came to before."""

    index: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The backend refused a call that the rank had gone on from."""

    index: int
    told: str


@dataclass(frozen=True, kw_only=True)
class OutsideGroup:
    """The rank made a call of a group that it does not belong to."""

    call: Call


@dataclass(frozen=True, kw_only=True)
class Location:
    """The learner's line that the rank is at; None where it is in none."""

    source_line: SourceLine | None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The rank is done with a run.

    Attributes:
        stopped: it was told to.
        raised: what the function raised.
        exited: that was `SystemExit`.
        result: what the function returned; None where it did not.
        calls: what the rank took part in.
        span: when it entered the function and when it left.
        memory: what it held, where that was measured.
        has_group: the default group is still there for the next run.
        spent: its process can do no more: an error on the GPU, such as an index out of bounds, has broken its context.
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


FromRank = Started | CallArrived | Blocked | Refused | OutsideGroup | Location | Finished
ToRank = Job | Proceed | Locate | Stop
