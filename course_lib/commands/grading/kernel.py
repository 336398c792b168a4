"""Run the cells of a notebook in a fresh kernel, and collect the functions that it hands in."""

import ast
import asyncio
import filecmp
import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbclient.util import ensure_async
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from ...exercises.registry import MOVED, REMOVED
from ...syllabus import named
from .limits import Limits, Watch

TAKE = "__import__('course_lib.commands.checker', fromlist=['capture']).capture({name!r}, {file!r})"
STARTUP_SECONDS = 120
SEND_MILLISECONDS = 10_000
LONGEST = 1000
"""Characters of an error. Every row of CSV repeats them."""
LARGEST_BYTES = 10**8
"""Bytes of a packed function that is compared with earlier ones. No limit ends the comparison: it is the grader's."""
HANDED_IN = re.compile(r"""^@?[\w.]*\bexercise\(\s*["']([\w.]+)["']""", re.MULTILINE)
SILENT = logging.Logger(__name__, level=logging.CRITICAL + 1)  # nbclient logs what is reported as a remark


@dataclass(kw_only=True)
class Ran:
    """The result of running a notebook.

    Attributes:
        solutions: the exercise and the file of each function that was handed in, in order.
        problems: why there is no function, by exercise.
        raised: the error of each cell that raised, by the cell's number, from 1.
        ended: why the run ended early; empty if every cell ran.
    """

    solutions: list[tuple[str, Path]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    ended: str = ""


def run(sources: Sequence[str], scratch: Path, limits: Limits) -> Ran:
    """Run code cells in a fresh kernel.

    Args:
        sources: the text of each code cell.
        scratch: a folder for the kernel, which works in `scratch/work`.
        limits: for the kernel and everything that it starts.
    """
    own = {"COURSE_HOME": scratch / "home", "IPYTHONDIR": scratch / "ipython", "TMPDIR": scratch}
    environment = os.environ | {name: str(folder) for name, folder in own.items()}
    client = _Client(limits)
    with asyncio.Runner() as runner:  # ends the tasks that nbclient leaves running after an error
        # Not runner.run: it makes Ctrl-C a cancellation, and nbclient takes a cancellation for a dead kernel.
        runner.get_loop().run_until_complete(client.run(sources, scratch, environment))
    return client.ran


class _Bounded(AsyncKernelClient):
    """After a notebook has written to its kernel's own sockets, a send or the end of the heartbeat can take forever."""

    def start_channels(self, *args: Any, **given: Any) -> None:
        self.context.setsockopt(zmq.SNDTIMEO, SEND_MILLISECONDS)
        super().start_channels(*args, **given | {"hb": False})


class _Client(NotebookClient):
    """Runs one notebook. It keeps no outputs, because only what was handed in counts."""

    def __init__(self, limits: Limits) -> None:
        stopped = {"ename": "KeyboardInterrupt", "evalue": f"it was stopped after {limits.turn_seconds:.3g} s"}
        super().__init__(
            new_notebook(cells=[new_code_cell()]),
            # In no folder, it finds this Python; in that of a user, perhaps a different one with this name.
            AsyncKernelManager(
                kernel_name="python3",
                kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
                client_factory=_Bounded,
            ),
            timeout_func=lambda cell: limits.turn_seconds,
            interrupt_on_timeout=True,
            error_on_timeout=stopped,
            startup_timeout=STARTUP_SECONDS,
            log=SILENT,
        )
        self.ran = Ran()
        self._limits = limits

    async def run(self, sources: Sequence[str], scratch: Path, environment: Mapping[str, str]) -> None:
        """Start the kernel, run the cells, and save what each hands in."""
        assert self.km is not None
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await self.async_start_new_kernel(cwd=str(scratch / "work"), env=environment, **quiet)
        assert isinstance(self.km.provisioner, LocalProvisioner) and self.km.provisioner.pid is not None
        client = await self.async_start_new_kernel_client()
        try:
            with Watch(self.km.provisioner.pid, self._limits) as watch:
                await self._cells(sources, scratch, watch)
        finally:
            client.stop_channels()
            await ensure_async(self.km.shutdown_kernel(now=True))

    async def _cells(self, sources: Sequence[str], scratch: Path, watch: Watch) -> None:
        for number, source in enumerate(sources, 1):
            names = handed_in(source)
            try:
                error = await self._error_of(source)
                for name in names:
                    await self._take(name, scratch / f"{len(self.ran.solutions)}.pickle", error)
            except (DeadKernelError, zmq.Again) as lost:
                blamed = f"code cell {number}, or the one before it,"  # after exit(), a kernel begins the next cell
                ended = f"{blamed} ended the kernel: exit(), os._exit, a crash, or no memory left"
                unheard = "its kernel cannot be reached: it may have written to the kernel's own sockets"
                self.ran.ended = watch.ended or (unheard if isinstance(lost, zmq.Again) else ended)
                self.ran.problems |= dict.fromkeys(names, f"its cell did not end: {self.ran.ended}")
                return
            if error:
                self.ran.raised[number] = error

    async def _take(self, name: str, file: Path, error: str) -> None:
        problem = await self._error_of(TAKE.format(name=name, file=str(file)))
        if not file.exists():
            self.ran.problems[name] = error or problem
        elif file.stat().st_size < LARGEST_BYTES and any(
            filecmp.cmp(file, earlier, shallow=False) for of, earlier in self.ran.solutions if of == name
        ):
            file.unlink()  # a cell that asks for a hint hands in the same function again
        else:
            self.ran.solutions.append((name, file))

    async def _error_of(self, source: str) -> str:
        """Run one text, and return the error that it raised, or nothing."""
        try:
            await self.async_execute_cell(new_code_cell(source), 0)
        except CellExecutionError as error:
            return f"{error.ename}: {error.evalue}".partition("\n")[0][:LONGEST]
        except UnicodeEncodeError as error:  # half an emoji, which cannot be sent
            return f"UnicodeEncodeError: {error}"[:LONGEST]
        return ""

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> None:
        """Drop every output."""
        if msg["msg_type"] == "status":
            super().process_message(msg, cell, cell_index)


def handed_in(source: str) -> list[str]:
    """Return today's exercises that a cell hands in, by today's names, even if the cell is not valid Python: with a
    magic, or a typo."""
    try:
        ast.parse(source)
        names = named(source, "exercise")
    except (SyntaxError, ValueError, RecursionError):
        names = HANDED_IN.findall(source)
    return [MOVED.get(name, name) for name in names if name not in REMOVED]
