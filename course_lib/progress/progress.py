"""What the learner has done: attempts with their source, verdicts, hints, answers to quizzes, predictions.

A verdict, a measurement or a second answer is a row of its own, beside the row that it is about, because rows
are only ever added: see the notes in `progress_store`, which keeps them safe.
"""

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

from . import export
from .store import Store, merge


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One check of one exercise. `status` and `findings` are None until it ends, if it ever does.

    imported: it came with an export, so somebody else may have written `source`.
    """

    id: str
    exercise: str
    source: str
    started_ns: int
    status: str | None = None
    findings: Any = None
    imported: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to one question; `attempt` is the number that the quiz gave this try."""

    quiz: str
    question: str
    attempt: int
    value: Any
    correct: bool


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the learner expected, and what the latest run measured (None, None before the first)."""

    name: str
    value: Any
    measured: Any = None
    correct: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ExerciseProgress:
    """Attempts so far, whether one of them passed, how the last one ended (None: it did not), hints taken."""

    attempts: int = 0
    passed: bool = False
    last_status: str | None = None
    hints: int = 0

    @property
    def state(self) -> str:
        """In words. What has passed once stays passed."""
        if self.passed:
            return "passed"
        return "not started" if self.attempts == 0 else self.last_status or "unfinished"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything that was begun, by name. Of a quiz: the ids of the questions that were right at least once."""

    exercises: Mapping[str, ExerciseProgress]
    quizzes: Mapping[str, frozenset[str]]


