"""The SQLite file of the learner's record. Kernels share it, a kill cannot damage it, and lessons run without it.

[Note: rows are only ever added]
No row is changed or deleted, except by a migration that renames an exercise. Each row has its own key: a random id, or
what it is about. So a killed writer leaves a whole row or none, kernels that write at once cannot overwrite each other,
and merging two files means adding the rows that are missing.

[Note: one call, one transaction]
Each call opens the file, runs one transaction and closes it. No connection is shared between threads, survives a fork,
or keeps a file open that another kernel has put aside. The journal is SQLite's default, the rollback journal: a
write-ahead log needs shared memory, which a home folder on a network does not have.

[Note: when the file cannot be used]
A damaged file, one that lacks a table, or one from a newer version, is renamed, and a new one is begun. When nothing
can be stored (a full disk, a read-only folder, a lock that is never released), the rows stay in memory, together with
the rows that could still be read, and each later call first tries to move them into the file. `Store.notice` is the
message for the learner.
"""

import itertools
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

BUSY_SECONDS = 10.0  # the wait for other kernels' transactions, which take milliseconds

# Entry n converts a file from format n to n + 1 (SQLite's user_version). Entries are added and never edited.
MIGRATIONS = (
    (
        """CREATE TABLE attempts (
            id TEXT NOT NULL PRIMARY KEY, exercise TEXT NOT NULL, source TEXT NOT NULL,
            started_ns INTEGER NOT NULL CHECK (typeof(started_ns) = 'integer'))""",
        "CREATE INDEX attempts_of_exercise ON attempts (exercise, started_ns)",
        """CREATE TABLE verdicts (
            attempt TEXT NOT NULL PRIMARY KEY, status TEXT NOT NULL, findings TEXT NOT NULL)""",
        """CREATE TABLE hints (
            exercise TEXT NOT NULL, level INTEGER NOT NULL CHECK (typeof(level) = 'integer'),
            PRIMARY KEY (exercise, level))""",
        """CREATE TABLE answers (
            id TEXT NOT NULL PRIMARY KEY, quiz TEXT NOT NULL, question TEXT NOT NULL,
            attempt INTEGER NOT NULL CHECK (typeof(attempt) = 'integer'),
            value TEXT NOT NULL, correct INTEGER NOT NULL CHECK (correct IN (0, 1)),
            answered_ns INTEGER NOT NULL CHECK (typeof(answered_ns) = 'integer'))""",
        """CREATE TABLE predictions (
            id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL,
            committed_ns INTEGER NOT NULL CHECK (typeof(committed_ns) = 'integer'))""",
        """CREATE TABLE measurements (
            id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL,
            value TEXT NOT NULL, correct INTEGER NOT NULL CHECK (correct IN (0, 1)),
            measured_ns INTEGER NOT NULL CHECK (typeof(measured_ns) = 'integer'))""",
    ),
    ("CREATE TABLE imported (attempt TEXT NOT NULL PRIMARY KEY)",),
    (
        """CREATE TABLE scores (
            id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL,
            scored_ns INTEGER NOT NULL CHECK (typeof(scored_ns) = 'integer'))""",
    ),
    tuple(  # two exercises got new names
        f"UPDATE OR IGNORE {table} SET exercise = 'activations.{name}' WHERE exercise = 'precision.{name}'"
        for table in ("attempts", "hints")
        for name in ("activation_bytes", "recompute")
    ),
    tuple(  # two more
        f"UPDATE OR IGNORE {table} SET exercise = 'cluster.{name}' WHERE exercise = 'zero3.{name}'"
        for table in ("attempts", "hints")
        for name in ("meta_device", "optional_module")
    ),
)
TABLES = ("attempts", "verdicts", "hints", "answers", "predictions", "measurements", "imported", "scores")

DAMAGE = re.compile("already exists|no such table|no such column|^Could not decode to UTF-8")
"""Words of messages about tables that do not fit the file's format, and about text that is not UTF-8. These messages
share one class and one error code with all mistakes in SQL."""

ADVICE = {
    "damaged": "If you have a copy of it, put that in its place.",
    "newer": "Update the course, then rename the file back.",
}

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Tables = dict[str, list[dict[str, Any]]]


class _Unusable(Exception):
    """The file cannot be used by this version of the course. `suffix` is for the renamed file, a key of `ADVICE`."""

    def __init__(self, suffix: str, reason: str) -> None:
        super().__init__(reason)
        self.suffix = suffix


