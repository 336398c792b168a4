"""The kernel's handles of a rank's process and of the fork server."""

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
    """The process has died: it receives no messages."""


class WorkerHandle:
    """The kernel's handle of one rank's process.

    Attributes:
        pid: its number.
        wire: a socket pair for messages (see `messages`).
        output: a pipe with its output.
        stack: a pipe with the stack of its Python code, after a signal or a crash; written by `faulthandler`.
        status: a pipe from the fork server with its exit code.
    """

    def __init__(self, pid: int, wire: socket.socket, output: int, stack: int, status: int) -> None:
        self.pid, self.wire, self.output, self.stack, self.status = pid, wire, output, stack, status
        self.exitcode: int | None = None
        self._frames = Frames()
        wire.setblocking(True)
        for fd in (output, stack, status):
            os.set_blocking(fd, False)

    def send(self, message: ToRank) -> None:
        """Send a message.

        Raises:
            WorkerDied: the process has died.
        """
        self.write(framed(message))

    def write(self, data: bytes | memoryview) -> None:
        """Send parts of messages.

        Raises:
            WorkerDied: the process has died.
        """
        try:
            self.wire.sendall(data)
        except OSError:
            raise WorkerDied from None

    def receive(self) -> list[tuple[int, FromRank]] | None:
        """Return the messages that have arrived, each with its run's number. None: no byte; if the socket was ready,
        the process is dead."""
        data = b""
        with suppress(BlockingIOError, ConnectionResetError):
            data = self.wire.recv(1 << 18, socket.MSG_DONTWAIT)
        return self._frames.whole(data) if data else None

    @property
    def has_partial_message(self) -> bool:
        """Return whether a message has arrived only in part."""
        return self._frames.incomplete

    def read(self, fd: int) -> bytes:
        """Return what has arrived through a pipe, without waiting; it may be empty."""
        chunks = []
        with suppress(BlockingIOError):
            while chunk := os.read(fd, 1 << 16):
                chunks.append(chunk)
                if len(chunks) == 16:  # other pipes are waiting
                    break
        return b"".join(chunks)

    def dead(self) -> bool:
        """Return whether the process has ended, and set `exitcode`: minus a signal's number if one ended it."""
        if self.exitcode is None:
            with suppress(BlockingIOError):
                data = os.read(self.status, PID.size)
                self.exitcode = PID.unpack(data)[0] if data else -signal.SIGKILL  # the server and its ranks are dead
        return self.exitcode is not None

    @property
    def machine_lost(self) -> bool:
        """Return whether its machine is lost too. This machine is not."""
        return False

    @property
    def how_it_died(self) -> str:
        """Return, in words, how the dead process ended."""
        assert self.exitcode is not None
        return how_it_died(self.exitcode)

    def signal(self, number: int) -> None:
        """Send a signal, if the process is alive."""
        if not self.dead():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its child processes."""
        if not self.dead():
            with suppress(ProcessLookupError):  # it has not made its own session yet
                os.killpg(self.pid, signal.SIGKILL)
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        self.wire.close()
        for fd in (self.output, self.stack, self.status):
            os.close(fd)


class ForkServer:
    """The kernel's handle of the process that runs `fork_server.serve`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(True)  # even if a learner has called `socket.setdefaulttimeout`
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
        """Return a new rank's process.

        Raises:
            CourseError: the server has ended.
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
        """Return whether the server runs."""
        return self._popen.poll() is None

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return self._popen.pid

    def close(self) -> None:
        """End the server and every rank."""
        self._control.close()
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:  # its ranks die with it
            self._popen.kill()
            self._popen.wait()
