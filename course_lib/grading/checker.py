"""The process that checks what a notebook handed in: `python -m course_lib.grading.checker`.

It reads a line of JSON: a token, and a name and a file for each function. It answers each with a line: the token, and
the fields of a `Grade`. The first line of output is empty, and signals that the process is ready. What the functions
print is discarded, and what they write between the answers lacks the token.
"""

import json
import os
import pickle
import sys
from pathlib import Path

from .. import exercises


def main() -> None:
    """Check the functions that standard input names."""
    sys.path.append(os.getcwd())  # for modules that the notebook wrote; last, so that they replace no others
    token, *jobs = json.loads(sys.stdin.readline())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the token could be read again from it
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        answers.write("\n")
        answers.flush()
        for name, file in jobs:
            answers.write(json.dumps([token, check(name, Path(file))]) + "\n")
            answers.flush()


def check(name: str, file: Path) -> dict[str, str]:
    """Return the verdict on the function in `file`, as the fields of a `Grade`."""
    exercise = exercises.get(name)
    try:
        solution = pickle.loads(file.read_bytes())
    except Exception as error:  # the packed objects may raise anything
        observed = f"the function cannot be taken to another process ({type(error).__name__}: {error})"
        return {"exercise": name, "status": "error", "observed": observed}
    if getattr(solution, "__module__", "").partition(".")[0] == __package__.partition(".")[0]:
        observed = "this is a function of the course itself, handed in as it is"
        return {"exercise": name, "status": "failed", "observed": observed}
    verdict = exercise.check(solution)
    observed = "".join(f"{finding.observed} {finding.likely}".strip() for finding in verdict.findings[:1])
    return {"exercise": name, "status": verdict.status, "observed": observed, "mistake": verdict.mistake or ""}


if __name__ == "__main__":
    main()
