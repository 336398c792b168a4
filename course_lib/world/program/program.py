"""`Program`: a file or a module that is `__main__` on each rank, as if torchrun had started it."""

from __future__ import annotations

import ast
import atexit
import builtins
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing import current_process
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from ...errors import CourseError
from ...meter import is_learners
from ..error_report import ErrorReport
from ..learner_code import file_of
from ..rank_threads.main import is_main
from ..torch_hooks import interposer
from ..torch_hooks.patching import replaced

_STARTERS = re.compile(
    r"(?!psutil\.)((\w+\.)*(spawn|start_processes|Process|notebook_launcher|debug_launcher|elastic_launch)|.*\.Process)"
)
"""The functions with which a program starts its ranks itself."""

_GIVES_RANK = re.compile(r"(?<!local_)rank|\*")
_READS_RANK = re.compile(rb"""(environ(\.get\(|\[)|getenv\()\s*["']RANK["']""")
_SETS_RANK = re.compile(rb"""["']RANK["'](\]([^()\n]*\])?\s*=[^=]|:)|\bRANK=|(setdefault|putenv)\(["']RANK""")
"""Text that gives a process its rank: in a call of `init_process_group`, and elsewhere in a program."""

_ASKS = re.compile(rb"cuda|nccl|accelerat|transformers|lightning|deepspeed")
"""Text in a program that may ask for GPUs, itself or through a library."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and its arguments. Call it on a rank: the rank then runs the program.

    Attributes:
        path: its file.
        source: what was in it.
        module: its name, if it was named as a module; or empty.
        port: a free port, which the program finds in `MASTER_PORT`.
    """

    path: str
    source: bytes
    module: str
    arguments: tuple[str, ...]
    port: int

    @classmethod
    def found(cls, name: str | os.PathLike[str], arguments: Sequence[str], *, module: bool = False) -> Program:
        """Return the program in the file `name`, or the `module` of that name.

        Raises:
            CourseError: there is no such program, or it is not Python.
        """
        if str(name).endswith(".ipynb"):
            raise CourseError(
                f"{name} is a notebook. Save it as a program first (jupyter nbconvert --to script {name}), or begin a "
                "cell of it with %%ranks, after %load_ext course_lib."
            )
        with _in_folder(os.getcwd()):
            path = _origin(str(name)) if module else os.path.abspath(name)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port: int = server.getsockname()[1]
        program = cls(
            path=path,
            source=_read(path),
            module=str(name) if module else "",
            arguments=tuple(map(str, arguments)),
            port=port,
        )
        program.code()  # raises if it is not Python
        return program

    @property
    def name(self) -> str:
        return self.module or os.path.basename(self.path)

    def code(self) -> CodeType:
        try:
            return compile(self.source, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise CourseError(
                f"{self.path} is not a Python program: {error}. Name the file of a program, or correct that line."
            ) from None

    @property
    def starts_ranks(self) -> bool:
        source = self.source
        if not re.search(rb"multiprocessing|accelerate|elastic_launch", source):
            return False
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        starters = [name for call in calls if _STARTERS.fullmatch(name := ast.unparse(call.func))]
        joins = " ".join(ast.unparse(call) for call in calls if ast.unparse(call.func).endswith("init_process_group"))
        from_torchrun = _READS_RANK.search(source) or not _GIVES_RANK.search(joins)
        if joins and from_torchrun and not _SETS_RANK.search(source):
            starters = [name for name in starters if not name.endswith("Process")]  # a rank of torchrun's has helpers
        return bool(starters)

    @property
    def asks_for_gpus(self) -> bool:
        """Whether the program's file or its arguments name something that may need GPUs."""
        return bool(_ASKS.search(b" ".join([self.source, *map(os.fsencode, self.arguments)])))

    # -- in this process -----------------------------------------------------------------------------------------

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Give this process the program's arguments and its folder inside the block."""
        folder = os.getcwd() if self.module else os.path.dirname(self.path)
        arguments = (sys, "argv", [self.path, *self.arguments])
        with _in_folder(folder), self._own_process(), replaced([arguments]):
            yield

    # -- on a rank -----------------------------------------------------------------------------------------------

    def __call__(self) -> None:
        with self.started(self.variables()), self.main("__main__") as execute:
            execute()

    @contextmanager
    def started(self, variables: dict[str, str]) -> Iterator[None]:
        """Make the rank inside the block like a process that has just been started, with these environment variables.

        It has no default group until the program asks for it. `sys.exit(0)` ends the block.
        """
        dist.destroy_process_group()
        os.environ.update(variables)
        sys.argv[:] = [self.path, *self.arguments]  # in place: threads share the list
        with nullcontext() if is_thread() else self._own_process():
            rank: Any = interposer.current()
            try:
                yield
            except SystemExit as end:
                if not (end.code is None or (isinstance(end.code, int) and end.code & 255 == 0)):
                    raise
                rank.exited_at = ErrorReport.of(end).source_line
            rank.program_ended()

    @contextmanager
    def main(self, name: str) -> Iterator[Callable[[], None]]:
        """Give the block the function that executes the file, whose names are found in `__main__` inside the block. A
        generator does not execute it itself: that would replace a `StopIteration` of the program."""
        spec: Any = _spec(self.module) if self.module else None
        main = ModuleType(name)
        vars(main).update(__file__=self.path, __builtins__=builtins, __spec__=spec)
        vars(main).update(__package__=spec.parent if spec else None, __cached__=None)
        vars(main).update(exit=sys.exit, quit=sys.exit)  # IPython removes Python's own, which also close `sys.stdin`
        process: Any = current_process()

        def execute() -> None:
            process._inheriting = name == "__mp_main__"  # Python then refuses to start processes without a guard
            try:
                exec(self.code(), vars(main))
            finally:
                process._inheriting = False

        with is_main(main):
            yield execute

    def variables(self) -> dict[str, str]:
        """Return the environment variables that torchrun sets for a rank, in addition to those of every run."""
        return {
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "ROLE_NAME": "default",
            "ROLE_RANK": os.environ["RANK"],
            "ROLE_WORLD_SIZE": os.environ["WORLD_SIZE"],
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }

    @contextmanager
    def _own_process(self) -> Iterator[None]:
        """Leave nothing of the program in this process: not its `print`, nor the modules next to it, which may change.
        What it registers for the end of the process is called at the end of the block."""
        register, unregister, calls = atexit.register, atexit.unregister, list[partial[Any]]()
        with ExitStack() as end:

            def at_end(function: Any, *args: Any, **kwargs: Any) -> Any:
                if is_thread() or not is_learners(sys._getframe(1).f_code):
                    return register(function, *args, **kwargs)
                calls.append(call := partial(function, *args, **kwargs))
                end.callback(called, call)
                return function

            def called(call: partial[Any]) -> None:
                try:
                    if call in calls:
                        call()
                except Exception:  # as in Python, it ends nothing
                    traceback.print_exc()

            def not_at_end(function: Any) -> None:
                calls[:] = [call for call in calls if call.func != function]
                unregister(function)

            end.callback(setattr, builtins, "print", print)
            end.enter_context(replaced([(atexit, "register", at_end), (atexit, "unregister", not_at_end)]))
            if not self.starts_ranks:
                spawning = sys.modules["torch.multiprocessing.spawn"]  # `spawn` there calls `start_processes`
                end.enter_context(replaced((module, "start_processes", self._refuse) for module in (mp, spawning)))
            end.callback(self._forget_modules, set(sys.modules))
            yield

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise CourseError(
            "a rank would start ranks, with torch.multiprocessing. A program that starts its ranks itself is "
            f"recognised only by calls in its own file, {os.path.basename(self.path)}. Make the call in that file, or "
            "run the file that makes it."
        )

    def _forget_modules(self, kept: set[str]) -> None:
        folder = os.path.dirname(self.path) + os.sep
        for name in sys.modules.keys() - kept:
            file = file_of(sys.modules[name])
            if file.startswith(folder) and "site-packages" not in file:
                del sys.modules[name]


def _read(path: str) -> bytes:
    if Path(path).is_fifo():
        raise CourseError(f"{path} is a pipe, which can be read once. Save the program in a file, and name that.")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CourseError(
            f"{path}: {error.strerror}. Name the file of a Python program, or a module after -m."
        ) from None


def is_thread() -> bool:
    """Return whether the calling rank is a thread, and shares modules and arguments with others."""
    return threading.current_thread() is not threading.main_thread()


@contextmanager
def _in_folder(folder: str) -> Iterator[None]:
    """Let Python look for modules in `folder` first inside the block."""
    with replaced([(sys, "path", [folder, *(path for path in sys.path if path)])]):
        yield


def _spec(name: str) -> ModuleSpec | None:
    spec = find_spec(name)
    return find_spec(f"{name}.__main__") if spec is not None and spec.submodule_search_locations else spec


def _origin(name: str) -> str:
    """Return the file of the module `name`, or of the package's `__main__`."""
    try:
        spec = _spec(name)
    except (ImportError, ValueError):  # of a package around it
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise CourseError(
            f"-m {name}: no module of that name is here. Write the name as in `import`, and start from the folder that "
            "contains the module or its package."
        )
    return spec.origin