class Progress:
    """The learner's record, safe to use from several threads, notebooks and kernels at once.

    path: by default `progress.sqlite3` in $COURSE_HOME, or else in the user's data folder. The first call
    creates it. A file that cannot be used raises nothing: `notice` says what became of it.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._store = Store(Path(path or default_path()))

    @property
    def path(self) -> Path:
        """The file that it is kept in, or would be if that could be written."""
        return self._store.path

    @property
    def notice(self) -> str:
        """What the learner must be told about the file; empty while all is well. A call can change it."""
        return self._store.notice

    def kept_aside(self) -> list[Path]:
        """The files that were renamed because they could not be used. Nothing ever deletes them."""
        return self._store.kept_aside()

    def begin_attempt(self, exercise: str, source: str) -> Attempt:
        """Store the learner's source. It is on the disk when this returns: run it only then."""
        attempt = Attempt(id=uuid.uuid4().hex, exercise=exercise, source=source, started_ns=time.time_ns())
        self._add(attempts=vars(attempt))
        return attempt

    def finish_attempt(self, attempt: Attempt, status: str, findings: Any) -> None:
        """Store how it ended; `findings` is anything that JSON can hold. An attempt's first verdict stays."""
        verdict = {"attempt": attempt.id, "status": status, "findings": json.dumps(findings)}
        # The attempt once more, in case the file was put aside since it began.
        self._add(attempts=vars(attempt), verdicts=verdict)

    def last_attempt(self, exercise: str) -> Attempt | None:
        """The latest, with how it ended; None before the first."""
        query = """SELECT id, exercise, source, started_ns, status, findings, imported.attempt NOT NULL AS imported
            FROM attempts LEFT JOIN verdicts ON verdicts.attempt = id LEFT JOIN imported ON imported.attempt = id
            WHERE exercise = ? ORDER BY started_ns DESC, attempts.rowid DESC LIMIT 1"""
        rows = self._rows(query, exercise)
        if not rows:
            return None
        findings, imported = json.loads(rows[0]["findings"] or "null"), bool(rows[0]["imported"])
        return Attempt(**rows[0] | {"findings": findings, "imported": imported})

    def hint_taken(self, exercise: str, level: int) -> None:
        """Store that a hint was taken; the first is of level 1."""
        self._add(hints={"exercise": exercise, "level": level})

    def hints(self, exercise: str) -> list[int]:
        """The levels taken, lowest first."""
        rows = self._rows("SELECT level FROM hints WHERE exercise = ? ORDER BY level", exercise)
        return [row["level"] for row in rows]

    def answer(self, quiz: str, question: str, attempt: int, value: Any, correct: bool) -> None:
        """Store one answer. `attempt` numbers the tries; `value` is anything that JSON can hold."""
        about = {"quiz": quiz, "question": question, "attempt": attempt}
        given = {"value": json.dumps(value), "correct": correct, "answered_ns": time.time_ns()}
        self._add(answers={"id": uuid.uuid4().hex, **about, **given})

    def answers(self, quiz: str) -> list[Answer]:
        """All answers, oldest first."""
        query = """SELECT quiz, question, attempt, value, correct
            FROM answers WHERE quiz = ? ORDER BY answered_ns, rowid"""
        rows = self._rows(query, quiz)
        decoded = [{"value": json.loads(row["value"]), "correct": bool(row["correct"])} for row in rows]
        return [Answer(**row | values) for row, values in zip(rows, decoded, strict=True)]

    def first_answers(self, quiz: str) -> dict[str, bool]:
        """Whether the first answer to each question was right, in the order in which they were answered."""
        first: dict[str, bool] = {}
        for answer in self.answers(quiz):
            first.setdefault(answer.question, answer.correct)
        return first

    def predict(self, name: str, value: Any) -> Prediction:
        """Commit to a value that JSON can hold. The first is locked: it is what every later call returns."""
        given = {"value": json.dumps(value), "committed_ns": time.time_ns()}
        row = {"id": uuid.uuid4().hex, "name": name, **given}

        def work(db: sqlite3.Connection) -> Prediction:
            locked = _prediction(db, name)
            if locked is None:
                merge(db, {"predictions": [row]})
            return locked or Prediction(name=name, value=value)

        return self._store.use(work)

    def score(self, name: str, measured: Any, correct: bool) -> None:
        """Store what a run measured, and whether that makes the prediction right."""
        found = {"value": json.dumps(measured), "correct": correct, "measured_ns": time.time_ns()}
        self._add(measurements={"id": uuid.uuid4().hex, "name": name, **found})

    def prediction(self, name: str) -> Prediction | None:
        """The value that is locked, with the latest measurement; None before `predict`."""
        return self._store.use(lambda db: _prediction(db, name))

    def summary(self) -> Summary:
        """How far the learner is."""
        return self._store.use(_summary)

    def export_json(self) -> str:
        """All that is stored, for `import_json` here or on another machine."""
        return export.write(self._store)

    def import_json(self, text: str) -> int:
        """Add what is not here yet, change nothing that is, and return how many rows were new.

        Raises:
            CourseError: this version cannot read the text; nothing is added then.
        """
        return export.read(self._store, text)

    def _add(self, **rows: Mapping[str, Any]) -> None:
        """One row for each table named."""
        self._store.use(lambda db: merge(db, {table: [dict(row)] for table, row in rows.items()}))

    def _rows(self, query: str, name: str) -> list[dict[str, Any]]:
        return self._store.use(lambda db: [dict(row) for row in db.execute(query, (name,))])


def default_path() -> Path:
    """In $COURSE_HOME, or else in the user's data folder."""
    home = os.environ.get("COURSE_HOME") or platformdirs.user_data_dir("sharded", appauthor=False)
    return Path(home).expanduser() / "progress.sqlite3"


def _prediction(db: sqlite3.Connection, name: str) -> Prediction | None:
    """The one committed first, with the latest measurement."""
    query = """SELECT predictions.value AS value, measurements.value AS measured, correct
        FROM predictions LEFT JOIN measurements USING (name) WHERE name = ?
        ORDER BY committed_ns, predictions.rowid, measured_ns DESC, measurements.rowid DESC LIMIT 1"""
    row = db.execute(query, (name,)).fetchone()
    if row is None:
        return None
    prediction = Prediction(name=name, value=json.loads(row["value"]))
    if row["measured"] is None:
        return prediction
    return replace(prediction, measured=json.loads(row["measured"]), correct=bool(row["correct"]))


def _summary(db: sqlite3.Connection) -> Summary:
    exercises: dict[str, ExerciseProgress] = {}
    query = """SELECT exercise, status FROM attempts LEFT JOIN verdicts ON attempt = id
        ORDER BY started_ns, attempts.rowid"""
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
