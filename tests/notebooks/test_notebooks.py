"""Every lesson keeps to its form. nbval runs the lessons: see `solved.py`."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output

from course_lib import exercises
from tests.notebooks.save import answers, asks, is_scaffolding
from tests.notebooks.solved import EXERCISE, SolvedCell

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
lessons = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def exercise_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The cells of exercises, by the exercise's name."""
    found = ((EXERCISE.match(cell.source), cell) for cell in code_cells(notebook))
    return {match[1]: cell for match, cell in found if match}


def test_there_are_lessons() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS[:2]] == ["00", "01"]


@lessons
def test_as_shipped_every_exercise_is_unattempted(path: Path) -> None:
    for name, cell in exercise_cells(read(path)).items():  # nbval runs the cells, and finds the same again
        assert f"{name}: unattempted" in str(cell.outputs)


@lessons
def test_a_saved_lesson_holds_no_solution(path: Path) -> None:
    notebook = read(path)
    saved = "\n".join(texts(notebook))
    for name in exercise_cells(notebook):
        exercise = exercises.get(name)
        body = exercise.solution.rpartition('"""')[2].strip()  # what follows the docstring
        for secret in (body, *exercise.hints, exercise.explanation):
            assert secret not in saved


def texts(notebook: NotebookNode) -> Iterator[str]:
    """Whatever a reader of the saved notebook can see."""
    for cell in notebook.cells:
        yield cell.source
        for output in cell.get("outputs", []):
            yield output.get("text", "") + output.get("evalue", "")
            yield from map(str, output.get("data", {}).values())


@lessons
def test_what_is_tagged_to_fail_fails(path: Path) -> None:
    for cell in code_cells(read(path)):
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", [])), cell.source


@lessons
def test_the_answers_to_predictions_are_folded_and_nothing_else(path: Path) -> None:
    cells = read(path).cells
    folded = {cell.id: cell for cell in cells if cell.metadata.get("jupyter", {}).get("outputs_hidden")}

    assert list(folded) == [cell.id for cell in answers(cells)]
    for cell in folded.values():
        assert cell.outputs[0] == new_output("display_data"), "a fold shows the first line of the first output"
    for number, cell in enumerate(cells):
        if asks(cell):
            assert first_answer(cells[number + 1 :]).id in folded, cell.source


@lessons
def test_the_source_of_scaffolding_is_folded_and_nothing_else(path: Path) -> None:
    for cell in read(path).cells:
        assert cell.metadata.get("jupyter", {}).get("source_hidden", False) == is_scaffolding(cell), cell.source


@lessons
def test_no_answer_is_read_in_the_code_before_the_prediction(path: Path) -> None:
    typed = re.compile(r'^\S+\.reveal\(("[^"]*"|[\d./ ]+)\)$', re.M)
    for cell in code_cells(read(path)):
        if typed.search(cell.source):
            assert is_scaffolding(cell) and not typed.match(cell.source), "a fold shows the first line of the source"


def first_answer(cells: list[NotebookNode]) -> NotebookNode:
    """The first cell with an output, except for fields and exercises."""
    return next(cell for cell in cells if cell.get("outputs") and not (asks(cell) or EXERCISE.match(cell.source)))


@lessons
def test_a_cell_that_is_run_again_scores_its_own_prediction(path: Path) -> None:
    named = [name for cell in code_cells(read(path)) for name in re.findall(r"(\w+) = predict\(", cell.source)]
    assert len(named) == len(set(named))


@lessons
def test_one_cell_imports_and_no_cell_is_long(path: Path) -> None:
    sources = [cell.source for cell in code_cells(read(path))]

    assert [number for number, source in enumerate(sources) if re.search(r"^(import|from) ", source, re.M)] == [0]
    for source in sources:
        assert len(source.splitlines()) <= 20 or EXERCISE.match(source), source


@lessons
def test_prose_between_two_cells_is_short(path: Path) -> None:
    for cell in read(path).cells:
        assert cell.cell_type == "code" or words(cell.source) <= 120, cell.source


def words(markdown: str) -> int:
    """Words of prose: tables and pictures are not counted."""
    prose = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    return len([word for line in prose.splitlines() if not line.startswith(("|", "#")) for word in line.split()])


@lessons
def test_every_decorated_cell_is_an_exercise_that_is_solved(path: Path) -> None:
    decorated = [cell.source for cell in code_cells(read(path)) if re.search(r"^\s*@exercise\b", cell.source, re.M)]
    assert all(EXERCISE.match(source) for source in decorated)


@pytest.mark.parametrize(("printed", "accepted"), [("start.first: passed", True), ("start.first: failed", False)])
def test_a_solved_cell_accepts_only_a_pass(printed: str, accepted: bool) -> None:
    cell = object.__new__(SolvedCell)
    cell.exercise = "start.first"
    assert cell.compare_outputs([{"text/plain": printed}], []) is accepted


def test_words_are_counted() -> None:
    assert words("# Title\none two\n```\na picture\n```\n| a | table |\nthree") == 3
