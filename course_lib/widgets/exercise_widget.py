"""The widget below an exercise's cell: the progress of the check, its result, and the hints.

It shows an `Attempt`. The task is folded. Hints and the solution stay in Python until the learner asks for them.
"""

import _thread
import json
from html import escape

from ipywidgets import HTML, VBox

from ..exercises import Finding, Row, Verdict
from ..exercises.checking.findings import SHAPES
from .attempt import Attempt
from .card import Card
from .style import alert, button, details, display_raw, display_saved, inline, markup, note, pre, scrolled, sheet, title

WORDS = {
    "passed": "Passed.",
    "failed": "Not right yet.",
    "error": "Error.",
    "unattempted": "Not attempted yet.",
}
TONES = {"passed": "right", "failed": "wrong", "error": "wrong", "unattempted": "note"}
BEGIN = "Write your solution in the cell above, and run it."


class ExerciseWidget(VBox):
    """An attempt at an exercise. `check`, `stop` and `take_hint` do what the cell and the buttons do."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.checking = False
        self.progress, self.status, self.findings, self.films, self.hints = (HTML() for _ in range(5))
        # The button is never written again: a click on a button that changes under the pointer is lost.
        head = HTML(title("Exercise", attempt.exercise.title) + button("Stop", "stop"))
        actions = {
            "stop": lambda _: self.stop(),
            "hint": lambda _: self.take_hint(),
            "step": lambda _: self.take_step(),
            "replay": lambda _: self.show_replays(),
        }
        self.card = Card([head, self.progress, self.status, self.findings, self.films, self.hints], actions)
        super().__init__([sheet(), self.card])
        self.add_class("course-widget")

    def check(self) -> None:
        """Show the widget, check the solution, and show the result; then the card for a saved notebook."""
        exercise = self.attempt.exercise
        self.checking = True  # set before the button is visible
        self.card.add_class("course-checking")
        try:
            display_raw(self)
            verdict = self.attempt.check(self._show_progress)
        finally:
            self.checking = False
            self.card.remove_class("course-checking")
        self._show(verdict)
        heading = f"Exercise: {exercise.title}"
        display_saved(title=heading, state=self._headline(verdict), text=repr(self.attempt))

    def stop(self) -> None:
        """End the running check, as the square button of the notebook does."""
        if self.checking:
            _thread.interrupt_main()

    def take_hint(self) -> None:
        """Show the next hint."""
        hint = self.attempt.hint()
        self._show_hints()
        if hint not in self.attempt.hints:  # it is not open yet
            self.hints.value += alert("Not yet.", hint)

    def take_step(self) -> None:
        """Show the next steps."""
        self.attempt.next_step()
        if self.attempt.verdict is not None:
            self._show_findings(self.attempt.verdict)

    def show_replays(self) -> None:
        """Show the replay of the case that failed, next to the reference's."""
        if self.attempt.verdict is None or self.checking:
            return
        self.films.value = note("Running the case again.")
        films = self.attempt.exercise.replays(self.attempt.solution, self.attempt.verdict)
        self.films.value = "".join(f"<h4>{title}</h4>{film._repr_html_()}" for title, film in films.items())

    # -- parts -----------------------------------------------------------------------------------------------------

    def _show_progress(self, done: int, to_do: int) -> None:
        text = f"Checked {done} of {to_do} cases"
        self.progress.value = f'<label>{text} <progress max="{to_do}" value="{done}">{text}</progress></label>'

    def _show(self, verdict: Verdict) -> None:
        self.progress.value = ""
        first = BEGIN if verdict.status == "unattempted" else verdict.headline
        attempt = self.attempt
        lines = filter(None, [first, attempt.standing, attempt.consequence, attempt.progress.notice])
        result = alert(self._headline(verdict), "\n".join(lines), tone=TONES[verdict.status])
        self.status.value = result + earlier_html(attempt)
        self._show_findings(verdict)
        self._show_hints()

    def _show_findings(self, verdict: Verdict) -> None:
        shown = self.attempt.step_taken
        found = "".join(finding_html(finding, hints=shown) for finding in verdict.findings)
        ask = button("Show the next step", "step") if verdict.has_hints and not shown else ""
        ask += button("Replay it next to the reference", "replay") if verdict.drawn and verdict.ranks else ""
        after = _after_a_pass(self.attempt) if self.attempt.passed else ""
        self.findings.value = found + ask + printed_html(verdict.output) + after

    def _headline(self, verdict: Verdict) -> str:
        word = "Unchanged." if self.attempt.reminder else WORDS[verdict.status]
        return f"{SHAPES[verdict.status]} {word}"

    def _show_hints(self) -> None:
        task = details("The task in full", markup(self.attempt.exercise.task))
        if self.attempt.passed:  # the hints are all in the findings
            self.hints.value = task
            return
        taken, ladder = self.attempt.hints, self.attempt.ladder
        shown = [
            f'<div class="course-hint"><h4>{_label(number, len(ladder))}</h4>{markup(hint)}</div>'
            for number, hint in enumerate(taken, 1)
        ]
        summary = f"Earlier hints ({len(shown) - 1})"
        earlier = details(summary, "".join(shown[:-1])) if shown[1:] else ""
        latest = f'<div role="alert">{shown[-1]}</div>' if shown else ""
        more = button(_label(len(taken) + 1, len(ladder), show=True), "hint") if len(taken) < len(ladder) else ""
        self.hints.value = task + earlier + latest + more


