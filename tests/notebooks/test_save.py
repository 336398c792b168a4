"""What the tool that saves the lessons folds: the answers to predictions, and scaffolding."""

from copy import deepcopy

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebooks.save import fold, is_scaffolding


def text(source: str = "Now.") -> NotebookNode:
    return new_markdown_cell(source)


def question() -> NotebookNode:
    return text("Now.\n\n**Predict:** which?")


def code(source: str) -> NotebookNode:
    return new_code_cell(source, outputs=[new_output("stream", name="stdout", text="42\n")])


def folded(*cells: NotebookNode) -> list[str]:
    """The sources of the cells that are saved folded."""
    notebook = new_notebook(cells=list(cells))
    fold(notebook)
    nbformat.validate(notebook)
    return [cell.source for cell in notebook.cells if cell.metadata.get("jupyter", {}).get("outputs_hidden")]


def test_outputs_from_a_prediction_to_the_next_text_are_folded() -> None:
    assert folded(code("a"), question(), code("b"), code("c"), text(), code("d")) == ["b", "c"]


def test_a_text_before_the_first_output_does_not_end_a_prediction() -> None:
    assert folded(question(), new_code_cell("x = 1"), text(), code("a"), text(), code("b")) == ["a"]


def test_a_field_is_open_until_its_reveal() -> None:
    field, reveal = code('guess = predict("a.b", "Which?")'), code("guess.reveal(42)")

    assert folded(field, code("a"), text(), reveal, code("b"), text(), code("c")) == ["a", reveal.source, "b"]


def test_an_exercise_is_not_folded() -> None:
    assert folded(question(), code('@exercise("a.b")\ndef f(): ...'), code("a")) == ["a"]


def test_a_cell_that_no_longer_answers_is_unfolded() -> None:
    cell = code("a")
    cell.metadata["jupyter"] = {"outputs_hidden": True}

    assert folded(cell) == []


def test_folding_again_changes_nothing() -> None:
    once = new_notebook(cells=[question(), code("a")])
    fold(once)
    twice = deepcopy(once)
    fold(twice)

    assert twice == once


@pytest.mark.parametrize(
    "source",
    [
        'guess = predict("a.b", """\nHow many?\n""", unit="MB")',
        'quiz("memory")',
        'ways = ("It grows", "It stays")\nguess = predict("a.b", "Which?", choices=ways)',
        "choose_world()",
        "guess.reveal(run.memory[0].peak_bytes)",
        "plots.plot_schedule([gpipe(rank, 4, 6) for rank in range(4)])",
        'when.reveal("late")\nwhy.reveal("slow")\ndiagnosis("incidents.slow")',
    ],
)
def test_a_cell_that_only_asks_scores_or_draws_has_its_source_folded(source: str) -> None:
    notebook = new_notebook(cells=[code(source)])
    fold(notebook)

    assert notebook.cells[0].metadata == {"jupyter": {"source_hidden": True}}
    nbformat.validate(notebook)


@pytest.mark.parametrize(
    "source",
    [
        "run = World(2).run(train)\nguess.reveal(run[0])",
        "guess.reveal(World(2).run(train)[0])",
        "run.plot_memory()",
        "largest = max(sizes)\nguess.reveal(largest)",
        "sizes = (1, 2)",
        "%%ranks 2\nquiz(1)",
        "# nothing yet",
        "from course_lib import quiz",
    ],
)
def test_a_cell_that_a_learner_reads_or_changes_is_shown(source: str) -> None:
    assert not is_scaffolding(code(source))
