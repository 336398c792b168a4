"""The latest attempt at an exercise as plain text, for a person to read or to paste into a conversation."""

from ..errors import CourseError
from ..progress import Progress

OUTCOMES = {"passed": "passed", "failed": "not right yet", "error": "ended in an error", None: "did not end"}


def explain(exercise: str | None, progress: Progress) -> str:
    """Return the task, the learner's source and the check's findings of the latest attempt.

    The next steps are left out, except those that only make a solution run: they are hints.

    Args:
        exercise: its name; None for the exercise that was tried last.
        progress: the learner's record.

    Raises:
        CourseError: there is no such exercise, or no attempt at it.
    """
    from .. import exercises  # loads torch, which other commands do not need

    name = exercise and exercises.get(exercise).name
    attempt = progress.last_attempt(name)
    if attempt is None:
        raise CourseError(f"there is no attempt at {name or 'any exercise'} yet. Run the cell of an exercise first.")
    task = exercises.get(attempt.exercise)
    findings = [] if attempt.status == "passed" else attempt.findings or []
    found = [
        exercises.Finding(**one | {"table": tuple(exercises.Row(**row) for row in one["table"])}).text(hints=False)
        for one in findings
    ]
    return (
        f"# {task.title} ({task.name}): {OUTCOMES[attempt.status]}\n\n"
        f"## Task\n\n{task.task}\n\n"
        f"## Attempt\n\n```python\n{attempt.source}\n```\n\n"
        f"## Check\n\n"
        + ("\n\n".join(found) or ("It did not end." if attempt.status is None else "It found nothing wrong."))
    )
