"""The learner's record: attempts with their source, verdicts, hints, answers to quizzes, predictions.

A verdict, a measurement or a second answer is a new row next to the row that it is about, because rows are only ever
added: see the notes in `store`, which keeps them safe. Their order is that in which they were added (`rowid`), because
a clock can be set back.
"""

import functools
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs

from ..quizzes import Answer
from .store import Store, merge

DECODED = dict.fromkeys(("findings", "value"), json.loads) | {"correct": bool}
"""How columns are read: some hold JSON, and SQLite has no truth values."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One check of one exercise. `status` and `findings` are None until it ends, if it ever does."""

    id: str
    exercise: str
    source: str
    started_ns: int
    status: str | None = None
    findings: Any = None


@dataclass(frozen=True, kw_only=True)
class ExerciseProgress:
    """Attempts so far, whether one of them passed, how the last one ended (None: it did not), hints taken."""

    attempts: int = 0
    passed: bool = False
    last_status: str | None = None
    hints: int = 0

    @property
    def state(self) -> str:
        """The state in words. An exercise that has passed once stays passed."""
        if self.passed:
            return "passed"
        return "not started" if self.attempts == 0 else self.last_status or "unfinished"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All exercises and quizzes that were begun, by name. A quiz has the ids of the questions that were right once."""

    exercises: Mapping[str, ExerciseProgress]
    quizzes: Mapping[str, frozenset[str]]


class Progress:
    """The learner's record, safe to use from several threads, notebooks and kernels at once.

    path: by default `progress.sqlite3` in $COURSE_HOME, or in the user's data folder without it. The first call creates
    the file. A file that cannot be used raises nothing: `notice` reports what happened to it.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._store = Store(Path(path or default_path()))

    @property
    def path(self) -> Path:
        """The file in which the record is kept, or would be if it were writable."""
        return self._store.path

    @property
    def notice(self) -> str:
        """A message for the learner about the file; empty while all is well. A call can change it."""
        return self._store.notice

    def begin_attempt(self, exercise: str, source: str) -> Attempt:
        """Store the learner's source. It is on disk when this returns: run it only then."""
        attempt = Attempt(id=uuid.uuid4().hex, exercise=exercise, source=source, started_ns=time.time_ns())
        self._add(attempts=vars(attempt))
        return attempt

    def finish_attempt(self, attempt: Attempt, status: str, findings: Any) -> None:
        """Store how the attempt ended; `findings` is anything that JSON can hold. An attempt's first verdict stays.

        The findings of a pass are what it takes, by name: `best` reads `sent_bytes` and `calls`.
        """
        verdict = {"attempt": attempt.id, "status": status, "findings": json.dumps(findings)}
        # Store the attempt again, in case the file was put aside since it began.
        self._add(attempts=vars(attempt), verdicts=verdict)

    def last_attempt(self, exercise: str | None = None) -> Attempt | None:
        """Return the latest attempt at an exercise, or at any, with how it ended; None before the first."""
        query = """SELECT id, exercise, source, started_ns, status, findings
            FROM attempts LEFT JOIN verdicts ON attempt = id
            WHERE exercise = coalesce(?, exercise) ORDER BY attempts.rowid DESC LIMIT 1"""
        rows = self._rows(query, exercise)
        return Attempt(**rows[0]) if rows else None

    def best(self, exercise: str) -> tuple[int, int] | None:
        """Return the bytes sent and the calls of the pass that sent least, then called least; None without one."""
        query = "SELECT findings FROM attempts JOIN verdicts ON attempt = id WHERE exercise = ? AND status = 'passed'"
        found = [row["findings"] for row in self._rows(query, exercise)]
        costs = (one for one in found if isinstance(one, dict) and {"sent_bytes", "calls"} <= one.keys())
        return min(((one["sent_bytes"], one["calls"]) for one in costs), default=None)

    def hint_taken(self, exercise: str, level: int) -> None:
        """Store that a hint was taken; the first has level 1."""
        self._add(hints={"exercise": exercise, "level": level})

    def step_taken(self, exercise: str) -> None:
        """Store that the next step of a verdict was taken: a hint with a level below 0."""
        lowest = self._rows("SELECT min(0, coalesce(min(level), 0)) AS level FROM hints WHERE exercise = ?", exercise)
        self.hint_taken(exercise, lowest[0]["level"] - 1)

    def hints(self, exercise: str) -> list[int]:
        """Return the levels of the hints taken, lowest first. The next steps of verdicts are not among them."""
        rows = self._rows("SELECT level FROM hints WHERE exercise = ? AND level >= 0 ORDER BY level", exercise)
        return [row["level"] for row in rows]

    def answer(self, answer: Answer) -> None:
        """Store one marked answer of a quiz."""
        row = vars(answer).copy()
        value = json.dumps({name: row.pop(name) for name in ("given", "reading")})
        self._add(answers={"id": uuid.uuid4().hex, **row, "value": value, "answered_ns": time.time_ns()})

    def answers(self, quiz: str) -> list[Answer]:
        """Return all answers, oldest first."""
        query = """SELECT quiz, question, attempt, value, correct
            FROM answers WHERE quiz = ? ORDER BY rowid"""
        return [Answer(**row.pop("value") | row) for row in self._rows(query, quiz)]

    def first_answers(self, quiz: str) -> dict[str, bool]:
        """Return whether the first answer to each question was right, in the order of the answers."""
        first: dict[str, bool] = {}
        for answer in self.answers(quiz):
            first.setdefault(answer.question, answer.correct)
        return first

    def predict(self, name: str, value: Any) -> Any:
        """Commit to a value that JSON can hold. The first value is locked: every later call returns it."""
        given = {"value": json.dumps(value), "committed_ns": time.time_ns()}
        row = {"id": uuid.uuid4().hex, "name": name, **given}

        def work(db: sqlite3.Connection) -> Any:
            locked = _prediction(db, name)
            if locked is None:
                merge(db, {"predictions": [row]})
            return value if locked is None else locked

        return self._store.use(work)

    def prediction(self, name: str) -> Any:
        """Return the locked value; None before `predict`."""
        return self._store.use(lambda db: _prediction(db, name))

    def add_score(self, name: str, measures: Mapping[str, float]) -> None:
        """Store a row of the scoreboard: held_bytes, peak_bytes, sent_bytes and seconds."""
        row = {"id": uuid.uuid4().hex, "name": name, "value": json.dumps(dict(measures)), "scored_ns": time.time_ns()}
        self._add(scores=row)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the latest measures of each name, in the order in which the names were first stored."""
        rows = self._rows("SELECT name, value FROM scores ORDER BY rowid")
        return {row["name"]: row["value"] for row in rows}

    def summary(self) -> Summary:
        """Return how far the learner is."""
        return self._store.use(_summary)

    def _add(self, **rows: Mapping[str, Any]) -> None:
        """Add one row to each table named."""
        self._store.use(lambda db: merge(db, {table: [dict(row)] for table, row in rows.items()}))

    def _rows(self, query: str, *name: str | None) -> list[dict[str, Any]]:
        return self._store.use(lambda db: [_read(row) for row in db.execute(query, name)])


@functools.cache
def own_progress() -> Progress:
    """Return the one record of this kernel. It is opened at the first call, because `COURSE_HOME` may be set late."""
    return Progress()


def default_path() -> Path:
    """Return the path in $COURSE_HOME, or in the user's data folder without it."""
    home = os.environ.get("COURSE_HOME") or platformdirs.user_data_dir("sharded", appauthor=False)
    return Path(home).expanduser() / "progress.sqlite3"