def _after_a_pass(attempt: Attempt) -> str:
    """Return why the reference is right, a different right solution, and all hints, each folded."""
    *hints, solution = attempt.ladder
    parts = {"Why this is right": solution, "The hints": "\n\n".join(hints)}
    if attempt.exercise.alternative:
        parts["A different way"] = f"```python\n{attempt.exercise.alternative}\n```"
    return "".join(details(summary, markup(text)) for summary, text in parts.items())


def _label(number: int, of: int, *, show: bool = False) -> str:
    if number == of:
        return "Show the solution" if show else "The solution"
    return f"{'Show hint' if show else 'Hint'} {number} of {of - 1}"


def earlier_html(attempt: Attempt) -> str:
    """Return the outcome of the earlier attempt, and a button that inserts it, if the cell is unchanged.

    A kernel cannot write into a notebook when a button is clicked. JupyterLab runs its own commands for elements that
    name them: a new cell below, and the text into it. Elsewhere the button does nothing, and `insert()` works.
    """
    if attempt.earlier is None or not attempt.reminder:
        return ""
    commands = ["notebook:insert-cell-below", "notebook:replace-selection"]
    arguments = escape(json.dumps({"commands": commands, "args": {"text": attempt.earlier.source}}))
    insert = (
        '<button type="button" data-commandlinker-command="apputils:run-all-enabled" '
        f'data-commandlinker-args="{arguments}">'
    )
    return note("Welcome back.", attempt.reminder) + insert + "Insert my last attempt below</button>"


def finding_html(finding: Finding, *, hints: bool = True) -> str:
    """Return a finding as HTML: observation, table, probable cause, next step, and the folded traceback.

    Without `hints`, it has no next step that is one.
    """
    parts = [*map(_line_html, finding.observed.splitlines()), table_html(finding.table)]
    parts += [f"<p><strong>{label}:</strong> {inline(text)}</p>" for label, text in finding.causes.items()]
    if finding.technical or hints:
        parts.append(f'<p class="course-next" role="alert"><strong>Next:</strong> {inline(finding.action)}</p>')
    if finding.traceback:
        parts.append(details("Traceback", pre(escape(finding.traceback))))
    return f'<div class="course-finding">{"".join(parts)}</div>'


def _line_html(line: str) -> str:
    """Return a line of what was observed. A line of code is indented."""
    indent = len(line) - len(line.lstrip())
    text = f"<code>{escape(line.strip())}</code>" if indent else inline(line)
    return f'<p class="course-observed" style="margin-left: {indent}ch">{text}</p>'


def table_html(table: tuple[Row, ...]) -> str:
    """Return expected and given results as HTML, a row for each rank."""
    if not table:
        return ""
    names = ("rank", "expected", "yours", "compared")[table[0].rank is None :]
    return scrolled(names, map(_row_html, table))


def _row_html(row: Row) -> str:
    right = "✓ within" if row.within else "✓ same"
    mark, style = ("✗ differs", ' class="course-differs"') if row.differs else (right, "")
    cells = "".join(f"<td>{escape(text)}</td>" for text in (row.expected, row.yours, mark))
    rank = "" if row.rank is None else f'<th scope="row">{row.rank}</th>'
    return f"<tr{style}>{rank}{cells}</tr>"


def printed_html(output: tuple[str, ...]) -> str:
    """Return the solution's output as folded HTML."""
    lines = [f"[rank {rank}] {line}" for rank, text in enumerate(output) for line in text.splitlines()]
    return details("What your function printed", pre(escape("\n".join(lines[:200])))) if lines else ""
