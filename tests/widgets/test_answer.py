"""`exercise(name).answer(globals())`: what the learner wrote in an earlier lesson, in a later one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course_lib import exercise
from course_lib.exercises import get
from course_lib.progress import Progress
from course_lib.widgets import cells

EXERCISE = get("capstone.smallest_world")
YOURS = """
@exercise("capstone.smallest_world")
def smallest_world(psi, stage, memory_bytes):
    whole, shared = (16 - SHARED[stage]) * psi, SHARED[stage] * psi
    if whole >= memory_bytes and (shared or whole > memory_bytes):
        return 0
    return -(-shared // (memory_bytes - whole)) if shared else 1
"""
NAMESPACE: dict[str, Any] = {"SHARED": (0, 12, 14, 16)}
Store = Callable[[str, str], None]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Stores an attempt, and how it ended."""
    progress = Progress(tmp_path / "progress.sqlite3")
    monkeypatch.setattr(cells, "own_progress", lambda: progress)
    return lambda source, status: progress.finish_attempt(progress.begin_attempt(EXERCISE.name, source), status, [])


def test_what_passed_is_used_with_the_names_that_are_there(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store(YOURS, "passed")
    function = exercise(EXERCISE.name).answer(NAMESPACE)
    assert function.__code__.co_filename == "your smallest_world" and function(7, 3, 56) == 2
    assert capsys.readouterr().out == "smallest_world: yours\n"
    assert "smallest_world" not in NAMESPACE


@pytest.mark.parametrize(
    ("source", "status", "namespace", "reason"),
    [
        (None, None, {}, "none of yours has passed"),
        (YOURS, "failed", NAMESPACE, "none of yours has passed"),
        (f"missing\n{YOURS}", "passed", NAMESPACE, "yours does not run here: NameError: name 'missing' is not defined"),
        (YOURS, "passed", {}, "yours does not pass here"),
    ],
)
def test_otherwise_it_is_the_reference_and_says_why(
    store: Store, capsys: pytest.CaptureFixture[str], source: str, status: str, namespace: dict[str, Any], reason: str
) -> None:
    if source is not None:
        store(source, status)
    assert exercise(EXERCISE.name).answer(namespace) is EXERCISE.reference
    assert capsys.readouterr().out == f"smallest_world: the course's own; {reason}\n"


def test_what_passed_under_another_name_is_used(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store(YOURS.replace("def smallest_world", "def mine"), "passed")
    assert exercise(EXERCISE.name).answer(NAMESPACE).__name__ == "mine"
    assert capsys.readouterr().out == "smallest_world: yours\n"
