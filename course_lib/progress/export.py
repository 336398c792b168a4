"""Export and import of the learner's record as text, to move it to another machine.

[Note: what an import may add]
An export may come from anybody. An import only adds rows, and adds none if the tables refuse one. Imported attempts are
marked as imported, in a table that is not exported. A later lesson runs what the learner wrote in an earlier one, and
reading a file must not lead to running code that somebody else wrote.
"""

import json
import sqlite3
from itertools import chain

from ..errors import CourseError, json_trouble
from .store import TABLES, Store, Tables, dump, merge, rename_exercises

FORMAT = 1
EXPORTED = tuple(name for name in TABLES if name != "imported")


def write(store: Store) -> str:
    """Return what `Progress.export_json` returns."""
    rows = store.use(dump)
    return json.dumps({"format": FORMAT, "tables": {name: rows[name] for name in EXPORTED}}, indent=1)


def read(store: Store, text: str) -> int:
    """Add rows, as `Progress.import_json` documents it."""
    try:
        export = json.loads(text)
        if export["format"] == FORMAT:
            found = {"scores": [], **export["tables"]}  # version 1.0 had no scores
            tables = {name: found[name] for name in EXPORTED}
            for row in chain.from_iterable(tables.values()):
                for column in {"findings", "value"} & row.keys():
                    json.loads(row[column])  # else the first read takes it for damage of the whole file
            return store.use(lambda db: _add(db, tables))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError, sqlite3.Error) as error:
        raise CourseError(
            f"Nothing was imported: this is not a whole export of the course's progress ({json_trouble(error)}). "
            "Export it again, with `course progress --export FILE`."
        ) from error
    raise CourseError(
        f"Nothing was imported: the export has format {export['format']!r}, and this version of the course "
        f"reads format {FORMAT}. Export and import with the same version of the course."
    )


def _add(db: sqlite3.Connection, tables: Tables) -> int:
    mine = {row["id"] for row in db.execute("SELECT id FROM attempts")}
    added = merge(db, tables)
    rename_exercises(db)
    merge(db, {"imported": [{"attempt": row["id"]} for row in tables["attempts"] if row["id"] not in mine]})
    return added
