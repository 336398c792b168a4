"""The learner's record as text, to take it to another machine.

[Note: what an export may bring]
An export may come from anybody. It adds rows and changes none, and adds none if one of them is no good. The attempts
that it brings are marked as imported, in a table that stays here: a later lesson runs what the learner wrote in an
earlier one, and what somebody else wrote must not run because a file was read.
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
STATUSES = ("passed", "failed", "error", "unattempted")
MOST_ATTEMPTS = 1000
CLOCK_SKEW_NS = 24 * 3600 * 10**9  # how far the clock of another machine may be ahead


def write(store: Store) -> str:
    """All that is stored, for `read` here or on another machine."""
    rows = store.use(dump)
    return json.dumps({"format": FORMAT, "tables": {name: rows[name] for name in EXPORTED}}, indent=1)


def read(store: Store, text: str) -> int:
    """Add what is not there yet, change nothing that is, and return how many rows were new.

    Raises:
        CourseError: this version cannot read the text; nothing is added then.
    """
    try:
        export = json.loads(text)
        if export["format"] == FORMAT:
            tables = {name: export["tables"][name] for name in EXPORTED}
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
    """Refuse what the tables would take, and their readers would stumble over."""
    for row in itertools.chain.from_iterable(tables.values()):
        for column in row.keys() & {"value", "findings"}:
            json.loads(row[column])
    for attempt in tables["attempts"]:
        if attempt["started_ns"] > time.time_ns() + CLOCK_SKEW_NS:  # it would be the last attempt for ever
            raise ValueError("an attempt began in the future")
    for answer in tables["answers"]:  # a question is drawn anew for each attempt before this one
        value = json.loads(answer["value"])
        if not 0 <= answer["attempt"] <= MOST_ATTEMPTS or {type(value["given"]), type(value["reading"])} != {str}:
            raise ValueError(f"an answer is {answer['value']}, on attempt {answer['attempt']}")
    for row in [*tables["predictions"], *tables["measurements"]]:
        if not isinstance(json.loads(row["value"]), str):
            raise ValueError(f"a prediction or measurement is {row['value']}")
    for row in tables["measurements"]:
        # Python reads no number of thousands of digits; the longest that a float needs has 324.
        if not re.fullmatch(r"-?\d{1,400}(/(?=0*[1-9])\d{1,400})?", json.loads(row["value"])):
            raise ValueError(f"a measurement is {reprlib.repr(row['value'])}, and no fraction")
    for verdict in tables["verdicts"]:
        if verdict["status"] not in STATUSES:
            raise ValueError(f"a verdict is {verdict['status']!r}, and not one of {', '.join(STATUSES)}")


def _add(db: sqlite3.Connection, tables: Tables) -> int:
    mine = {row["id"] for row in db.execute("SELECT id FROM attempts")}
    added = merge(db, tables)
    _check(tables)  # a complaint undoes it all
    merge(db, {"imported": [{"attempt": row["id"]} for row in tables["attempts"] if row["id"] not in mine]})
    return added
