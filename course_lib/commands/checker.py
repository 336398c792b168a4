"""Functions handed in: `capture` packs them in the notebook's kernel, and a process of its own checks them.

The process is `python -m course_lib.commands.checker`. Its standard input is a connection. It receives JSON: a token,
and a name and a file for each function. It sends the token with an empty answer once it is ready, then the token with
the fields of a `Grade` for each function. What a checked function writes there lacks the token.

It is not in `grading`, which loads Jupyter's client: that takes longer than most checks.
"""

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from .. import exercises
from ..world import pack_call, unpack_call


def capture(name: str, file: str) -> None:
    """Pack the latest solution of an exercise, with everything it uses. Runs in the notebook's kernel.

    Raises:
        CourseError: there is no such exercise, nothing was handed in, or the function cannot be packed.
    """
    from ..widgets import exercise  # the process that checks does without widgets

    Path(file).write_bytes(pack_call(exercise(name).attempt.solution, (), {}))


def main() -> None:
    """Check the functions that standard input names."""
    sys.path.append(os.getcwd())  # for modules that the notebook wrote; last, so that they replace no others
    connection = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    token, *jobs = json.loads(connection.recv_bytes())
    connection.send_bytes(json.dumps([token, {}]).encode())
    for name, file in jobs:
        connection.send_bytes(json.dumps([token, check(name, Path(file))]).encode())


def check(name: str, file: Path) -> dict[str, str]:
    """Return the verdict on the function in `file`, as the fields of a `Grade`."""
    exercise = exercises.get(name)
    try:
        solution, *_ = unpack_call(file.read_bytes())
    except Exception as error:  # the packed objects may raise anything
        observed = f"the function cannot be taken to another process ({type(error).__name__}: {error})"
        return {"exercise": name, "status": "error", "observed": observed}
    module = getattr(solution, "__module__", None) or ""  # None for a function that `exec` made
    if str(module).partition(".")[0] == __package__.partition(".")[0]:
        observed = "this is a function of the course itself, handed in as it is"
        return {"exercise": name, "status": "failed", "observed": observed}
    verdict = exercise.check(solution)
    observed = "".join(f"{finding.observed} {finding.likely}".strip() for finding in verdict.findings[:1])
    return {"exercise": name, "status": verdict.status, "observed": observed, "mistake": verdict.mistake or ""}


if __name__ == "__main__":
    main()
