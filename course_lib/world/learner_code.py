"""The learner's code: find the line that a rank is at, and turn exceptions into text."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from types import CodeType, FrameType, TracebackType

from torch.distributed import c10d_logger, distributed_c10d

from .. import meter
from ..errors import CourseError
from ..meter import SourceLine, is_learners, is_learners_code

# The others wrap the functions of the first; the last one those that are deprecated.
_DEPRECATED = distributed_c10d.all_gather_into_tensor.__wrapped__  # type: ignore[attr-defined]
_C10D = (distributed_c10d.__file__, c10d_logger.__file__, _DEPRECATED.__code__.co_filename)
_WORLD = os.path.join(os.path.dirname(__file__), "")
_CHECK = os.path.join(os.path.dirname(_WORLD[:-1]), "exercises", "checking", "observe.py")  # calls solutions
_INTERNAL = (_WORLD, _CHECK, os.path.join(os.path.dirname(meter.__file__), ""), sysconfig.get_path("stdlib"))


def importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported on the stack of `frame`.

    A rank must not be stopped there: Python could not import the rest of the package later, and torch imports some of
    its own packages on first use, for seconds.
    """
    frames = () if frame is None else traceback.walk_stack(frame)
    return any(one.f_code.co_filename.startswith("<frozen importlib") for one, _ in frames)


def _module_being_imported(frame: FrameType | None) -> str:
    """Return the outermost module that is being imported on the stack of `frame`; or empty."""
    name = ""
    for one, _ in traceback.walk_stack(frame):
        if one.f_code.co_name == "_find_and_load" and one.f_code.co_filename.startswith("<frozen importlib"):
            name = str(one.f_locals["name"])
    return name


def learner_line(home: threading.Thread | None = None) -> SourceLine:
    """Return the innermost line of the learner's code on the caller's stack.

    A callback of torch's has no such line: then return the line at which the thread `home` is.
    """
    caller = sys._getframe(1)
    if home is not None and home.ident != threading.get_ident() and not learner_lines():
        return source_line_of(home) or SourceLine.of(caller)
    return source_line_on(caller) or SourceLine.of(caller)


def learner_lines() -> tuple[SourceLine, ...]:
    """Return the 20 innermost lines of the learner's code on the caller's stack, innermost first."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if is_learners(frame.f_code))
    return tuple(SourceLine.of(frame) for frame in islice(frames, 20))


def source_line_on(frame: FrameType) -> SourceLine | None:
    """Return the innermost line of the learner's code on the stack of `frame`, with its caller.

    Code without a file (that of `python -c`, a dataclass's methods) counts where nothing else does. Library code may
    run without the learner's (a reference solution): then return its outermost line. Return None if only code that
    runs ranks is on the stack.
    """
    without_file = outermost = None
    walker: FrameType | None = frame
    while walker is not None:
        if is_learners(walker.f_code):
            if walker.f_code.co_filename != "<string>":
                return _with_caller(walker)
            without_file = without_file or walker
        elif not walker.f_code.co_filename.startswith(("<string>", *_INTERNAL)):  # multiprocessing's command
            outermost = walker
        walker = walker.f_back
    found = without_file or outermost
    return None if found is None else SourceLine.of(found)


def _with_caller(frame: FrameType) -> SourceLine:
    """Return the line that `frame` is at, with its caller. Further out than the learner's code is what runs ranks."""
    line, caller, filename = SourceLine.of(frame), None, frame.f_code.co_filename
    walker = frame.f_back
    while walker is not None:
        code = walker.f_code
        if code.co_filename != filename:
            if code.co_filename.startswith(_WORLD):
                break
            if is_learners(code) and code.co_filename != "<string>":
                caller, filename = walker, code.co_filename
        walker = walker.f_back
    return line if caller is None or filename == line.filename else line._replace(caller=SourceLine.of(caller))


def source_line_of(thread: threading.Thread) -> SourceLine | None:
    """Return the learner's line on another thread's stack; None if there is none or the thread has ended."""
    frame = stack_of(thread)
    line = None if frame is None else source_line_on(frame)
    return None if line is None else line._replace(importing=_module_being_imported(frame))


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
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_WORLD):
        frame = frame.f_back
    names = []
    while frame is not None and frame.f_code.co_filename in _C10D:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return frame.f_code if frame is not None and names and not {"send", "recv"} & set(names) else None


