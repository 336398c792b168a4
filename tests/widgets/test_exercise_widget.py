"""The widget below an exercise's cell, and the calls behind its buttons."""

import json
import re
import threading
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from nbclient.exceptions import DeadKernelError

from course_lib import CourseError, exercise
from course_lib.exercises import Finding, Row, get
from course_lib.progress import Progress, own_progress
from course_lib.widgets.attempt import Attempt
from course_lib.widgets.exercise_widget import ExerciseWidget, finding_html, printed_html
from course_lib.widgets.style import markup
from tests.exercises.sample import MEAN, mean, odd, sum_for_mean
from tests.widgets.test_card import click, text


@pytest.fixture
def tried(progress: Progress, capsys: pytest.CaptureFixture[str]) -> Callable[[Any], ExerciseWidget]:
    """The widget after the check of a solution."""

    def try_it(solution: Any) -> ExerciseWidget:
        widget = ExerciseWidget(Attempt(MEAN, solution, progress))
        widget.check()
        capsys.readouterr()  # display() prints outside a notebook
        return widget

    return try_it


Tried = Callable[[Any], ExerciseWidget]


def right(x: torch.Tensor) -> torch.Tensor:
    return mean(x)


# What is shown


def test_a_right_solution_is_told_in_word_and_shape_and_explained(tried: Tried) -> None:
    widget = tried(right)

    assert "✓ Passed. All 6 cases agree" in text(widget.status)
    assert "A sum over <code>world_size</code> ranks" in widget.findings.value
    assert widget.attempt.returned is right
    assert "button" not in widget.hints.value
    assert markup(MEAN.task) in widget.hints.value


