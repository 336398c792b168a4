"""What CONTRIBUTING.md says is so: its example of an exercise works, and the files and names that it mentions exist."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from course_lib.exercises import Exercise

ROOT = Path(__file__).parents[1]
FOLDERS = ("course_lib", "tests", "docs", "notebooks", "benchmarks", ".devcontainer", ".github")
PAGES = ("CONTRIBUTING.md", "README.md", "AGENTS.md")
FILE = re.compile(r"(?<![\w./:-])[\w./-]*\w\.(?:py|md|toml|txt|cff|ipynb|yml)\b|(?<=`)[\w./-]+/(?=`)")
NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`\n]*\))?`")
EXAMPLE = "course_lib/lessons/ranks/mean.py"
PLACEHOLDERS = {EXAMPLE, "notebooks/NN-topic.ipynb", "plot_name", "guess_subject.reveal"}


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Exercise]:
    """The exercise of CONTRIBUTING.md, as if its file were in the folder that the page names."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n([^\n]*\n\nimport random\n.*?)```", page, re.DOTALL)
    file = tmp_path / "mean.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location(EXAMPLE.removesuffix(".py").replace("/", "."), file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.exercise
    del sys.modules[spec.name]


def test_the_example_of_an_exercise_works(example: Exercise) -> None:
    assert f"course_lib/lessons/{example.name.replace('.', '/')}.py" == EXAMPLE
    assert example.check(example.reference).status == "passed"
    assert example.check(example.stub).status == "unattempted"
    for mistake in example.mistakes:
        assert example.check(mistake.solution).mistake == mistake.id
    assert [example.check(make()).status for make in example.variants.values()] == ["passed"]
    assert len(example.mistakes) == 2 and len(example.hints) == 4


@pytest.fixture(scope="module")
def paths() -> list[str]:
    inside = [path for folder in FOLDERS for path in [ROOT / folder, *(ROOT / folder).rglob("*")]]
    listed = [f"/{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in [*ROOT.iterdir(), *inside]]
    return listed + [f"/{line.strip('/')}/" for line in (ROOT / ".gitignore").read_text().splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_files_that_exist(page: str, paths: list[str]) -> None:
    named = set(FILE.findall((ROOT / page).read_text())) - PLACEHOLDERS
    assert named
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in paths)} == set()


@pytest.fixture(scope="module")
def words() -> set[str]:
    """The words of the code, and the names of torch.distributed."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + [ROOT / "Makefile"]
    return {word for path in sources for word in re.findall(r"\w+", path.read_text())} | set(dir(dist))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_the_code_names(page: str, words: set[str]) -> None:
    text = (ROOT / page).read_text()
    named = {name for name in NAME.findall(text) if re.search(r"[A-Z._]", name)}
    named -= {*FILE.findall(text), *PLACEHOLDERS}
    assert named
    assert {name for name in named if not words.issuperset(name.split("."))} == set()