class Store:
    """Transactions on the file at `path`. The first one creates it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._checked = False
        self._memory: sqlite3.Connection | None = None
        self._notices: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def notice(self) -> str:
        """A message for the learner about the file; empty while all is well."""
        return "\n".join(self._notices.values())

    def use(self, work: Work[T]) -> T:
        """Return `work(connection)`, run as one transaction.

        When this returns, the result is on disk, or in memory with `notice` set. An exception of `work` itself undoes
        the transaction and is raised.
        """
        with self._lock:
            if self._memory is not None:
                self._leave_memory(self._memory)
            if self._memory is None:
                try:
                    return self._use_file(work, BUSY_SECONDS)
                except (OSError, sqlite3.OperationalError, _Unusable) as error:
                    self._memory = self._enter_memory(error)
            return _transact(self._memory, work)

    def _use_file(self, work: Work[T], busy_seconds: float) -> T:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._transact_file(work, busy_seconds)
        except _Unusable as error:
            self._put_aside(error)
        return self._transact_file(work, busy_seconds)

    def _transact_file(self, work: Work[T], busy_seconds: float) -> T:
        with suppress(FileExistsError):  # SQLite would use the umask's mode; journals get the file's mode
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, mode=0o600))
        with closing(_connect(self.path, busy_seconds)) as db:
            if not self._checked:
                _transact(db, _check)
                self._checked = True
            return _transact(db, work)

    def _put_aside(self, error: _Unusable) -> None:
        self._checked = False
        names = (f"{self.path}.{error.suffix}-{n}" for n in itertools.count(1))
        aside = next(name for name in names if not Path(name).exists())
        for part in ("-journal", ""):  # the journal first: it must never meet the new file
            with suppress(FileNotFoundError):
                Path(f"{self.path}{part}").rename(f"{aside}{part}")
        self._notices["aside"] = (
            f"The progress file {self.path} {error}. It is kept, unchanged, as {aside}, and a new one was begun, so "
            f"earlier work shows as not started. {ADVICE[error.suffix]}"
        )

    def _enter_memory(self, error: Exception) -> sqlite3.Connection:
        """Return a connection in memory that holds what can still be read from the file."""
        memory = _connect(":memory:", busy_seconds=0)
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(_connect(self.path, busy_seconds=0)) as db:
            db.text_factory = lambda text: text.decode("utf-8", "replace")
            rows = dump(db)
            _transact(memory, lambda memory: merge(memory, rows))
        self._notices["memory"] = (
            f"Progress cannot be stored in {self.path} ({error}). It is kept in memory until the file can be "
            "written, and lost if this kernel stops before. Free some space, make the folder writable, or "
            "start JupyterLab with COURSE_HOME set to a folder that is."
        )
        return memory

    def _leave_memory(self, memory: sqlite3.Connection) -> None:
        """Move the rows into the file, if it is writable by now."""
        rows = _transact(memory, dump)
        with suppress(OSError, sqlite3.OperationalError, _Unusable):
            self._use_file(lambda db: merge(db, rows), busy_seconds=0)
            memory.close()
            self._memory = None
            del self._notices["memory"]


def dump(db: sqlite3.Connection) -> Tables:
    """Return every row of every table, oldest first."""
    return {name: [dict(row) for row in db.execute(f"SELECT * FROM {name} ORDER BY rowid")] for name in TABLES}


def merge(db: sqlite3.Connection, tables: Tables) -> int:
    """Add the rows whose key is not there yet, and return how many were added.

    Raises KeyError when a row lacks a column, sqlite3.Error when a value breaks a rule of its table.
    """
    before = db.total_changes
    for name, rows in tables.items():
        columns = [column["name"] for column in db.execute(f"PRAGMA table_info({name})")]
        places = ", ".join("?" * len(columns))
        # Not INSERT OR IGNORE, which would also drop a row that breaks a rule, silently.
        insert = f"INSERT INTO {name} VALUES ({places}) ON CONFLICT DO NOTHING"
        db.executemany(insert, [[row[column] for column in columns] for row in rows])
    return db.total_changes - before


def _connect(path: str | Path, busy_seconds: float) -> sqlite3.Connection:
    # The store's lock, not sqlite3's check, prevents threads from using one connection at once.
    db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db


def _transact(db: sqlite3.Connection, work: Work[T]) -> T:
    try:
        # EXTRA is FULL, and it also syncs the removal of the journal, which is what commits.
        db.execute("PRAGMA synchronous = EXTRA")
        # IMMEDIATE takes the write lock first. Two kernels that both read and then both want to write would deadlock,
        # and SQLite would refuse one of them without waiting.
        db.execute("BEGIN IMMEDIATE")
        with db:
            _prepare(db)
            return work(db)
    except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
        # Exactly these classes mean damage. A full disk, a lock or a broken rule raise subclasses of the first. SQLite
        # may quote damaged text in its message, which Python then cannot decode.
        damaged = type(error) in (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError)
        if damaged or DAMAGE.search(str(error)):
            raise _Unusable("damaged", f"is damaged ({error})") from error
        raise


def _prepare(db: sqlite3.Connection) -> None:
    """Refuse a newer file. Convert an older one, or an empty one, to today's format."""
    newest = len(MIGRATIONS)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > newest:
        formats = f"format {version}, this one reads up to {newest}"
        raise _Unusable("newer", f"was written by a newer version of the course ({formats})")
    if version < 0:
        raise _Unusable("damaged", f"is damaged (format {version})")
    for statement in itertools.chain.from_iterable(MIGRATIONS[version:]):
        db.execute(statement)
    if version < newest:
        db.execute(f"PRAGMA user_version = {newest}")


def _check(db: sqlite3.Connection) -> None:
    """Read every page, and look for every table.

    This takes a millisecond or two per megabyte, so it runs once in a kernel, not in each call.
    """
    report = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if report != "ok":
        raise _Unusable("damaged", f"is damaged ({report})")
    for name in TABLES:
        db.execute(f"SELECT 1 FROM {name} LIMIT 0")
