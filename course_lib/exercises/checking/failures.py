"""Report a run that failed, or that its time limit stopped."""

from __future__ import annotations

from ...errors import CourseError
from ...world import RankError, quoted
from .findings import Finding
from .observe import Observation, Trial


def failure(trial: Trial, error: CourseError) -> Finding:
    """Return the finding of a trial whose solution ended with `error`."""
    return _stopped(trial.yours) if trial.yours.timed_out else _error(trial, error)


def _error(trial: Trial, error: CourseError) -> Finding:
    if not isinstance(error, RankError):
        return Finding(observed=str(error), action="Then run the cell again.", technical=True)
    observed, _, action = str(error).partition("\nNext: ")
    raised = error.ranks[error.rank].raised
    if raised is not None and not trial.case.world_size:
        observed = f"your function raised {raised}\n  {quoted(raised.source_line)}"
    if raised is not None and raised.type == "NotImplementedError":
        return Finding(
            observed=observed,
            likely="The cell came with the line `raise NotImplementedError`; it is still there, and ends the function.",
            action="Delete that line.",
            traceback=error.traceback,
            technical=True,
        )
    return Finding(observed=observed, action=action, traceback=error.traceback, technical=True)


def _stopped(yours: Observation) -> Finding:
    observed = str(yours.error).partition("\nNext: ")[0]
    if not yours.waited:
        action = "Look for a loop that never ends, or for far more work than the task needs."
        return Finding(observed=observed, action=action, technical=True)
    return Finding(
        observed=observed,
        likely=f"In that time, the kernel computed for {yours.cpu_share:.0%}. So the machine is busy with other "
        "work, or your code waits: `time.sleep`, a lock, a file.",
        action="Is the line above in a loop, and does the loop end? If your code ends and does not wait, run the cell "
        "again when the machine is less busy.",
        technical=True,
    )
