"""A notebook with a prediction, a quiz and an exercise, as it is saved: it shows what was asked, and no answer."""

import json
from collections.abc import Iterator

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.exercises import get
from course_lib.widgets.style import markup
from tests.quizzes.sample_quiz import QUIZ, secrets
from tests.widgets.conftest import ROOT
from tests.widgets.test_exercise_widget import STUB, WRONG

pytestmark = pytest.mark.slow

CELLS = (
    "import torch.distributed as dist\n"
    "from course_lib import exercise, predict\n"
    "from course_lib.progress import Progress\n"
    "from course_lib.widgets.quiz_widget import QuizWidget\n"
    "from tests.quizzes.sample_quiz import QUIZ",
    'guess = predict("test.run-all", "What is `6 * 7`?")',
    "print(6)\nguess.reveal(6 * 7)\n7",
    "QuizWidget(QUIZ, Progress())",
    STUB,
    WRONG,
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookNode]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_HOME", str(tmp_path_factory.mktemp("home")))
        cells = new_notebook(cells=list(map(new_code_cell, CELLS)))
        yield NotebookClient(cells, kernel_name="python3", timeout=60).execute(cwd=str(ROOT))


def test_it_runs_with_no_prediction_made(notebook: NotebookNode) -> None:
    (still, alive), (before, measured, after) = (cell.outputs for cell in notebook.cells[1:3])

    assert still.data["text/plain"] == "Predict: What is `6 * 7`?\nAnswer with a number; 10 % off is close enough."
    assert "run this cell to see yours" in still.data["text/html"]  # saved before the learner can answer
    assert alive.data["text/plain"] == "" and "application/vnd.jupyter.widget-view+json" in alive.data
    assert (before.text, measured.data["text/plain"], after.data["text/plain"]) == ("6\n", "Result: 42.", "7")


def test_it_shows_the_questions_of_a_quiz_and_no_answer(notebook: NotebookNode) -> None:
    still, alive = (output.data for output in notebook.cells[3].outputs)
    assert still["text/plain"] == repr(QUIZ)
    title, state = "<strong>Quiz: Ranks &amp; shards</strong>", '<span class="course-state">4 questions</span>'
    assert still["text/html"].startswith(f'<div class="course-saved"><p>{title} {state}</p><p>To go on, run')
    assert "application/vnd.jupyter.widget-view+json" in alive
    assert alive["text/plain"] == ""
    saved = nbformat.writes(notebook)
    assert "a) Its own tensor, as before" in saved
    assert [secret for secret in secrets() if json.dumps(secret)[1:-1] in saved] == []


def test_it_holds_no_hint_and_no_solution_of_an_exercise(notebook: NotebookNode) -> None:
    own = new_notebook(cells=notebook.cells[4:], metadata=notebook.metadata)  # the quiz has code, too
    saved, hello = nbformat.writes(own), get("ranks.hello")
    found = [*hello.hints, hello.explanation, hello.solution]
    forms = [form for secret in found for form in (secret, markup(secret).strip(), secret.splitlines()[-1].strip())]

    assert "says hello" in saved
    assert [form for form in forms if json.dumps(form)[1:-1] in saved] == []
