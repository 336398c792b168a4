"""The widget below an exercise's cell: the progress of the check, its result, and the hints.

It shows an `Attempt`. Hints and the solution stay in Python until the learner asks for them.
"""

from __future__ import annotations

import _thread
import json
from contextlib import suppress
from html import escape

from IPython.display import display
from ipywidgets import HTML, Button, HBox, Layout, VBox

from ..exercises import Finding, Row, Verdict
from ..exercises.checking.findings import SHAPES
from .attempt import Attempt
from .style import alert, display_text, inline, markup, note, sheet

SHEET = """
.course-widget td { font-family: var(--jp-code-font-family, monospace); overflow-wrap: anywhere; }
.course-widget table tr.course-differs td { background: var(--jp-warn-color3, rgba(245, 124, 0, 0.2)); color: #000; }
.course-observed, .course-hint p { white-space: pre-wrap; }
.course-widget progress { width: 15em; max-width: 100%; accent-color: var(--jp-brand-color1, #1976d2); }
.course-widget details { margin: 0.4em 0; }
"""

WORDS = {"passed": "Passed.", "failed": "Not right yet.", "error": "Error.", "unattempted": "Not attempted yet."}
TONES = {"passed": "right", "failed": "wrong", "error": "wrong", "unattempted": "note"}


