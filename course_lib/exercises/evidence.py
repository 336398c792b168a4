"""Incidents: a failing program as production shows it, and the course's diagnosis only when it is asked for.

case = incident("incidents.out_of_memory")   # runs the program that this exercise starts from
case                                        # each rank's log, its last calls, and the program
case.answer("where")                        # the answer to the lesson's prediction of this name
case.diagnosis()                            # the course's message
case.replay()                               # the run as a film
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from ..errors import CourseError
from ..planner import aligned
from ..world import Call, RankError, RankReport, Run, World
from .checking.cases import Runs, draw
from .checking.check import Exercise
from .checking.compare import findings
from .checking.diagnose import diagnose
from .checking.observe import returned, value_on_rank
from .form.declaration import Solution
from .registry import get
from .shown import Diagnosis, calls, logs, program

TITLES = ("Logs", "Flight recorder: each rank's last calls", "Program")
LAST_CALLS = 4
"""The number of calls of each rank that the flight recorder's table shows."""

NCCL_TIMEOUT = 600_000
"""NCCL's default time limit, in milliseconds: the watchdog's lines are written as if it had passed."""

_NCCL_NAMES = {
    "all_gather_single": "_ALLGATHER_BASE",
    "all_gather_single_coalesced": "COALESCED",
    "all_to_all_single": "ALLTOALL_BASE",
    "barrier": "ALLREDUCE",  # of one number, see ProcessGroupNCCL::barrier
    "reduce_scatter_single": "_REDUCE_SCATTER_BASE",
}


class Incident:
    """A run of an exercise's start program on its first case, seen from outside.

    Attributes:
        program: the source, numbered like the exercise's cell.
        run: the `Run`; None if a rank failed.
        error: the `RankError` if one did: it contains the diagnosis.
    """

    def __init__(self, exercise: Exercise, limit: float = 60.0, ranks: int | None = None) -> None:
        """Run the program. A run that takes longer than `limit` seconds is stopped, as by a watchdog."""
        self._exercise, self._case = exercise, draw(exercise, 0)[0]
        self._program, self.program = _program(exercise)
        self.run: Run | None = None
        self.error: RankError | None = None
        self._world = World(ranks or self._case.world_size, backend="simulated", timeout=limit, replay=True)
        try:
            self.run = self._run(self._program)
        except RankError as error:
            self.error = error

    def _run(self, program: Solution) -> Run:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._world.run(value_on_rank, self._exercise.trial or returned, program, self._case.args)

    @cached_property
    def healthy(self) -> Run:
        """The run of a program without the fault, on the same data: a team has the curve of such a run."""
        return self._run(self._exercise.reference)

    def __repr__(self) -> str:
        parts = dict(zip(TITLES, (self.logs, self.last_calls, self.program), strict=True))
        return "\n\n".join(f"{title}\n{textwrap.indent(text, '  ')}" for title, text in parts.items() if text)

    def _repr_html_(self) -> str:
        head, *rows = self._call_rows
        shown = (logs(self.logs), calls(head, rows) if rows else "", program(self.program))
        parts = zip(TITLES, (self.logs, rows, self.program), shown, strict=True)
        return "".join(f'<h3 style="font-size: 1em">{title}</h3>{html}' for title, content, html in parts if content)

    @property
    def logs(self) -> str:
        """The lines that the ranks printed and, for a rank that failed or waits, the line with which its log ends."""
        ended = self.error or self.run
        assert ended is not None
        reports = self.error.ranks if self.error else ()
        lasts = [_last_line(report, ended.calls[report.rank]) for report in reports] or [""] * len(ended.output)
        logs = [[*text.splitlines(), *filter(None, [last])] for text, last in zip(ended.output, lasts, strict=True)]
        return "\n".join(f"[rank{rank}] {line}" for rank, lines in enumerate(logs) for line in lines)

    @property
    def last_calls(self) -> str:
        """The last calls of each rank as a table; empty if no rank failed."""
        return aligned(self._call_rows) if self.error else ""

    @property
    def _call_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("rank", "seq", "call", "tensors", "state", "line")]
        for rank, theirs in enumerate(self.error.calls if self.error else ()):
            for number, call in [*_numbered(theirs)][-LAST_CALLS:]:
                state = "completed" if call.done < float("inf") else "started"
                what = ("all_reduce_barrier", "float32 [1]") if call.op == "barrier" else (call.variant, call.tensors)
                rows.append((str(rank), str(number), *what, state, str(call.line.line)))
        return rows

    def answer(self, question: str) -> str | float:
        """Return the answer to a prediction of the lesson. Raises CourseError if there is no such prediction."""
        answers = self._exercise.answers
        if question not in answers:
            raise CourseError(f"answer({question!r}): no such prediction. Give one of {', '.join(map(repr, answers))}.")
        return answers[question]

    def diagnosis(self) -> Diagnosis:
        """Return what the course reports: why the run failed, or how its results differ from the right ones."""
        if self.error is not None:
            return Diagnosis(str(self.error))
        runs = Runs(self._exercise, self._program)
        found = [*findings(runs.trial(self._case)), *(self.run.warnings if self.run else ())]
        report = "\n".join(map(str, found))
        # Each kind of CPU adds in a different order: only the first digits are the same everywhere.
        report = re.sub(r"\d+\.\d{4,}", lambda number: f"{float(number[0]):.3f}", report)
        mistake = diagnose(runs, [self._case])
        known = f"\nKnown: {mistake.message}" if mistake is not None and mistake in self._exercise.mistakes else ""
        return Diagnosis(report + known)

    def replay(self) -> Any:
        """Return the run as a film: what every rank called, and where it stood."""
        return (self.error or self.run).replay()  # type: ignore[union-attr]


