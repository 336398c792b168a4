"""`course explain` prints the latest attempt, with its task and what the check found."""

from dataclasses import asdict

import pytest

from course_lib import CourseError, exercises
from course_lib.commands.explain import explain
from course_lib.progress import Progress


@pytest.fixture
def progress(tmp_path):
    return Progress(tmp_path / "progress.sqlite3")


def attempted(progress, name, mistake) -> None:
    exercise = exercises.get(name)
    solutions = {one.id: one.solution for one in exercise.mistakes}
    verdict = exercise.check(solutions.get(mistake, exercise.reference))
    stored = progress.begin_attempt(name, f"def {name.partition('.')[2]}(): ...")
    progress.finish_attempt(stored, verdict.status, [asdict(finding) for finding in verdict.findings])


def test_a_wrong_attempt_is_printed_with_its_findings(progress) -> None:
    attempted(progress, "ranks.hello", "counts-from-one")
    text = explain(None, progress)
    assert text.startswith("# Say hello by rank (ranks.hello): not right yet\n\n## Task\n\nReturn")
    assert "```python\ndef hello(): ...\n```" in text
    assert "Your ranks count from 1." in text and "rank  expected" in text and "Next: " not in text


def test_the_last_exercise_unless_one_is_named(progress) -> None:
    attempted(progress, "ranks.hello", "counts-from-one")
    attempted(progress, "memory.optimizer", "")
    assert "(memory.optimizer): passed" in explain(None, progress)
    assert explain(None, progress).endswith("It found nothing wrong.")
    assert "(ranks.hello): not right yet" in explain("ranks.hello", progress)
    progress.begin_attempt("ranks.hello", "def hello(): ...")  # its kernel was restarted
    assert explain(None, progress).endswith("It did not end.")


def test_without_an_attempt_the_error_says_what_to_do(progress) -> None:
    with pytest.raises(CourseError, match=r"no attempt at ranks\.hello yet\. Run the cell"):
        explain("ranks.hello", progress)
    with pytest.raises(CourseError, match=r"ranks\.hello"):
        explain("ranks.helo", progress)
