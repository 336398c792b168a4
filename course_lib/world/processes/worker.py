"""The worker: a process that takes jobs, runs the learner's function, and sends the kernel the result.

The main thread is the rank. A second thread, the listener, reads the kernel's messages even while the rank waits in
native code. The signal `STOP` stops a rank's Python code, even in a sleep. The kernel kills a rank that does not react,
and starts another process for it.
"""

import contextlib
import ctypes
import faulthandler
import gc
import io
import linecache
import multiprocessing
import os
import queue
import signal
import stat
import sys
import threading
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from ...meter import MemoryMeter
from ..collectives.fault import Stopped, leaving
from ..error_report import ErrorReport
from ..learner_code import importing
from ..pickling.results import pack_result
from ..rank_threads.process_state import meters_informed
from ..rank_threads.rank_state import rank_variables, seed_process
from ..rank_threads.stopping import must_finish, without_stopped
from ..torch_hooks import interposer, private
from ..torch_hooks.gloo import loopback
from ..torch_hooks.gpus import pretended
from ..torch_hooks.patching import replaced
from .modules import FreshImports, unpack_with_main
from .output import END_OF_RUN, StandardError
from .protocol import Finished, Group, Job
from .rank import STOP, ProcessRank

PR_SET_PDEATHSIG = 1
"""The number by which Linux knows this option: a signal to this process when its parent dies."""


def main(wire: Connection, output: Connection, stack: Connection) -> None:
    """Run jobs until the kernel is gone. All that the process prints goes to `output`; a crash writes the stack of the
    Python code to `stack`."""
    os.setsid()  # Jupyter interrupts the kernel's process group; only the kernel's messages must stop ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops an interrupt that the fork server's mask has held back
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `course run` has the fork server ignore it
    _end_with_the_kernel()
    multiprocessing.set_start_method(None, force=True)  # the learner's function may choose one
    gc.freeze()  # the collector must not write to memory shared with the fork server, which would copy it
    faulthandler.enable(stack.fileno(), all_threads=False)
    Worker(wire, output).serve()


