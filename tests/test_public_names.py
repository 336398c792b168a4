"""What `from course_lib import ...` gives, and that it is not paid for before it is asked for."""

import subprocess
import sys

import pytest

import course_lib


@pytest.mark.parametrize("name", course_lib.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(course_lib, name) is not None


def test_completion_offers_the_public_names_alone() -> None:
    assert dir(course_lib) == sorted(course_lib.__all__)


def test_another_name_is_told_as_python_tells_it() -> None:
    with pytest.raises(AttributeError, match="module 'course_lib' has no attribute 'Wrold'"):
        course_lib.Wrold(4)


def test_the_import_of_what_was_removed_does_not_fail_but_its_call() -> None:
    from course_lib import compare

    with pytest.raises(course_lib.CourseError, match="was removed"):
        compare("run", "other", titles=("run", "other"))


@pytest.mark.slow
def test_a_lesson_imports_only_what_it_uses() -> None:
    program = (
        "import sys; from course_lib import World, exercise, exercises, predict, quiz, quizzes, table; "
        "exercises.get('ranks.hello'), quizzes.get('ranks'); sys.exit('torch.distributed.tensor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
