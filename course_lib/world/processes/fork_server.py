"""A process that has loaded torch once and gives birth to ranks: each in a few milliseconds, sharing its memory.

A kernel must not fork itself: after a matrix product on several threads, a fork of it hangs. This server never
computes. It is ours, and not the one of `multiprocessing`, because that one listens on a socket, may be running already
without torch, and would run a learner's script again in each rank.

    kernel ---- control (a socket pair: requests, and the file descriptors of the newborn) ---> server
    kernel <--- status (a pipe for each rank: how its process ended) -------------------------- server
    kernel <--> wire, output, stack (see `process.Process`) ----------------------------------> rank
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
from .messages import STOP, TELL_STACK

PID = struct.Struct("i")
"""How a process's number travels, and how it ended: what `os.waitstatus_to_exitcode` says."""

FDS = ("wire", "output", "stack", "status")
"""The file descriptors that come with a request."""

_PR_SET_PDEATHSIG = 1


def serve(control_fd: int) -> None:
    """Fork a rank for every request. Ends, and all ranks with it, when the kernel does."""
    control = socket.socket(fileno=control_fd)
    wakeup, wakeup_write = os.pipe()
    for fd in (wakeup, wakeup_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (STOP, TELL_STACK):
        signal.signal(number, signal.SIG_IGN)  # for a newborn, until it listens to them
    gc.freeze()  # so that the collector of a newborn does not write to, and so copy, what all share
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control_fd, wakeup], [], [])
        if wakeup in ready:
            with suppress(BlockingIOError):
                os.read(wakeup, 4096)
            _bury(statuses)
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


def _bury(statuses: dict[int, int]) -> None:
    """Tell how those who have died did."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            fd = statuses.pop(pid)
            with suppress(BrokenPipeError):
                os.write(fd, PID.pack(os.waitstatus_to_exitcode(status)))
            os.close(fd)


def _fork(fds: list[int], not_for_it: tuple[int, ...]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads are lost; the server's have nothing to do
        pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wire, output, stack, status = fds
        for fd in (*not_for_it, status):
            os.close(fd)
        _die_with_parent()
        worker.main(wire, output, stack)
    finally:
        os._exit(1)


def _die_with_parent() -> None:
    """Let Linux end this process when the server is gone, however that happened and whatever this one does then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