def _end_with_the_kernel() -> None:
    """Let Linux kill this process when its parent has died, the fork server, even if the process is suspended then.

    The fork server ends when nobody holds the pipe that the kernel has opened for it. A worker gets a copy of it.
    """
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    """The state that outlives a run: the connection to the kernel, and the default group."""

    def __init__(self, wire: Connection, output: Connection) -> None:
        self._wire, self._output_fd = wire, output.fileno()
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._jobs: queue.SimpleQueue[ProcessRank] = queue.SimpleQueue()
        self._rank: ProcessRank | None = None  # of the current or the last run
        self._environ = dict(os.environ)
        self._child_ended: Any = signal.SIG_DFL  # the handler of SIGCHLD while the learner's code runs
        self._group: Group | None = None
        self._store: dist.Store | None = None
        self._default: dist.ProcessGroup | None = None
        self._groups: list[dist.ProcessGroup] = []  # those of all ranks since the last `_drop_groups`
        self._imports = FreshImports()

    def serve(self) -> None:
        sys.unraisablehook = without_stopped(sys.unraisablehook)
        threading.Thread(target=self._listen, name="listener", daemon=True).start()
        while True:
            rank = self._jobs.get()
            left = self._work(rank)
            _flush()
            os.write(self._output_fd, END_OF_RUN)
            self._send(rank.job.number, "finished", left)

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._handle(*self._wire.recv())
        os._exit(0)  # the kernel is gone

    def _handle(self, request: str, argument: Any) -> None:
        if request == "run":
            self._rank = ProcessRank(argument, partial(self._send, argument.number), self._groups)
            self._jobs.put(self._rank)
        else:
            getattr(self._rank, request)(argument)

    def _send(self, number: int, event: str, *arguments: Any) -> None:
        with self._sending:
            self._wire.send((number, event, arguments))

    def _stop(self, _: int, frame: FrameType | None) -> None:
        if self._rank is not None and self._rank.stoppable and not importing(frame) and not must_finish(frame):
            raise Stopped

    # -- a job -----------------------------------------------------------------------------------------------------

    def _work(self, rank: ProcessRank) -> Finished:
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._call(rank)
        except BaseException as caught:
            error = caught
        self._child_ended = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a DataLoader's raises, at any line
        if os.getpid() != self._pid:  # the function has forked this process, which now ends as Python ends one
            raise error or SystemExit
        rank.done.set()
        self._imports.note()
        return Finished(
            how=leaving(error),
            raised=None if error is None or rank.stopping else ErrorReport.of(error),
            raised_in_thread=rank.threads.raised,
            exited_at=rank.exited_at,
            result=pack_result(rank.rank, value),
            calls=rank.recorder.calls,
            span=rank.span,
            memory=None if rank.meter is None else rank.meter.report(),
            has_group=dist.is_initialized() and dist.group.WORLD is self._default,
            spent=not rank.ready or (rank.job.place.device is not None and not _gpu_works()),
        )

    def _call(self, rank: ProcessRank) -> Any:
        job = rank.job
        self._prepare(job)
        self._imports.forget_changed()
        with contextlib.ExitStack() as stack:
            stack.enter_context(interposer.interposed_process(rank))
            stack.enter_context(replaced(rank.threads.replacements()))
            stack.enter_context(pretended(job.place.local_world_size, job.gpus))
            self._join_group(rank)
            if job.size_of is not None:
                rank.meter = MemoryMeter(job.rank, started=job.started, size_of=job.size_of, gpu_bytes=job.gpus)
                stack.enter_context(meters_informed())
                stack.enter_context(rank.meter.watching())
            rank.ready = True
            (fn, args, kwargs), sys.modules["__main__"] = unpack_with_main(job.packed)
            self._send(job.number, "started")
            with rank.in_learners_code():
                value = fn(*args, **kwargs) if rank.meter is None else rank.meter.call(fn, args, kwargs)
            if job.place.device is not None:
                torch.cuda.synchronize()
        return value

    def _join_group(self, rank: ProcessRank) -> None:
        """Join a default group of all ranks: the last run's, if it can be used again."""
        job = rank.job
        if job.group != self._group:
            if dist.is_initialized():
                private.abort_groups() if job.nccl else dist.destroy_process_group()
            self._group = self._default = None
            self._drop_groups()
            private.restart_names()
            self._store = _store(job.group, job.world_size)
            rank.join_group(dist.PrefixStore("default", self._store))
            self._group, self._default = job.group, dist.group.WORLD
        assert self._store is not None
        rank.store = dist.PrefixStore(f"run {job.number}", self._store)
        private.renew_names(rank.store)
        self._drop_groups()

    def _drop_groups(self) -> None:
        """Drop all groups except the default one, which are destroyed: see `torch_hooks.gloo.LoopbackGloo`."""
        if any(group is not self._default for group in self._groups):
            gc.collect()
            self._groups[:] = [group for group in self._groups if group is self._default]

    def _prepare(self, job: Job) -> None:
        """Make this process like a new one, started by the kernel, or by hand if it is on another machine."""
        signal.signal(signal.SIGCHLD, self._child_ended)
        signal.signal(STOP, self._stop)  # the last function may have replaced it
        _print_to(self._output_fd)
        os.environ.clear()
        os.environ.update(_nccl(job.interface) | (self._environ if job.folder is None else {}) | dict(job.environ))
        os.environ.update(rank_variables(job.rank, job.world_size) | job.place.variables)
        if job.folder is not None:
            folder, sys.path[:] = job.folder
            os.chdir(folder)
        for filename, lines in job.sources.items():
            linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
        if job.group.store is not None:  # several machines
            loopback.interface = job.interface
        torch.set_num_threads(job.threads)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        device = job.place.device
        torch.set_default_device(None if device is None else f"cuda:{device}")
        if device is not None:
            torch.cuda.set_device(device)
            gc.collect()  # reference cycles of the last run
            private.empty_gpu()
        seed_process(job.rank)


def _print_to(output_fd: int) -> None:
    """Redirect all output to `output_fd`, even if the last function closed `sys.stdout` or its file descriptor."""
    sys.stdout = sys.stderr = None  # output that they could not write is lost
    for fd, name, kind in ((1, "stdout", io.FileIO), (2, "stderr", StandardError)):
        os.dup2(output_fd, fd)
        written = io.BufferedWriter(kind(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(written, encoding="utf-8", errors="replace", line_buffering=True))


def _nccl(interface: str) -> dict[str, str]:
    return {
        "NCCL_SOCKET_IFNAME": interface,  # otherwise NCCL listens on every network
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # an error ends the communicator, not the process
    }


def _store(group: Group, world_size: int) -> dist.Store:
    """Return the store in which the ranks of a group publish their addresses."""
    if group.store is None:
        return dist.FileStore(group.name, world_size)
    return dist.PrefixStore(group.name, dist.TCPStore(*group.store, is_master=False))


def _gpu_works() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _flush() -> None:
    """Flush all output of Python and C to the pipe, and files that are still open: this process may be killed next."""
    objects = gc.get_objects() if _a_file_is_open() else []  # to look through all takes 0.1 s after large imports
    files = [one for one in objects if type(one) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)]
    for stream in (sys.stdout, sys.stderr, *files):
        with contextlib.suppress(ValueError, OSError, AttributeError):  # closed, or replaced by any object
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _a_file_is_open() -> bool:
    try:
        open_now = os.listdir("/dev/fd")
    except OSError:
        return True  # nothing tells
    for fd in open_now:
        with contextlib.suppress(OSError):  # the one of this list is closed
            if stat.S_ISREG(os.fstat(int(fd)).st_mode):
                return True
    return False
