"""What lessons, captions and pages must not say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *sorted((ROOT / "course_lib").rglob("*.py")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
]
OVERLAP_IS_FREE = re.compile(
    r"costs? no time|time costs nothing|bytes cost nothing|overlap\w* (is|are|costs?) (free|nothing)|"
    r"computing, at no cost|separate hardware for|network works by itself|the network moves them",
    re.IGNORECASE,
)
"""Moving bytes slows down the computing that hides them, on a GPU too: NCCL's kernels take processors and bandwidth."""


def in_one_line(text: str) -> str:
    """Join lines, also those of a string in several parts."""
    return re.sub(r"(\\n|[\s\"])+", " ", text)


@pytest.mark.parametrize("words", ['and so cost no "\n    "time.', "computing, at no\ncost", "bytes cost nothing"])
def test_the_search_finds_a_sentence_in_several_lines(words: str) -> None:
    assert OVERLAP_IS_FREE.search(in_one_line(words))


def test_nothing_says_that_overlap_is_free() -> None:
    found = {
        str(file.relative_to(ROOT)): match[0]
        for file in FILES
        for match in OVERLAP_IS_FREE.finditer(in_one_line(file.read_text(encoding="utf-8")))
    }
    assert found == {}