def test_a_pass_shows_the_hints_and_a_different_way_and_counts_no_hint(
    progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = get("ranks.hello")
    widget = ExerciseWidget(Attempt(exercise, exercise.reference, progress))
    widget.check()
    html = unescape(widget.findings.value)

    assert "<summary>The hints</summary>" in html
    assert all(hint.split()[-1] in html for hint in exercise.hints[:2])
    assert "<summary>A different way</summary>" in html
    assert 'return "rank {} of {} says hello".format(' in text(widget.findings)
    assert progress.hints("ranks.hello") == []


def test_a_pass_counts_after_a_wrong_try(tried: Tried) -> None:
    tried(right)

    assert "You passed before, and that counts." in tried(sum_for_mean).attempt.consequence


def test_a_right_solution_under_another_name_is_told_what_later_cells_call(tried: Tried) -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        return right(x)

    assert tried(mean).attempt.consequence == "Later cells use your `mean`."
    assert tried(right).attempt.consequence == (
        "Yours is called `right`. Later cells use `mean`: call it that, and run the cell again."
    )


def test_more_hints_may_be_stored_than_there_are(progress: Progress) -> None:
    for level in range(20):
        progress.hint_taken(MEAN.name, level)
    attempt = Attempt(MEAN, right, progress)
    assert attempt.hints == attempt.ladder
    assert attempt.hint() == attempt.ladder[-1]


def test_a_wrong_solution_is_told_with_its_table_and_what_to_do(tried: Tried) -> None:
    widget = tried(sum_for_mean)

    assert "✗ Not right yet. Failing case: 2 ranks" in text(widget.status)
    assert "later cells use the course's own mean." in text(widget.status)
    assert "<strong>Likely:</strong> That is the sum." in widget.findings.value
    assert "Divide." not in widget.findings.value + repr(widget.attempt)
    assert widget.findings.value.count('<tr class="course-differs">') == 2
    assert widget.attempt.returned is MEAN.reference
    assert "Why this is right" not in widget.findings.value


def test_the_next_step_is_shown_to_those_who_ask_and_counts_as_one_hint(tried: Tried) -> None:
    widget = tried(sum_for_mean)
    assert '<button type="button" data-action="step">Show the next step</button>' in widget.findings.value
    assert 'For the next step: exercise("sample.mean").next_step()' in repr(widget.attempt)

    widget.take_step()
    widget.take_step()

    assert "<strong>Next:</strong> Divide." in widget.findings.value and '"step"' not in widget.findings.value
    assert "Next: Divide." in repr(widget.attempt) and widget.attempt.next_step() == "Divide."
    assert widget.attempt.progress.summary().exercises["sample.mean"].hints == 1
    assert widget.attempt.hints == ()


def test_a_step_that_only_makes_it_run_is_there_at_once(tried: Tried) -> None:
    def started(x: torch.Tensor) -> torch.Tensor:
        x.clone()
        raise NotImplementedError

    widget = tried(started)
    assert "<strong>Next:</strong> Delete that line." in widget.findings.value
    assert "Show the next step" not in widget.findings.value


def test_a_failed_check_is_replayed_next_to_the_reference_on_a_click(tried: Tried) -> None:
    widget = tried(sum_for_mean)
    assert 'data-action="replay"' in widget.findings.value and widget.films.value == ""

    widget.show_replays()

    assert re.findall("<h4>(.*?)</h4><style>", widget.films.value) == ["Yours", "The reference's"]
    assert widget.films.value.count("srcdoc=") == 2
    yours, reference = unescape(widget.films.value).split("<h4>The reference's</h4>")
    assert "step 2: Both ranks: returned\n    rank 0: tensor(" in reference
    assert '"blocks":[{"label"' in yours and '"blocks":[]' in reference and "both ranks at" not in reference


def test_a_run_that_fails_is_replayed_up_to_there(tried: Tried) -> None:
    widget = tried(odd)
    widget.show_replays()

    assert widget.films.value.count("srcdoc=") == 2


def test_a_pass_says_how_far_the_lesson_is_and_remembers_the_best(progress: Progress) -> None:
    exercise = get("ranks.broadcast")

    def passed(solution: Callable[..., Any]) -> Attempt:
        attempt = Attempt(exercise, solution, progress)
        attempt.check(lambda done, to_do: None)
        return attempt

    assert re.search(r"\n1 of \d+ exercises · next: Say hello by rank", repr(passed(exercise.reference)))
    assert "Your best so far" not in passed(exercise.reference).standing
    assert re.search(r"\nYour best so far: \d+ calls, [\d,]+ bytes sent", passed(twice).standing)


def twice(tensor: torch.Tensor, src: int) -> None:
    for _ in range(2):
        get("ranks.broadcast").reference(tensor, src)


def test_after_a_pass_there_is_no_next_step(tried: Tried) -> None:
    assert "found nothing wrong" in tried(MEAN.reference).attempt.next_step()


def test_lines_of_code_in_an_observation_are_code(tried: Tried) -> None:
    widget = tried(lambda x: x[7])

    assert re.search(r"margin-left: 2ch.><code>.*x\[7\]", widget.findings.value)


def test_the_cell_as_it_came_is_not_called_wrong(tried: Tried) -> None:
    widget = tried(MEAN.stub)

    assert "○ Not attempted yet. Write your solution in the cell above, and run it." in text(widget.status)
    assert widget.findings.value == ""
    assert widget.attempt.returned is MEAN.reference


def test_an_error_is_told_and_its_traceback_folded(tried: Tried) -> None:
    def divides(x: torch.Tensor) -> torch.Tensor:
        print("before <b>")
        return x / (1 // 0)

    widget = tried(divides)

    assert "! Error." in text(widget.status)
    assert "<details><summary>Traceback</summary>" in widget.findings.value
    assert "<summary>What your function printed</summary>" in widget.findings.value
    assert "[rank 0] before &lt;b&gt;" in widget.findings.value


def test_a_finding_cannot_become_html() -> None:
    hostile = "<script>alert(1)</script>"
    row = Row(rank=0, expected=hostile, yours="")
    finding = Finding(observed=hostile, likely=hostile, action=hostile, table=(row,), traceback=hostile)

    assert "<script" not in finding_html(finding) + printed_html((hostile,))


def test_every_row_says_in_words_whether_it_differs() -> None:
    rows = [Row(rank=0, expected="1", yours="1"), Row(rank=1, expected="2", yours="3")]
    rows += [Row(rank=2, expected="at most 4", yours="3", within=True)]
    html = finding_html(Finding(observed="", action="", table=tuple(rows)))

    assert '<th scope="row">0</th><td>1</td><td>1</td><td>✓ same</td>' in html
    assert '<th scope="row">1</th><td>2</td><td>3</td><td>✗ differs</td>' in html
    assert '<th scope="row">2</th><td>at most 4</td><td>3</td><td>✓ within</td>' in html


def test_news_are_read_out(tried: Tried) -> None:
    widget = tried(sum_for_mean)
    click(widget.card, "hint")

    assert 'role="alert"' in widget.status.value
    assert 'role="alert"' in widget.hints.value


# Hints


def test_hints_are_taken_one_by_one_up_to_the_solution(tried: Tried, progress: Progress) -> None:
    widget = tried(sum_for_mean)
    secrets = [*MEAN.hints, "dist.all_reduce(total)", "A sum over"]
    seen = [[secret for secret in secrets if secret in text(widget.hints)]]
    labels = []
    while label := re.search(r'data-action="hint">([^<]+)<', widget.hints.value):
        labels.append(label[1])
        click(widget.card, "hint")

    assert seen == [[]]
    assert labels == [f"Show hint {number} of 4" for number in (1, 2, 3, 4)] + ["Show the solution"]
    assert "<h4>The solution</h4>" in widget.hints.value
    assert "def mean(x: torch.Tensor)" in text(widget.hints)
    assert "Earlier hints (4)" in widget.hints.value
    assert progress.hints("sample.mean") == [1, 2, 3, 4, 5]
    assert widget.attempt.hint() == widget.attempt.ladder[-1]


def test_before_a_try_there_is_one_hint(tried: Tried) -> None:
    widget = tried(MEAN.stub)
    click(widget.card, "hint")
    click(widget.card, "hint")

    assert "What is a mean?" in widget.hints.value
    assert "The next hint opens when you have tried something" in widget.hints.value
    assert "A sum, divided." not in widget.hints.value


def test_hints_that_were_taken_stay_taken(tried: Tried) -> None:
    first = tried(sum_for_mean)
    click(first.card, "hint")
    click(first.card, "hint")
    again = tried(lambda x: x + 1)

    assert again.attempt.hints == tuple(MEAN.hints[:2])
    assert "Show hint 3 of 4" in again.hints.value


def test_after_a_pass_each_hint_stands_on_the_card_once(tried: Tried) -> None:
    first = tried(sum_for_mean)
    for _ in range(4):
        click(first.card, "hint")
    passed = tried(right)

    assert [text(part).count(MEAN.hints[0]) for part in (passed.findings, passed.hints)] == [1, 0]
    assert "The task in full" in passed.hints.value and "Hint" not in passed.hints.value


# The check while it runs


def test_progress_is_shown_and_goes_away(progress: Progress) -> None:
    shown: list[str] = []
    widget = ExerciseWidget(Attempt(MEAN, right, progress))
    widget.progress.observe(lambda change: change["new"] and shown.append(change["new"]), "value")
    widget.check()

    assert 'Checked 0 of 6 cases <progress max="6" value="0">' in shown[0]
    assert 'Checked 6 of 6 cases <progress max="6" value="6">' in shown[-1]
    assert widget.progress.value == ""


def test_stop_ends_the_check(progress: Progress) -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(5)
        return mean(x)

    widget = ExerciseWidget(Attempt(MEAN, slow, progress))
    timer = threading.Timer(0.4, click, [widget.card, "stop"])
    timer.start()
    widget.check()
    timer.join()

    assert "0 of 6 cases were tried." in widget.status.value
    assert "the check was stopped after 0 of 6 cases" in widget.findings.value
    assert progress.last_attempt("sample.mean").status == "error"  # type: ignore[union-attr]


def test_stop_does_nothing_when_nothing_runs(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    widget, interrupts = tried(right), []
    monkeypatch.setattr("_thread.interrupt_main", lambda: interrupts.append("sent"))
    widget.stop()
    assert interrupts == []


# What was done before


def test_the_cell_as_it_came_tells_of_the_last_attempt(tried: Tried, progress: Progress) -> None:
    tried(sum_for_mean)
    widget = tried(MEAN.stub)

    assert text(widget.status).startswith("○ Unchanged. Write your solution in the cell above, and run it.")
    assert "Welcome back. Your last attempt, of 20" in text(widget.status)
    assert ', was not right yet. exercise("sample.mean").insert()' in text(widget.status)
    assert "Your last attempt, of 20" in repr(widget.attempt)
    arguments = re.search(r'-args="([^"]+)">Insert my last attempt below</button>', widget.status.value)
    stored = progress.last_attempt("sample.mean")
    assert arguments is not None and stored is not None
    assert json.loads(unescape(arguments[1]))["args"]["text"] == stored.source
    assert widget.attempt.hints_open == len(widget.attempt.ladder)


def test_an_attempt_that_took_the_kernel_with_it_is_told(tried: Tried, progress: Progress) -> None:
    progress.begin_attempt("sample.mean", "def mean(x): os.abort()")
    assert "did not end" in tried(MEAN.stub).status.value


def test_an_attempt_speaks_for_itself_alone(tried: Tried) -> None:
    tried(sum_for_mean)
    again = tried(right)

    assert "last attempt" not in again.status.value + repr(again.attempt)


# The record


def test_the_source_is_stored_before_the_check(progress: Progress) -> None:
    at_the_start: list[Any] = []

    def on_case(done: int, to_do: int) -> None:
        at_the_start.append(progress.last_attempt("sample.mean"))

    Attempt(MEAN, right, progress).check(on_case)
    stored = progress.last_attempt("sample.mean")

    assert at_the_start[0].source == "def right(x: torch.Tensor) -> torch.Tensor:\n    return mean(x)\n"
    assert at_the_start[0].status is None
    assert stored is not None
    assert stored.status == "passed" and stored.findings.keys() == {"calls", "sent_bytes", "seconds"}


def test_findings_are_stored(tried: Tried, progress: Progress) -> None:
    tried(sum_for_mean)
    stored = progress.last_attempt("sample.mean")

    assert stored is not None
    assert stored.status == "failed"
    assert stored.findings[0]["likely"] == "That is the sum."


def test_the_cell_as_it_came_is_not_stored(tried: Tried, progress: Progress) -> None:
    tried(MEAN.stub)

    assert progress.last_attempt("sample.mean") is None


def test_a_record_that_cannot_be_kept_is_told_and_the_check_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    widget = ExerciseWidget(Attempt(MEAN, right, Progress(tmp_path / "file" / "progress.sqlite3")))
    widget.check()

    assert "✓ Passed." in widget.status.value
    assert "Progress cannot be stored in" in widget.status.value
    assert "Progress cannot be stored in" in repr(widget.attempt)


# In a notebook


def test_calls_stand_behind_the_widget() -> None:
    cell = exercise("start.first")
    with pytest.raises(CourseError, match=r"start\.first has not been tried in this kernel"):
        cell.hint()
    assert repr(cell).startswith("Your first exercise\nReturn the square")

    @exercise("start.first")
    def first() -> int:
        return 7

    assert first is get("start.first").reference
    assert cell.verdict is not None
    assert cell.verdict.status == "failed"
    assert repr(cell) == repr(cell.attempt)
    assert cell.hint() == get("start.first").hints[0]


def test_the_last_attempt_is_printed_outside_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CourseError, match=r"ranks\.broadcast: no attempt is stored"):
        exercise("ranks.broadcast").insert()
    own_progress().begin_attempt("ranks.broadcast", "def broadcast(): ...")
    exercise("ranks.broadcast").insert()

    assert capsys.readouterr().out == "def broadcast(): ...\n"
    assert exercise("ranks.broadcast").stored.status is None


def test_a_cell_of_an_exercise_that_was_removed_runs_and_keeps_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    def fit() -> None: ...

    assert exercise("costs.fit")(fit) is fit
    assert "'costs.fit' was removed from the course" in capsys.readouterr().out


IMPORTS = "import torch.distributed as dist\nfrom course_lib import World, exercise"
STUB = get("ranks.hello").cell
WRONG = '@exercise("ranks.hello")\ndef hello():\n    return f"rank {dist.get_rank()} of 4 says hello"'
RIGHT = WRONG.replace("4", "{dist.get_world_size()}")


def texts(notebook: Any) -> list[list[str]]:
    """Return the texts of each cell's outputs, without the cell of the imports."""
    outputs = [cell.outputs for cell in notebook.cells[1:]]
    return [[output.data["text/plain"] for output in shown if "data" in output] for shown in outputs]


@pytest.mark.slow
def test_every_cell_runs_and_its_text_tells_what_the_widget_shows(executed: Callable[..., Any]) -> None:
    cells = IMPORTS, STUB, "World(2).run(hello)[1]", WRONG, 'exercise("ranks.hello").hint()', RIGHT
    stub, greeting, wrong, hint, right = texts(executed(*cells))

    assert stub[0] == wrong[0] == ""  # the widget itself: a page without widgets has no line above the card
    assert stub[1].startswith("○ ranks.hello: unattempted\n")
    assert stub[1].endswith("Until yours passes, later cells use the course's own `hello`.")
    assert greeting == ["'rank 1 of 2 says hello'"]
    assert "rank 0 returned 'rank 0 of 4 says hello', expected 'rank 0 of 2 says hello'." in wrong[1]
    assert hint == [get("ranks.hello").hints[0]]
    assert right[1].startswith("✓ ranks.hello: passed\nAll 6 cases agree with the reference.")


@pytest.mark.slow
def test_a_kernel_that_dies_in_a_check_loses_nothing(executed: Callable[..., Any], tmp_path: Path) -> None:
    cell = 'import os\n\ndef crash():\n    os.abort()\n\n@exercise("ranks.hello")\ndef hello():\n    crash()'
    with pytest.raises(DeadKernelError):
        executed(IMPORTS, cell)
    (home,) = tmp_path.iterdir()
    attempt = Progress(home / "progress.sqlite3").last_attempt("ranks.hello")

    assert attempt is not None
    assert (attempt.source, attempt.status) == (cell, None)  # the whole cell
