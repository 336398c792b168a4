"""The fork server: a process that has loaded torch once and forks ranks in a few milliseconds each, sharing its memory.

A kernel must not fork itself: after a matrix product on several threads, its fork hangs. This server never computes. It
is not the server of `multiprocessing`: that one listens on a socket, may already run without torch, and would run a
learner's script again in each rank.

    kernel ---- control (a socket pair: requests, and the file descriptors for the new process) -> server
    kernel <--- status (a pipe for each rank: how its process ended) ------------------------------ server
    kernel <--> wire, output, stack (see `worker_handle.WorkerHandle`) ------------------------------> rank
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import warnings
from contextlib import suppress

from . import worker
from .messages import STOP, WRITE_STACK

PID = struct.Struct("i")
"""The format of a process's number, and of its exit code from `os.waitstatus_to_exitcode`."""

FDS = ("wire", "output", "stack", "status")
"""The file descriptors that a request contains."""

_PR_SET_PDEATHSIG = 1


def serve(control_fd: int) -> None:
    """Fork a rank for every request. The server and all ranks end when the kernel ends."""
    control = socket.socket(fileno=control_fd)
    wakeup, wakeup_write = os.pipe()
    for fd in (wakeup, wakeup_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (STOP, WRITE_STACK):
        signal.signal(number, signal.SIG_IGN)  # for a new process, until it sets handlers
    gc.freeze()  # a new process's collector must not write to shared memory, which would copy it
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control_fd, wakeup], [], [])
        if wakeup in ready:
            with suppress(BlockingIOError):
                os.read(wakeup, 4096)
            _report_deaths(statuses)
        if control_fd in ready:
            request, fds, _, _ = socket.recv_fds(control, 1, len(FDS))
            if not request:
                break
            pid = _fork(fds, (control_fd, wakeup, wakeup_write, *statuses.values()))
            *of_rank, status = fds
            for fd in of_rank:
                os.close(fd)
            statuses[pid] = status
            control.sendall(PID.pack(pid))
    for pid in statuses:
        os.kill(pid, signal.SIGKILL)


def _report_deaths(statuses: dict[int, int]) -> None:
    """Report the exit codes of processes that have died."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            fd = statuses.pop(pid)
            with suppress(BrokenPipeError):
                os.write(fd, PID.pack(os.waitstatus_to_exitcode(status)))
            os.close(fd)


def _fork(fds: list[int], to_close: tuple[int, ...]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about lost threads; the server's are idle
        pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wire, output, stack, status = fds
        for fd in (*to_close, status):
            os.close(fd)
        _die_with_parent()
        worker.main(wire, output, stack)
    finally:
        os._exit(1)


def _die_with_parent() -> None:
    """Let Linux end this process whenever the server ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
