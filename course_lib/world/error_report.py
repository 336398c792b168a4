"""Exceptions of the learner's code, as text."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from types import TracebackType

from ..errors import CourseError
from ..meter import SourceLine, is_learners
from .learner_code import in_program, is_internal, source_line_in_dump

LINE_LIMIT = 500  # the most characters shown of each line of an exception's text

# Characters that move a terminal's cursor, change its colours, end a line or reverse the rest of it, and those that
# UTF-8 does not have.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_COLOURS = re.compile(r"\x1b\[[\d;]*m")

_ADDRESS = re.compile(r"(?<=ProcessGroup object) at 0x\w+")  # it differs between ranks, and says nothing

# A frame of the course's that only passes the learner's call on, to an operator of torch or to Python's own module.
_PASSED_ON = re.compile(r"""  File ".*course_lib.(meter.watching|world.rank_threads.rank_state)\b.*\n(    .*\n)*""")


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
        """Return the report of `error`; if its class prevents that, the report of what the class raised."""
        try:
            return ErrorReport._of(error)
        except BaseException as broken:  # else the rank would end without a report, and its peers wait for it
            return ErrorReport._of(broken)

    @staticmethod
    def _of(error: BaseException) -> ErrorReport:
        leaf, *others = _leaves(error)
        # torch wraps errors: pipeline() a refusal, and assert_close() in a dry run the lack of numbers.
        shown = next((one for one in chain(_causes(error), _causes(leaf)) if isinstance(one, CourseError)), leaf)
        message, _, stack = _text(shown).partition("\n\nAt:\n")  # pybind11 appends the stack of a callback
        notes = _notes(shown)
        if leaf is not error:
            more = f", and {len(others)} more exception{'s' * (len(others) > 1)}" if others else ""
            notes += [f"in {type(error).__name__}: {_text(error)}{more}", *_notes(error)]
        return ErrorReport(
            type=_on_a_line(type(shown).__name__),
            message=_printable("\n".join([message, *notes])),
            source_line=source_line_in_dump(f"{stack}\n")
            or _innermost(shown.__traceback__)
            or _innermost(error.__traceback__),
            traceback=_printable(_PASSED_ON.sub("", _traceback(error))),
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
        if not isinstance(error, Exception | SystemExit):  # such as GeneratorExit, which ends a generator
            return None
        source_line = _innermost(error.__traceback__)
        if source_line is None:
            return None
        text = _printable(_text(error)).partition("\n")[0][:LINE_LIMIT]
        return Unfinished(type=_on_a_line(type(error).__name__), text=text, source_line=source_line)

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


def _printable(text: str) -> str:
    """Return `text` without colours, and with its control characters as escapes, except for tabs and line ends."""
    return "\n".join(map(_on_a_line, re.split("\r?\n", _COLOURS.sub("", text))))


def _on_a_line(text: str) -> str:
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions of an exception group and of the groups in it, each once; of others, the exception."""
    found, unread = dict[int, BaseException](), [error]
    while unread:
        one = unread.pop()
        if isinstance(one, BaseExceptionGroup) and id(one) not in found:
            unread += reversed(one.exceptions)
        found[id(one)] = one
    return [one for one in found.values() if not isinstance(one, BaseExceptionGroup)]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause's cause and so on, each once: `raise error from error` is legal."""
    seen: list[BaseException] = []
    while error is not None and all(error is not one for one in seen):
        yield error
        seen.append(error)
        error = error.__cause__


def _text(error: BaseException) -> str:
    try:
        if isinstance(error, SystemExit):
            return "0" if error.code is None else repr(error.code)
        return _ADDRESS.sub("", str(error)).strip()
    except BaseException as broken:  # raised by a __str__ of the learner's, or a __repr__; sys.exit, too
        return f"<no text: its __str__ raised {type(broken).__name__}>"


def _notes(error: BaseException) -> list[str]:
    """Return the lines that `add_note` has added."""
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list) or isinstance(error, SystemExit):  # whose text is its code
        return []
    return [note for note in notes if isinstance(note, str)]


def _traceback(error: BaseException) -> str:
    trace = _from_the_learners(error.__traceback__)
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # such as for a SyntaxError whose `text` is a list: Python itself cannot show that
        frames = "".join(traceback.format_tb(trace))
        last = f"{type(error).__name__}: {_text(error)}".removesuffix(": ")
        return f"Traceback (most recent call last):\n{frames}{last}\n"


def _from_the_learners(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of `trace` that begins with the learner's code, or with the code that ranks run instead."""
    parts = list(_parts(trace))
    learners = (part for part in parts if is_learners(part.tb_frame.f_code))
    others = (part for part in parts if not is_internal(part.tb_frame.f_code))
    return next(chain(learners, others), trace)


def _parts(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _innermost(trace: TracebackType | None) -> SourceLine | None:
    """Return the innermost line of the learner's code in `trace`, with its caller."""
    return in_program(
        SourceLine(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(trace)
        if is_learners(frame.f_code)
    )
