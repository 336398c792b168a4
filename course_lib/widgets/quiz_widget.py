"""A quiz to click through: a card for each question, feedback for each answer, and the score.

The widget shows what a `Sitting` says and passes on what the learner enters. What is right, and the feedback,
stay in Python and out of the saved notebook until an answer has been given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipywidgets import HTML, Button, Checkbox, HBox, Layout, RadioButtons, VBox

from ..progress import Progress
from ..quizzes import Answer, Choice, Feedback, Numeric, Problem, Quiz, Sitting, Turn
from .message_order import keep_order
from .number_field import NumberField
from .style import alert, display_with_text, inline, markup, note, plain, sheet


class QuizWidget(VBox):
    """A quiz being taken, which goes on from the answers that are stored.

    `sitting` is its state, `cards` are the questions. `earlier` is a sitting, too: the questions of earlier lessons
    that come back, or None. Its repr is the quiz's text.
    """

    def __init__(self, quiz: Quiz, progress: Progress, *, earlier: Quiz | None = None) -> None:
        self._progress = progress
        self.sitting = self._sit(quiz)
        self.earlier = self._sit(earlier) if earlier else None
        self.cards = self._cards(self.sitting)
        self.score = HTML()
        parts = [sheet(), HTML(f"<h3>Quiz: {inline(quiz.title)}</h3>"), *self.cards, self.score]
        if self.earlier:
            title = f"<h3>{inline(self.earlier.quiz.title)}</h3>"
            about = "You missed these at first. Here they are again, now that some time has passed."
            parts += [HTML(title + markup(about)), *self._cards(self.earlier)]
        super().__init__(parts)
        self.add_class("course-widget")
        self._show_score()

    def _sit(self, quiz: Quiz) -> Sitting:
        """Go on from the stored answers, and store what is answered."""
        stored = [
            Answer(
                quiz=answer.quiz,
                question=answer.question,
                attempt=answer.attempt,
                given=answer.value["given"],
                reading=answer.value["reading"],
                correct=answer.correct,
            )
            for answer in self._progress.answers(quiz.name)
        ]
        return Sitting(quiz, on_answer=self._store, answers=stored)

    def _store(self, answer: Answer) -> None:
        value = {"given": answer.given, "reading": answer.reading}
        self._progress.answer(answer.quiz, answer.question, answer.attempt, value, answer.correct)

    def _cards(self, sitting: Sitting) -> tuple[Card, ...]:
        of = len(sitting.turns)
        return tuple(
            Card(turn, heading=f"Question {number} of {of}", answered=self._show_score)
            for number, turn in enumerate(sitting.turns, start=1)
        )

    def _show_score(self) -> None:
        score = self.sitting.score
        self.score.value = markup(f"Score: {score}.{' ✓ Done.' * score.done}") + markup(self.notice)

    @property
    def notice(self) -> str:
        """The fault of the learner's progress record; empty while there is none."""
        return self._progress.notice or ""

    def text(self) -> str:
        """The questions, and the score once there is one: nothing that gives an answer away."""
        parts = []
        for sitting in filter(None, [self.sitting, self.earlier]):
            parts += [sitting.quiz.text(), f"{sitting.score}." if sitting.begun else ""]
        return "\n\n".join(filter(None, [*parts, self.notice]))

    def _ipython_display_(self) -> None:
        quiz = self.sitting.quiz
        summary = f"Quiz: {quiz.title} ({len(quiz.questions)} questions). Run this cell to take it."
        display_with_text(self, text=self.text(), summary=summary)

    def __repr__(self) -> str:
        return self.text()


