"""A stage is read in one sitting, and what it adds to the stage before fits on a screen."""

from difflib import ndiff
from pathlib import Path

import pytest

from course_lib import zero

FOLDER = Path(zero.__file__).parent


def lines(name):
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "most"), [("data_parallel", 130), ("stage1", 130), ("stage2", 130), ("stage3", 130), ("buckets", 200)]
)
def test_a_file_has_at_most_so_many_lines(name, most) -> None:
    assert len(lines(name)) <= most


@pytest.mark.parametrize(("before", "after"), [("stage1", "stage2"), ("stage2", "stage3")])
def test_a_stage_changes_at_most_sixty_lines_of_the_one_before(before, after) -> None:
    changed = [line for line in ndiff(lines(before), lines(after)) if line[0] in "+-"]
    assert 0 < len(changed) <= 60
