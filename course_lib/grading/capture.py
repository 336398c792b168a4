"""In the notebook's kernel: the function that was handed in for an exercise goes into a file, with all that it uses."""

from pathlib import Path

import cloudpickle

from ..widgets import exercise


def capture(name: str, file: str, *, earlier: bool) -> None:
    """Pack the latest solution of an exercise; but a stub as it came is none where there is an earlier one.

    Raises:
        CourseError: there is no such exercise, or nothing was handed in.
    """
    attempt = exercise(name).attempt
    if not (earlier and attempt.exercise.is_stub(attempt.solution)):
        Path(file).write_bytes(cloudpickle.dumps(attempt.solution))