def incident(name: str, *, limit: float = 60.0, ranks: int | None = None) -> Incident:
    """Run the program of the exercise `name`, for at most `limit` seconds, and return what production shows of it.

    The number of ranks is that of the exercise's first case, or `ranks`.

    Raises:
        CourseError: it is not an incident.
    """
    if not str(name).startswith("incidents."):
        raise CourseError(f'{name!r} is not an incident. Their names begin so: incident("incidents.out_of_memory").')
    return Incident(get(name), limit, ranks)


def _program(exercise: Exercise) -> tuple[Solution, str]:
    """Return the start program as a learner's file, and its numbered source. Its lines are those of the cell."""
    file = f"{exercise.name.partition('.')[2]}.py"
    linecache.cache[file] = (len(exercise.cell), None, exercise.cell.splitlines(keepends=True), file)
    scope = {**exercise.reference.__globals__, "exercise": lambda name: lambda solution: solution}
    exec(compile(exercise.cell, file, "exec"), scope)
    numbered = [f"{number:3}  {line}".rstrip() for number, line in enumerate(exercise.cell.splitlines(), 1)]
    return scope[exercise.reference.__name__], "\n".join(numbered)


def _last_line(report: RankReport, calls: Sequence[Call]) -> str:
    """Return the line of NCCL's watchdog, shortened, for a rank that waits, and the exception of a rank that raised."""
    if report.raised is not None:
        return f"{report.raised.source_line}: {str(report.raised).splitlines()[0]}"
    call = report.call
    if call is None:
        return ""
    numel = 1 if call.op == "barrier" else sum(call.numels)
    number = next(number for number, other in _numbered(calls) if other.issued == call.issued)
    kind = _NCCL_NAMES.get(call.variant, call.variant.upper().replace("_", ""))
    return (
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, Numel={numel}, "
        f"Timeout(ms)={NCCL_TIMEOUT})"
    )


def _numbered(calls: Sequence[Call]) -> Iterator[tuple[int, Call]]:
    """Yield the calls with their sequence numbers, from 1 in each group."""
    numbers: dict[str, int] = {}
    for call in calls:
        numbers[call.group_name] = numbers.get(call.group_name, 0) + 1
        yield numbers[call.group_name], call
