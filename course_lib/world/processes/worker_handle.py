"""The kernel's side of a rank's process, and of the server that gives birth to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from ...errors import CourseError
from ..errors.exit_status import how_it_died
from .fork_server import FDS, PID
from .framing import Frames, framed
from .messages import FromRank, ToRank


class WorkerDied(Exception):
    """The process is gone, and cannot be told anything."""


class WorkerHandle:
    """One rank's process.

    Attributes:
        pid: its number.
        wire: a socket pair, for what the two tell each other (see `wire.py`).
        output: a pipe: what it prints.
        stack: a pipe: where its Python code is, when it is asked or crashes; written by `faulthandler`.
        status: a pipe of the fork server's: how it ended.
    """

    def __init__(self, pid: int, wire: socket.socket, output: int, stack: int, status: int) -> None:
        self.pid, self.wire, self.output, self.stack, self.status = pid, wire, output, stack, status
        self.exitcode: int | None = None
        self._frames = Frames()
        wire.setblocking(True)
        for fd in (output, stack, status):
            os.set_blocking(fd, False)

    def send(self, message: ToRank) -> None:
        """Tell it something.

        Raises:
            RankDied: it is not there any more.
        """
        self.write(framed(message))

    def write(self, data: bytes | memoryview) -> None:
        """Hand it pieces of messages.

        Raises:
            RankDied: it is not there any more.
        """
        try:
            self.wire.sendall(data)
        except OSError:
            raise WorkerDied from None

    def receive(self) -> list[tuple[int, FromRank]] | None:
        """The messages that are there, without waiting, each with the number of the run that it is about. None where
        not a byte is there, which on a wire that is ready says that the process is gone."""
        data = b""
        with suppress(BlockingIOError, ConnectionResetError):
            data = self.wire.recv(1 << 18, socket.MSG_DONTWAIT)
        return self._frames.whole(data) if data else None

    @property
    def in_midst_of_message(self) -> bool:
        """Whether a part of one has come."""
        return self._frames.in_midst

    def read(self, fd: int) -> bytes:
        """What has come through a pipe, without waiting; empty when nothing has."""
        chunks = []
        with suppress(BlockingIOError):
            while chunk := os.read(fd, 1 << 16):
                chunks.append(chunk)
                if len(chunks) == 16:  # others want to be heard too
                    break
        return b"".join(chunks)

    def dead(self) -> bool:
        """Whether it has ended; then `exitcode` is known: minus the signal's number if a signal ended it."""
        if self.exitcode is None:
            with suppress(BlockingIOError):
                told = os.read(self.status, PID.size)
                self.exitcode = PID.unpack(told)[0] if told else -signal.SIGKILL  # the server is gone, and its ranks
        return self.exitcode is not None

    @property
    def machine_lost(self) -> bool:
        """Whether the machine that it was on is gone, too: this one is there."""
        return False

    @property
    def how_it_died(self) -> str:
        """In words, for one that has."""
        assert self.exitcode is not None
        return how_it_died(self.exitcode)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if not self.dead():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, and the processes that it has started."""
        if not self.dead():
            with suppress(ProcessLookupError):  # too young to have a session of its own
                os.killpg(self.pid, signal.SIGKILL)
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """End it, and let go of it."""
        self.kill()
        self.wire.close()
        for fd in (self.output, self.stack, self.status):
            os.close(fd)


class ForkServer:
    """The kernel's side of `fork_server.serve`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(True)  # whatever a learner has said to `socket.setdefaulttimeout`
        code = (
            f"import sys; sys.path[:] = {json.dumps(sys.path)}; from course_lib.world.processes import fork_server; "
            f"fork_server.serve({theirs.fileno()})"
        )
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # out of reach of Jupyter's interrupt
            )

    def spawn(self) -> WorkerHandle:
        """A new rank's process.

        Raises:
            CourseError: the server is not there.
        """
        wire, their_wire = socket.socketpair()
        pipes = [os.pipe() for _ in FDS[1:]]
        theirs = [their_wire.fileno(), *(write for _, write in pipes)]
        try:
            socket.send_fds(self._control, [b"f"], theirs)
            answer = self._control.recv(PID.size)
        except OSError:
            answer = b""
        their_wire.close()
        for fd in theirs[1:]:
            os.close(fd)
        mine = [read for read, _ in pipes]
        if not answer:
            wire.close()
            for fd in mine:
                os.close(fd)
            raise CourseError(
                "World: the process that starts ranks has ended (its error is above, or in the terminal of "
                "JupyterLab). Restart the kernel; if it happens again, look at `course doctor`."
            )
        return WorkerHandle(PID.unpack(answer)[0], wire, *mine)

    @property
    def alive(self) -> bool:
        """Whether it can give birth."""
        return self._popen.poll() is None

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._popen.pid

    def close(self) -> None:
        """End it, and every rank."""
        self._control.close()
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:  # its ranks die with it
            self._popen.kill()
            self._popen.wait()
