"""Run the cells of a notebook in a fresh kernel, and collect the functions that it hands in."""

import ast
import json
import os
import queue
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from ..progress import named
from .limits import POLL_SECONDS, REAPER, Limits, Watch

TAKE = "__import__('course_lib.grading.capture', fromlist=['capture']).capture({name!r}, {file!r}, earlier={earlier})"
KERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
STARTUP_SECONDS = 120
HANDED_IN = re.compile(r"""^@[\w.]*\bexercise\(\s*["']([\w.]+)["']""", re.MULTILINE)


@dataclass(kw_only=True)
class Ran:
    """The result of running a notebook.

    Attributes:
        solutions: the files of the functions that were handed in, by exercise.
        problems: why there is no function, by exercise.
        raised: the error of each cell that raised, by the cell's number, from 1.
        claims: exercises that an output calls passed, whatever code printed it.
        ended: why the run ended early; empty if every cell ran.
    """

    solutions: dict[str, Path] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    ended: str = ""


class _Ended(Exception):
    """The run ended before the last cell; the text is the reason."""


def run(sources: Sequence[str], scratch: Path, limits: Limits) -> Ran:
    """Run code cells in a fresh kernel.

    Args:
        sources: the text of each code cell.
        scratch: a folder for the kernel, which works in `scratch/work`.
        limits: for the kernel and everything that it starts.
    """
    ran = Ran()
    home = scratch / "home"
    own = {"COURSE_HOME": home, "IPYTHONDIR": scratch / "ipython", "TMPDIR": scratch}
    environment = os.environ | {name: str(folder) for name, folder in own.items()}
    manager = KernelManager(kernel_name="python3")
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = [*REAPER, *KERNEL]
    work = str(scratch / "work")
    manager.start_kernel(cwd=work, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert isinstance(manager.provisioner, LocalProvisioner) and manager.provisioner.pid is not None
    watch = Watch(manager.provisioner.pid, limits, home)
    client = manager.client()
    client.start_channels()
    try:
        _wait_for(client)
        timed = Watch(manager.provisioner.pid, limits, home)  # now that the kernel is ready
        _Run(manager, client, timed, limits, ran).cells(sources, scratch)
    except _Ended as reason:
        ran.ended = str(reason)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # its code can write to the kernel's sockets
        ran.ended = f"it sent what is no message of a kernel ({type(error).__name__}: {error})"
    finally:
        watch.kill()
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return ran


def _wait_for(client: BlockingKernelClient) -> None:
    try:
        client.wait_for_ready(STARTUP_SECONDS)
    except RuntimeError as error:
        raise _Ended(f"its kernel did not start ({error})") from error


class _Run:
    """One kernel, from its first cell to its last."""

    def __init__(
        self, manager: KernelManager, client: BlockingKernelClient, watch: Watch, limits: Limits, ran: Ran
    ) -> None:
        self._manager, self._client, self._watch, self._limits, self._ran = manager, client, watch, limits, ran
        self._names: set[str] = set()
        self._shown_bytes = 0

    def cells(self, sources: Sequence[str], scratch: Path) -> None:
        self._names = {name for source in sources for name in handed_in(source)}
        for number, source in enumerate(sources, 1):
            try:
                error = self._execute(source)
            except _Ended as reason:
                self._ran.problems |= dict.fromkeys(handed_in(source), f"its cell did not end: {reason}")
                raise
            if error:
                self._ran.raised[number] = error
            for name in handed_in(source):
                self._take(name, scratch / f"{number}-{len(self._ran.solutions)}.pickle", error)

    def _take(self, name: str, file: Path, error: str) -> None:
        source = TAKE.format(name=name, file=str(file), earlier=name in self._ran.solutions)
        problem = self._execute(source, silent=True)
        if file.exists() and not problem:
            self._ran.solutions[name] = file
        elif name not in self._ran.solutions:
            self._ran.problems[name] = error or problem

    def _execute(self, source: str, *, silent: bool = False) -> str:
        """Run one text, and return the error that it raised, or nothing. Interrupt it if it takes too long."""
        request = self._client.execute(source, silent=silent, allow_stdin=False, stop_on_error=False)
        error = ""
        interrupted = False
        self._watch.begin_turn()
        while True:
            message = self._message()
            if self._watch.turn_exceeded() and not interrupted:
                interrupted = True
                self._manager.interrupt_kernel()
            if message is None or message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                stopped = f"KeyboardInterrupt: it was stopped after {self._limits.turn_seconds:g} s"
                return stopped if interrupted else error
            if kind == "error":
                error = f"{content['ename']}: {content['evalue']}".partition("\n")[0]
            self._look_at(content)

    def _message(self) -> Mapping[str, Any] | None:
        """Return the kernel's next message, or None if there is none yet.

        Raises:
            _Ended: a limit was passed, or the kernel is gone.
        """
        reason = self._watch.exceeded()
        if reason:
            raise _Ended(reason)
        try:
            message: Mapping[str, Any] = self._client.get_iopub_msg(timeout=POLL_SECONDS)
        except queue.Empty:
            if self._watch.gone():
                raise _Ended("it ended its own process: os._exit, a crash, or no memory left") from None
            return None
        return message

    def _look_at(self, content: Mapping[str, Any]) -> None:
        """Count the bytes shown, and record the claims in them."""
        shown = json.dumps(content)
        self._shown_bytes += len(shown)
        if self._shown_bytes > self._limits.output_bytes:
            raise _Ended(f"it printed or showed more than {self._limits.output_bytes / 1e6:g} MB")
        self._ran.claims |= claimed(shown, self._names)


def handed_in(source: str) -> list[str]:
    """Return the exercises that a cell hands in, even if it is not valid Python: with a magic, or a typo."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return HANDED_IN.findall(source)
    return named(source, "exercise")


def claimed(text: str, names: Iterable[str]) -> set[str]:
    """Return the exercises that `text` calls passed, in the words of the course's own output."""
    return {name for name in names if f"{name}: passed" in text}
