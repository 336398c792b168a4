"""Runs the cells of a notebook in a fresh kernel, and takes the functions that it hands in."""

import json
import os
import queue
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from ..lessons import named
from .limits import POLL_SECONDS, Limits, Watch

TAKE = "__import__('course_lib.grading.capture', fromlist=['capture']).capture({name!r}, {file!r})"
STARTUP_SECONDS = 120


@dataclass(kw_only=True)
class Ran:
    """What came of a run.

    Attributes:
        solutions: the files of the functions that were handed in, by exercise.
        problems: why nothing could be taken, by exercise.
        raised: the error of each cell that raised, by the cell's number, from 1.
        claims: exercises that an output calls passed, whoever printed it.
        ended: why the run was ended; empty where every cell was run.
    """

    solutions: dict[str, Path] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    ended: str = ""


class _Ended(Exception):
    """The run is over before the last cell; the text says why."""


def run(sources: Sequence[str], scratch: Path, limits: Limits) -> Ran:
    """Run code cells in a kernel of their own.

    Args:
        sources: the text of each code cell.
        scratch: a folder for the kernel, which works in `scratch/work`.
        limits: for the kernel and all that it starts.
    """
    ran = Ran()
    environment = os.environ | {"COURSE_HOME": str(scratch / "home"), "IPYTHONDIR": str(scratch / "ipython")}
    try:
        manager, client = start_new_kernel(
            startup_timeout=STARTUP_SECONDS,
            kernel_name="python3",
            cwd=str(scratch / "work"),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except RuntimeError as error:
        ran.ended = f"its kernel did not start ({error})"
        return ran
    assert isinstance(manager.provisioner, LocalProvisioner) and manager.provisioner.pid is not None
    watch = Watch(manager.provisioner.pid, limits)
    try:
        _Run(client, watch, limits, ran).cells(sources, scratch)
    except _Ended as reason:
        ran.ended = str(reason)
    finally:
        watch.kill()
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return ran


class _Run:
    """One kernel, from its first cell to its last."""

    def __init__(self, client: BlockingKernelClient, watch: Watch, limits: Limits, ran: Ran) -> None:
        self._client, self._watch, self._limits, self._ran = client, watch, limits, ran
        self._names: set[str] = set()
        self._shown_bytes = 0

    def cells(self, sources: Sequence[str], scratch: Path) -> None:
        self._names = {name for source in sources for name in named(source, "exercise")}
        for number, source in enumerate(sources, 1):
            error = self._execute(source)
            if error:
                self._ran.raised[number] = error
            for name in named(source, "exercise"):
                self._take(name, scratch / f"{number}-{len(self._ran.solutions)}.pickle", error)

    def _take(self, name: str, file: Path, error: str) -> None:
        problem = self._execute(TAKE.format(name=name, file=str(file)), silent=True)
        if file.exists() and not problem:
            self._ran.solutions[name] = file
        elif name not in self._ran.solutions:
            self._ran.problems[name] = error or problem

    def _execute(self, source: str, *, silent: bool = False) -> str:
        """Run one text; the error that it raised, or nothing."""
        request = self._client.execute(source, silent=silent, allow_stdin=False, stop_on_error=False)
        error = ""
        while True:
            message = self._message()
            if message is None or message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return error
            if kind == "error":
                error = f"{content['ename']}: {content['evalue']}".partition("\n")[0]
            self._look_at(content)

    def _message(self) -> Mapping[str, Any] | None:
        """The kernel's next message, or None if there is none yet.

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
        """Count what is shown, and note what it claims."""
        shown = json.dumps(content)
        self._shown_bytes += len(shown)
        if self._shown_bytes > self._limits.output_bytes:
            raise _Ended(f"it printed or showed more than {self._limits.output_bytes / 1e6:g} MB")
        self._ran.claims |= claimed(shown, self._names)


def claimed(text: str, names: Iterable[str]) -> set[str]:
    """Those exercises that `text` calls passed, in the words of the course's own output."""
    return {name for name in names if f"{name}: passed" in text}
