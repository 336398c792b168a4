"""A quiz to click through: a card for each question, feedback for each answer, and the score.

The widget shows what a `Sitting` says and passes on what the learner enters. What is right, and the feedback,
stay in Python and out of the saved notebook until an answer has been given.
"""

from collections.abc import Callable

from ipywidgets import HTML, VBox

from .. import quizzes
from ..progress import Progress, own_progress
from ..quizzes import Choice, Feedback, Problem, Quiz, Sitting, Turn
from .card import Card
from .style import alert, button, display_with_text, form, inline, markup, note, number, options, sheet, title


class QuizWidget(VBox):
    """A quiz being taken, which goes on from the answers that are stored.

    `sitting` is its state, `cards` are the questions. `earlier` is a sitting, too: the questions of earlier lessons
    that come back, or None.
    """

    def __init__(self, quiz: Quiz, progress: Progress, *, earlier: Quiz | None = None) -> None:
        self._progress = progress
        self.sitting = self._sit(quiz)
        self.earlier = self._sit(earlier) if earlier else None
        self.cards = self._cards(self.sitting)
        self.score = HTML()
        parts = [sheet(), self.score, *self.cards]
        if self.earlier:
            about = "You missed these at first. Here they are again, now that some time has passed."
            parts += [HTML(title("Again", self.earlier.quiz.title) + markup(about)), *self._cards(self.earlier)]
        super().__init__(parts)
        self.add_class("course-widget")
        self._show_score()

    def _sit(self, quiz: Quiz) -> Sitting:
        """Go on from the stored answers, and store what is answered."""
        return Sitting(quiz, on_answer=self._progress.answer, answers=self._progress.answers(quiz.name))

    def _cards(self, sitting: Sitting) -> "tuple[QuestionCard, ...]":
        of = len(sitting.turns)
        return tuple(
            QuestionCard(turn, heading=f"Question {number} of {of}", answered=self._show_score)
            for number, turn in enumerate(sitting.turns, start=1)
        )

    def _show_score(self) -> None:
        score = self.sitting.score
        bar = f'<progress max="{score.questions}" value="{score.right}" aria-label="{score}"></progress>'
        done = " ✓ Done." if score.done else ""
        state = f"<p>{bar} {score}.{done}</p>"
        self.score.value = title("Quiz", self.sitting.quiz.title) + state + markup(self._progress.notice)

    def __repr__(self) -> str:
        """Return the questions, and the score once there is one. The text gives no answer away."""
        parts = []
        for sitting in filter(None, [self.sitting, self.earlier]):
            parts += [str(sitting.quiz), f"{sitting.score}." if sitting.begun else ""]
        return "\n\n".join(filter(None, [*parts, self._progress.notice]))

    def _ipython_display_(self) -> None:
        quiz, score = self.sitting.quiz, self.sitting.score
        unbegun = f"{len(quiz.questions)} questions"
        state = f"{'✓ ' * score.done}{score}" if self.sitting.begun else unbegun
        display_with_text(self, title=f"Quiz: {quiz.title}", state=state)


class QuestionCard(Card):
    """One question: prompt, fields and feedback. `check` and `try_again` do what the buttons do."""

    def __init__(self, turn: Turn, *, heading: str, answered: Callable[[], None]) -> None:
        self.turn, self._heading, self._answered = turn, heading, answered
        self.question, self.feedback = HTML(), HTML()
        actions = {"check": lambda fields: self.check(fields.get("answer", "")), "again": lambda _: self.try_again()}
        super().__init__([self.question, self.feedback], actions)
        self._ask()
        if turn.feedback:
            self._show(turn.feedback, note)

    def check(self, given: str) -> None:
        """Mark an answer: the text that was typed, or the letters that were picked."""
        self._show(self.turn.answer(given), alert)
        self._answered()

    def try_again(self) -> None:
        """Ask again, with the options in another order or with other numbers."""
        self.turn.retry()
        self._ask()
        self.feedback.value = alert("Asked anew.", "The order or the numbers may have changed.")

    def _show(self, feedback: Feedback, message: Callable[..., str]) -> None:
        unread = feedback.status == "unread"
        shown = message(feedback.headline, feedback.message, tone="note" if unread else feedback.status)
        self.feedback.value = shown + ("" if unread else button("Try again", "again"))

    def _ask(self) -> None:
        problem, about = self.turn.problem, f"course-{self.model_id}"
        prompt = f'<h4>{self._heading}</h4><div id="{about}">{markup(problem.prompt)}</div>'
        self.question.value = prompt + form("check", fields_for(problem, self.turn.given, about), "Check")


def quiz(name: str) -> QuizWidget:
    """Return the quiz of a lesson. As the last line of a cell it is shown.

    Raises:
        CourseError: there is none; the message lists similar names.
    """
    earlier = quizzes.review(name, quizzes.names(), own_progress().first_answers)
    return QuizWidget(quizzes.get(name), own_progress(), earlier=earlier)


def fields_for(problem: Problem, given: str, about: str) -> str:
    """Return the fields in which a learner answers `problem`, filled with what was `given`.

    about: the id of the element with the question, which names a group of options for screen readers.
    """
    if isinstance(problem, Choice):
        labels = {letter: f"{letter}) {option.text}" for letter, option in problem.lettered.items()}
        picked = given.casefold()
        return options(problem.instruction, labels, picked=picked, several=problem.several, about=about)
    return f"<p>{inline(problem.instruction)}</p>" + number("Your answer", unit=problem.unit, value=given)
