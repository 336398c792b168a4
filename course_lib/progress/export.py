"""Export and import of the learner's record as text, to move it to another machine.

[Note: what an import may add]
An export may come from anybody. An import only adds rows, and adds none if one of them is invalid. Imported attempts
are marked as imported, in a table that is not exported. A later lesson runs what the learner wrote in an earlier one,
and reading a file must not lead to running code that somebody else wrote.
"""

import itertools
import json
import re
import reprlib
import sqlite3
import time

from ..errors import CourseError, json_trouble
from .store import TABLES, Store, Tables, dump, merge

FORMAT = 1
EXPORTED = tuple(name for name in TABLES if name != "imported")
MEASURES = {"held_bytes", "peak_bytes", "sent_bytes", "seconds"}
STATUSES = ("passed", "failed", "error", "unattempted")
MOST_ATTEMPTS = 1000
CLOCK_SKEW_NS = 24 * 3600 * 10**9  # how far the clock of another machine may be ahead


def write(store: Store) -> str:
    """Return everything that is stored, for `read` here or on another machine."""
    rows = store.use(dump)
    return json.dumps({"format": FORMAT, "tables": {name: rows[name] for name in EXPORTED}}, indent=1)


def read(store: Store, text: str) -> int:
    """Add rows that are not there yet, change none, and return how many were new.

    Raises:
        CourseError: this version cannot read the text; nothing is added then.
    """
    try:
        export = json.loads(text)
        if export["format"] == FORMAT:
            found = {"scores": [], **export["tables"]}  # version 1.0 had no scores
            tables = {name: found[name] for name in EXPORTED}
            return store.use(lambda db: _add(db, tables))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError, sqlite3.Error) as error:
        raise CourseError(
            f"Nothing was imported: this is not a whole export of the course's progress ({json_trouble(error)}). "
            "Export it again, with `course progress --export FILE`."
        ) from error
    raise CourseError(
        f"Nothing was imported: the export has format {reprlib.repr(export['format'])}, and this version of the course "
        f"reads format {FORMAT}. Export and import with the same version of the course."
    )


def _check(tables: Tables) -> None:
    """Refuse values that the tables accept and their readers cannot use."""
    for row in itertools.chain.from_iterable(tables.values()):
        for column in row.keys() & {"value", "findings"}:
            json.loads(row[column])
    for attempt in tables["attempts"]:
        if attempt["started_ns"] > time.time_ns() + CLOCK_SKEW_NS:  # it would be the last attempt forever
            raise ValueError("an attempt began in the future")
    for answer in tables["answers"]:  # each earlier attempt draws the question again
        value = json.loads(answer["value"])
        if not 0 <= answer["attempt"] <= MOST_ATTEMPTS or {type(value["given"]), type(value["reading"])} != {str}:
            raise ValueError(f"an answer is {answer['value']}, on attempt {answer['attempt']}")
    for row in [*tables["predictions"], *tables["measurements"]]:
        if not isinstance(json.loads(row["value"]), str):
            raise ValueError(f"a prediction or measurement is {row['value']}")
    for row in tables["measurements"]:
        # Python refuses numbers with thousands of digits; the longest that a float needs has 324.
        if not re.fullmatch(r"-?\d{1,400}(/(?=0*[1-9])\d{1,400})?", json.loads(row["value"])):
            raise ValueError(f"a measurement is {reprlib.repr(row['value'])}, and no fraction")
    for row in tables["scores"]:
        value = json.loads(row["value"])
        if value.keys() != MEASURES or not all(type(number) in (int, float) for number in value.values()):
            raise ValueError(f"a score is {reprlib.repr(row['value'])}")
    for verdict in tables["verdicts"]:
        if verdict["status"] not in STATUSES:
            raise ValueError(f"a verdict is {verdict['status']!r}, and not one of {', '.join(STATUSES)}")


def _add(db: sqlite3.Connection, tables: Tables) -> int:
    mine = {row["id"] for row in db.execute("SELECT id FROM attempts")}
    added = merge(db, tables)
    _check(tables)  # an exception undoes everything
    merge(db, {"imported": [{"attempt": row["id"]} for row in tables["attempts"] if row["id"] not in mine]})
    return added
