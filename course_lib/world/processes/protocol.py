"""The protocol between the kernel and a worker.

The kernel sends the name of a method of `ProcessRank` and its argument, or `"run"` and a `Job`. A rank sends the name
of a method of `RunLoop` and its arguments, preceded by the number of the run, because the message may arrive late.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...meter import MemoryReport, SourceLine
from ..collectives.call import Call
from ..collectives.fault import Leaving
from ..error_report import ErrorReport
from .placement import Place


@dataclass(frozen=True, kw_only=True)
class Group:
    """The means by which ranks find each other."""

    name: str  # on one machine, the path of a file; on several, the prefix of the group's keys in a store
    store: tuple[str, int] | None = None  # address and port of that store; None if there is a file


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, for one rank."""

    number: int
    rank: int
    world_size: int
    place: Place
    group: Group  # a change means a new default group
    nccl: bool  # tensors on GPUs go through NCCL; if not, through gloo
    gpus: int | None  # the memory of each pretended GPU; None if none is pretended
    packed: bytes  # function and arguments; see `modules.unpack_with_main`
    size_of: Callable[[int], int] | None  # how memory is counted, pickled by name; None if it is not measured
    started: float  # when the run began, in seconds of `time.perf_counter` on the rank's machine
    environ: Mapping[str, str]  # the kernel's: all on its machine, and on others those that configure torch
    folder: tuple[str, list[str]] | None  # the kernel's working directory and `sys.path`; None on other machines
    interface: str  # the network interface through which ranks reach each other
    threads: int  # the number of threads that compute: the rank's part of the cores
    sources: Mapping[str, list[str]]  # source code that is in no file, such as that of cells: lines by filename


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a run on one rank."""

    how: Leaving
    raised: ErrorReport | None
    raised_in_thread: ErrorReport | None
    result: tuple[str, bytes]  # the function's return value, or None: its type's name, and the value packed
    calls: list[Call]
    span: tuple[float, float]  # when it entered and left the function, in seconds from the start of the run
    memory: MemoryReport | None
    has_group: bool  # the default group still exists for the next run
    spent: bool  # the process is unusable: an error on the GPU broke its context
    exited_at: SourceLine | None = None  # the line at which a program called `sys.exit()`