LINE_LIMIT = 500  # the most characters shown of each line of an exception's text


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """An exception of one rank, as text: keeping the traceback would keep the rank's groups and tensors alive."""

    type: str  # name of the exception's class
    message: str
    source_line: SourceLine | None  # the learner's innermost line
    traceback: str  # from the learner's first line on, with the library frames that follow
    unfinished: Unfinished | None = None  # an exception of the learner's code that was being handled

    @staticmethod
    def of(error: BaseException) -> ErrorReport:
        """Return the report of `error`."""
        # torch wraps errors: pipeline() a refusal, and assert_close() in a dry run the lack of numbers.
        shown = next((one for one in _causes(error) if isinstance(one, CourseError)), error)
        message, _, stack = _text(shown).partition("\n\nAt:\n")  # pybind11 appends the stack of a callback
        first, *more = _leaves(shown)
        if first is not shown:
            text = _text(first).partition("\n")[0]
            message += f"\n{type(first).__name__}: {text}{f', and {len(more)} more' if more else ''}"
        return ErrorReport(
            type=type(shown).__name__,
            message=message,
            source_line=source_line_in_dump(f"{stack}\n")
            or _innermost(first.__traceback__)
            or _innermost(error.__traceback__),
            traceback="".join(traceback.format_exception(type(error), error, _from_the_learners(error.__traceback__))),
            unfinished=Unfinished.of(shown.__cause__ if shown.__suppress_context__ else shown.__context__),
        )

    def __str__(self) -> str:
        lines = [line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}…" for line in self.message.splitlines()]
        first, *rest = lines or [""]
        text = f"{self.type}: {first}" if first else self.type
        if len(rest) > 6:  # a traceback as text ends with its cause
            rest = [*rest[:2], "…", *rest[-3:]]
        return "\n".join([text, *(f"    {line}" for line in rest)])


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """An exception that a thread is still handling, in an `except`, a `finally` or the exit of a `with`."""

    type: str  # name of the exception's class
    text: str  # the first line of its text
    source_line: SourceLine  # the learner's innermost line

    @staticmethod
    def of(error: BaseException | None) -> Unfinished | None:
        """Return `error`, if it passed through the learner's code."""
        if not isinstance(error, Exception | SystemExit):  # such as GeneratorExit, which ends a generator
            return None
        source_line = _innermost(error.__traceback__)
        if source_line is None:
            return None
        text = _text(error).partition("\n")[0][:LINE_LIMIT]
        return Unfinished(type=type(error).__name__, text=text, source_line=source_line)

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause's cause and so on, each once: `raise error from error` is legal."""
    seen: list[BaseException] = []
    while error is not None and all(error is not one for one in seen):
        yield error
        seen.append(error)
        error = error.__cause__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group and its groups, or `error` itself."""
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _leaves(one)
    if not isinstance(error, BaseExceptionGroup):
        yield error


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "0" if error.code is None else repr(error.code)
    try:
        return str(error).strip()
    except Exception as broken:  # raised by a __str__ of the learner's
        return f"<no text: its __str__ raised {type(broken).__name__}>"


def _from_the_learners(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of `trace` that begins with the learner's code, or with the code that ranks run instead."""
    parts = list(_parts(trace))
    learners = (part for part in parts if is_learners(part.tb_frame.f_code))
    others = (part for part in parts if not part.tb_frame.f_code.co_filename.startswith(_INTERNAL))
    return next(chain(learners, others), trace)


def _parts(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _innermost(trace: TracebackType | None) -> SourceLine | None:
    """Return the innermost line of the learner's code in `trace`, with its caller."""
    lines = [
        SourceLine(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(trace)
        if is_learners(frame.f_code)
    ]
    if not lines:
        return None
    *_, caller = takewhile(lambda one: one.filename == lines[0].filename, lines)
    return lines[-1] if lines[-1].filename == caller.filename else lines[-1]._replace(caller=caller)
