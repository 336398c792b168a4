"""The learner's code: find the line that a rank is at."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterable
from functools import lru_cache
from itertools import takewhile
from types import CodeType, FrameType, ModuleType

from torch import overrides
from torch.autograd import graph
from torch.distributed import c10d_logger, distributed_c10d
from torch.distributed import utils as distributed_utils
from torch.nn.parallel import distributed as ddp
from torch.utils import _device

from .. import meter
from ..meter import SourceLine, is_learners, is_learners_code, outward

# The others wrap the functions of the first; the last one those that are deprecated.
_DEPRECATED = distributed_c10d.all_gather_into_tensor.__wrapped__  # type: ignore[attr-defined]
_C10D = (distributed_c10d.__file__, c10d_logger.__file__, _DEPRECATED.__code__.co_filename)
_WORLD = os.path.join(os.path.dirname(__file__), "")
_INTERNAL = (_WORLD, os.path.join(os.path.dirname(meter.__file__), ""), sysconfig.get_path("stdlib"))
_DDP = (ddp.__file__, distributed_utils.__file__)
_OF_MODES = (_WORLD, overrides.__file__, _device.__file__)  # between two frames of a call under `set_default_device`


def importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported on the stack of `frame`.

    A rank must not be stopped there: Python could not import the rest of the package later, and torch imports some of
    its own packages on first use, for seconds.
    """
    return any(one.f_code.co_filename.startswith("<frozen importlib") for one in outward(frame))


def file_of(module: object) -> str:
    """Return the file of an entry of `sys.modules`; empty without one. A stub there may raise anything, or import a
    library, when it is asked for an attribute."""
    file = object.__getattribute__(module, "__dict__").get("__file__") if isinstance(module, ModuleType) else None
    return file if isinstance(file, str) else ""


def learner_line(home: threading.Thread | None = None) -> SourceLine:
    """Return the innermost line of the learner's code on the caller's stack.

    A callback of torch's has no such line: then return the line at which the thread `home` is.
    """
    caller = sys._getframe(1)
    line = source_line_on(caller)
    learners = line is not None and is_learners_code(line.filename, line.function)
    if home is not None and home.ident != threading.get_ident() and not learners:
        line = position_of(home)
    return line or SourceLine.of(caller)


def learner_lines() -> tuple[SourceLine, ...]:
    """Return the learner's lines on the caller's stack, outermost first."""
    frames = [frame for frame in outward(sys._getframe(1)) if is_learners(frame.f_code)]
    return tuple(map(SourceLine.of, reversed(frames)))


def library_function(line: SourceLine) -> str:
    """Return the library function, on the caller's stack, that the learner's `line` calls by its name; empty if there
    is none, as where the line calls a module."""
    called, found = _called_in(line.source), ""
    for frame in outward(sys._getframe(1)):
        if is_learners(frame.f_code):
            return found
        if frame.f_code.co_name in called:
            found = frame.f_code.co_name
    return ""


@lru_cache(maxsize=1024)  # of each call
def _called_in(source: str) -> frozenset[str]:
    return frozenset(re.findall(r"(\w+)\(", source))


def source_line_on(frame: FrameType) -> SourceLine | None:
    """Return the innermost line of the learner's code on the stack of `frame`, with its caller.

    Library code may run without the learner's (a reference solution): then return its outermost line. Return None if
    only code that runs ranks is on the stack.
    """
    frames = list(outward(frame))[::-1]
    if line := in_program(SourceLine.of(one) for one in frames if is_learners(one.f_code)):
        return line
    others = (one for one in frames if not is_internal(one.f_code))
    library = (one for one in others if one.f_code.co_filename != "<string>")  # multiprocessing's command
    return next(map(SourceLine.of, library), None)


def in_program(lines: Iterable[SourceLine]) -> SourceLine | None:
    """Return the last of the learner's lines with its caller, the last one of those in the file where the first one is.

    Code without a file (that of `python -c`, a dataclass's methods) counts where nothing else does.
    """
    found = list(lines)
    found = [line for line in found if line.filename != "<string>"] or found
    if not found:
        return None
    *_, caller = takewhile(lambda line: line.filename == found[0].filename, found)
    return found[-1] if found[-1].filename == caller.filename else found[-1]._replace(caller=caller)


def is_internal(code: CodeType) -> bool:
    """Return whether `code` runs ranks, or has marked itself, as for pytest, as code that only calls the learner's."""
    return code.co_filename.startswith(_INTERNAL) or "__tracebackhide__" in code.co_varnames


def position_of(thread: threading.Thread) -> SourceLine | None:
    """Return the learner's line that another thread is at; None if the thread has ended."""
    frame = stack_of(thread)
    return None if frame is None else source_line_on(frame)


def stack_of(thread: threading.Thread) -> FrameType | None:
    """Return the innermost frame of another thread; None if it has ended."""
    return sys._current_frames().get(thread.ident or -1)


_FRAME = re.compile(
    r"""^\ \ (File\ ")? (?P<filename>.+) (",\ line\ |\() (?P<line>\d+) (\ in\ |\):\ ) (?P<function>.+)\n""",
    re.MULTILINE | re.VERBOSE,
)


def source_line_in_dump(dump: str) -> SourceLine | None:
    """Return the learner's innermost line in a stack that native code printed, innermost frame first: `faulthandler`
    for a thread, or pybind11 for an exception that passed through C++."""
    for frame in _FRAME.finditer(dump):
        if is_learners_code(frame["filename"], frame["function"]):
            return SourceLine(frame["filename"], int(frame["line"]), frame["function"])
    return None


def receiver_of_work() -> CodeType | None:
    """Return the code to which the current call returns its Work.

    None if torch made the call for itself and waits for it: its C++, or its `send` and `recv`.
    """
    names = set[str]()
    for frame in outward(sys._getframe(1)):
        if frame.f_code.co_filename in _C10D:
            names.add(frame.f_code.co_name)
        elif not frame.f_code.co_filename.startswith(_OF_MODES):
            return frame.f_code if names and not names & {"send", "recv"} else None
    return None


def is_of_ddp() -> bool:
    """Return whether C++ that DDP's Python code calls makes the current call. It waits before it returns."""
    frames = outward(sys._getframe(1))
    caller = next((one for one in frames if not one.f_code.co_filename.startswith(_OF_MODES)), None)
    return caller is not None and caller.f_code.co_filename in _DDP


def in_cpp_of_backward(thread: threading.Thread) -> bool:
    """Return whether another thread runs C++ code of a backward pass, and no Python code that it calls."""
    frame = stack_of(thread)
    return frame is not None and frame.f_code.co_filename == graph.__file__