def _read(row: sqlite3.Row) -> dict[str, Any]:
    """Return a row, decoded: inside the transaction, which takes an error for damage of the file."""
    read = dict(row)
    return read | {name: DECODED[name](read[name]) for name in DECODED.keys() & read if read[name] is not None}


def _prediction(db: sqlite3.Connection, name: str) -> Any:
    """Return the value that was committed first."""
    query = "SELECT value FROM predictions WHERE name = ? ORDER BY rowid LIMIT 1"
    found = db.execute(query, (name,)).fetchone()
    return None if found is None else json.loads(found["value"])


def _summary(db: sqlite3.Connection) -> Summary:
    exercises: dict[str, ExerciseProgress] = {}
    query = """SELECT exercise, status FROM attempts LEFT JOIN verdicts ON attempt = id
        ORDER BY attempts.rowid"""
    for name, status in db.execute(query):
        done = exercises.get(name, ExerciseProgress())
        passed = done.passed or status == "passed"
        exercises[name] = replace(done, attempts=done.attempts + 1, passed=passed, last_status=status)
    for name, hints in db.execute("SELECT exercise, count(*) FROM hints GROUP BY exercise"):
        exercises[name] = replace(exercises.get(name, ExerciseProgress()), hints=hints)

    right: dict[str, frozenset[str]] = {}
    query = "SELECT quiz, question, max(correct) FROM answers GROUP BY quiz, question"
    for quiz, question, correct in db.execute(query):
        right[quiz] = right.get(quiz, frozenset()) | ({question} if correct else set())
    return Summary(exercises=exercises, quizzes=right)