class Card(VBox):
    """One question: prompt, entry, buttons and feedback. `check` and `try_again` do what the buttons do."""

    def __init__(self, turn: Turn, *, heading: str, answered: Callable[[], None]) -> None:
        self.turn = turn
        self.prompt = HTML()
        # In a box of its own the entry can be replaced without touching the buttons and the keyboard focus.
        self.entry_box = VBox()
        self.check_button = Button(description="Check", layout=Layout(width="auto"))
        self.again_button = Button(description="Try again", layout=Layout(width="auto", display="none"))
        self.feedback = HTML()
        self._heading = f"<h4>{heading}</h4>"
        self._answered = answered
        self.check_button.on_click(lambda _: self.check())
        self.again_button.on_click(lambda _: self.try_again())
        buttons = HBox([self.check_button, self.again_button])
        super().__init__([self.prompt, self.entry_box, buttons, self.feedback])
        self.add_class("course-card")
        self._ask()
        if turn.feedback:
            self._show(turn.feedback, note)

    def check(self) -> None:
        """Mark what has been entered."""
        self._show(self.turn.answer(self.entry.given), alert)
        self._answered()

    def try_again(self) -> None:
        """Ask again, with the options in another order or with other numbers."""
        self.turn.retry()
        self._ask()
        self.feedback.value = alert("Asked anew.", "The order or the numbers may have changed.")

    def _show(self, feedback: Feedback, message: Callable[..., str]) -> None:
        tone = "note" if feedback.status == "unread" else feedback.status
        self.feedback.value = message(feedback.headline, feedback.message, tone=tone)
        if feedback.status != "unread":
            self.again_button.layout.display = None

    def _ask(self) -> None:
        problem = self.turn.problem
        self.prompt.value = self._heading + markup(problem.prompt) + markup(problem.instruction)
        self.entry = entry_for(problem, self.turn.given, changed=self._forget_feedback, entered=self.check)
        self.entry_box.children = [self.entry]
        keep_order(self)

    def _forget_feedback(self) -> None:
        """It spoke of the answer that was checked, not of the one being given."""
        self.feedback.value = ""


def entry_for(
    problem: Problem, given: str, *, changed: Callable[[], None], entered: Callable[[], None]
) -> OneOf | AnyOf | Number:
    """Return the field in which a learner answers `problem`; it shows `given` at first.

    It calls `changed` at each change, `entered` at the Enter key.
    """
    if isinstance(problem, Numeric):
        return Number(problem, given, changed=changed, entered=entered)
    return (AnyOf if problem.several else OneOf)(problem, given, changed=changed)


class OneOf(VBox):
    """The options of a `Choice`, one of which can be picked.

    Each is a group of its own for the browser, so that the Tab key reaches it: JupyterLab keeps the arrow keys, which
    move within a group, for itself.
    """

    def __init__(self, problem: Choice, given: str, *, changed: Callable[[], None]) -> None:
        self._changed = changed
        layout, picked = Layout(width="auto"), given.casefold()
        self.radios = [
            RadioButtons(options=[label], index=0 if label[0] in picked else None, layout=layout)
            for label in _labels(problem)
        ]
        super().__init__(self.radios)
        for radio in self.radios:
            radio.observe(self._pick, "index")

    @property
    def given(self) -> str:
        """The letter of the option that is picked, or nothing."""
        return "".join(radio.label[0] for radio in self.radios if radio.label)

    def _pick(self, change: dict[str, Any]) -> None:
        if change["new"] is not None:
            for radio in self.radios:
                radio.index = 0 if radio is change["owner"] else None
            self._changed()


class AnyOf(VBox):
    """The options of a `Choice`, each with a box to tick."""

    def __init__(self, problem: Choice, given: str, *, changed: Callable[[], None]) -> None:
        layout = Layout(width="auto")
        self.boxes = [
            Checkbox(description=label, value=label[0] in given.casefold(), indent=False, layout=layout)
            for label in _labels(problem)
        ]
        super().__init__(self.boxes)
        for box in self.boxes:
            box.observe(lambda _: changed(), "value")

    @property
    def given(self) -> str:
        """The letters of the options that are ticked."""
        return ", ".join(box.description[0] for box in self.boxes if box.value)


class Number(NumberField):
    """The field for the answer to a `Numeric`."""

    def __init__(
        self, problem: Numeric, given: str, *, changed: Callable[[], None], entered: Callable[[], None]
    ) -> None:
        super().__init__("Your answer", unit=problem.unit, value=given, entered=entered)
        self.observe(lambda _: changed(), "value")

    @property
    def given(self) -> str:
        return str(self.value)


def _labels(problem: Choice) -> list[str]:
    return [f"{letter}) {plain(option.text)}" for letter, option in problem.lettered.items()]