class ExerciseWidget(VBox):
    """An attempt at an exercise. `check`, `stop` and `take_hint` do what the cell and the buttons do."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.checking = False
        hidden = Layout(display="none")
        self.status, self.findings, self.hints, self.explanation = HTML(), HTML(), HTML(), HTML()
        self.progress, self.earlier = HTML(), HTML()
        self.stop_button = Button(description="Stop", layout=Layout(width="auto"))
        self.hint_button = Button(layout=Layout(width="auto", align_self="flex-start"))
        self.stop_button.on_click(lambda _: self.stop())
        self.hint_button.on_click(lambda _: self.take_hint())
        self.running = HBox([self.progress, self.stop_button])
        self.result = VBox([self.findings, self.explanation, self.hints, self.hint_button], layout=hidden)
        title = HTML(f"<style>{SHEET}</style><h3>Exercise: {inline(attempt.exercise.title)}</h3>")
        card = VBox([title, self.running, self.status, self.earlier, self.result])
        card.add_class("course-card")
        super().__init__([sheet(), card])
        self.add_class("course-widget")

    def check(self) -> None:
        """Show the widget, check the solution, and show the result; then the same as text, for a saved notebook."""
        name = self.attempt.exercise.name
        _receive_clicks_while_busy(self.stop_button)
        self.checking = True  # set before the button is visible
        try:
            display(self._repr_mimebundle_() | {"text/plain": f"Exercise {name}: run this cell to check it."}, raw=True)
            self._show_progress(0, self.attempt.exercise.case_count)
            verdict = self.attempt.check(self._show_progress)
        finally:
            self.checking = False
        self._show(verdict)
        display_text(repr(self.attempt))

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

    # -- parts -----------------------------------------------------------------------------------------------------

    def _show_progress(self, done: int, to_do: int) -> None:
        text = f"Checked {done} of {to_do} cases"
        self.progress.value = f'<label>{text} <progress max="{to_do}" value="{done}">{text}</progress></label>'

    def _show(self, verdict: Verdict) -> None:
        self.running.layout.display = "none"
        notice = self.attempt.notice
        message = "\n".join([verdict.headline, self.attempt.consequence] + [notice] * bool(notice))
        headline = f"{SHAPES[verdict.status]} {WORDS[verdict.status]}"
        self.status.value = alert(headline, message, tone=TONES[verdict.status])
        self.earlier.value = earlier_html(self.attempt)
        self.findings.value = "".join(map(finding_html, verdict.findings)) + printed_html(verdict.output)
        if verdict.status == "passed":
            self.explanation.value = _after_a_pass(self.attempt)
        self._show_hints()
        self.result.layout.display = None

    def _show_hints(self) -> None:
        taken, ladder = self.attempt.hints, self.attempt.ladder
        shown = [
            f'<div class="course-hint"><h4>{_label(number, len(ladder))}</h4>{markup(hint)}</div>'
            for number, hint in enumerate(taken, 1)
        ]
        earlier = details(f"Earlier hints ({len(shown) - 1})", "".join(shown[:-1])) if shown[1:] else ""
        latest = f'<div role="alert">{shown[-1]}</div>' if shown else ""
        self.hints.value = earlier + latest
        self.hint_button.description = f"Show {_label(len(taken) + 1, len(ladder)).lower()}"
        over = self.attempt.passed or len(taken) == len(ladder)
        self.hint_button.layout.display = "none" if over else None


def _receive_clicks_while_busy(button: Button) -> None:
    """Make clicks on `button` arrive while a cell runs.

    JupyterLab sends them to a subshell, a thread of the kernel next to the one that runs cells. ipykernel 7.4 forwards
    them to the thread that wrote to the button last, which is the busy one, unless that attribute is deleted. If the
    attribute has a different name, or there are no subshells, only the square button of the notebook stops a check.
    """
    with suppress(AttributeError):
        del button.comm._reply_subshell_id


def _after_a_pass(attempt: Attempt) -> str:
    """Return why the reference is right, a different right solution, and all hints, each folded."""
    *hints, solution = attempt.ladder
    parts = {"Why this is right": solution, "The hints": "\n\n".join(hints)}
    if attempt.exercise.alternative:
        parts["A different way"] = f"```python\n{attempt.exercise.alternative}\n```"
    return "".join(details(summary, markup(text)) for summary, text in parts.items())


def _label(number: int, of: int) -> str:
    return "The solution" if number == of else f"Hint {number} of {of - 1}"


def earlier_html(attempt: Attempt) -> str:
    """Return the outcome of the earlier attempt, and a button that inserts it, if the cell is unchanged.

    A kernel cannot write into a notebook when a button is clicked. JupyterLab runs its own commands for elements that
    name them: a new cell below, and the text into it. Elsewhere the button does nothing, and `insert()` works.
    """
    if attempt.earlier is None or not attempt.reminder:
        return ""
    commands = ["notebook:insert-cell-below", "notebook:replace-selection"]
    arguments = escape(json.dumps({"commands": commands, "args": {"text": attempt.earlier.source}}))
    button = (
        '<button class="jupyter-button" data-commandlinker-command="apputils:run-all-enabled" '
        f'data-commandlinker-args="{arguments}">Insert my last attempt below</button>'
    )
    return note("Welcome back.", attempt.reminder) + button


def finding_html(finding: Finding) -> str:
    """Return a finding as HTML: observation, table, probable cause, next step, and the folded traceback."""
    parts = [f'<p class="course-observed">{escape(finding.observed)}</p>', table_html(finding.table)]
    parts += [f"<p><strong>Likely:</strong> {inline(finding.likely)}</p>"] if finding.likely else []
    parts.append(f"<p><strong>Next:</strong> {inline(finding.action)}</p>")
    if finding.traceback:
        parts.append(details("Traceback", f"<pre>{escape(finding.traceback)}</pre>"))
    return f'<div class="course-feedback course-note">{"".join(parts)}</div>'


def table_html(table: tuple[Row, ...]) -> str:
    """Return expected and given results as HTML, a row for each rank."""
    if not table:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("rank", "expected", "yours", "compared"))
    rows = "".join(map(_row_html, table))
    return f'<div class="course-scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row_html(row: Row) -> str:
    mark, style = ("✗ differs", ' class="course-differs"') if row.differs else ("✓ same", "")
    cells = "".join(f"<td>{escape(text)}</td>" for text in (row.expected, row.yours, mark))
    return f'<tr{style}><th scope="row">{row.rank}</th>{cells}</tr>'


def printed_html(output: tuple[str, ...]) -> str:
    """Return the solution's output as folded HTML."""
    lines = [f"[rank {rank}] {line}" for rank, text in enumerate(output) for line in text.splitlines()]
    return details("What your function printed", f"<pre>{escape(chr(10).join(lines[:200]))}</pre>") if lines else ""


def details(summary: str, html: str) -> str:
    """Return `html`, folded: a click or the Enter key on the summary opens it."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"
