"""The quizzes of the course by name, and repetition: what the learner missed is asked again two lessons later."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..syllabus import lessons
from .quiz import Question, Quiz

LESSONS_LATER = 2

FirstAnswers = Callable[[str], Mapping[str, bool]]
"""Returns, for the name of a quiz, whether the learner's first answer to each question was right."""


def get(name: str) -> Quiz:
    """Return the quiz of that name. Raises CourseError, with similar names, if there is none."""
    from ..exercises.registry import get_quiz  # imported here: it needs torch, and a record of answers does not

    quiz: Quiz = get_quiz(name)
    return quiz


def names() -> tuple[str, ...]:
    """Return the name of every quiz, in the order of the lessons."""
    return tuple(name for lesson in lessons() for name in lesson.quizzes)


def review(quiz: str, quizzes: Sequence[str], first_answers: FirstAnswers) -> Quiz | None:
    """Return the questions that come back in the lesson of `quiz`, or None.

    They were missed two lessons earlier or more: the first answer was wrong, and no first answer in a later review was
    right. Each is drawn again, with new numbers or in a new order. Answers to them are stored under the name of the
    review, so that the score of the earlier quiz does not change.

    quizzes: the names of all, in order, which are those of their lessons.
    """
    before = quizzes[: quizzes.index(quiz)] if quiz in quizzes else ()
    long_ago = before[: max(0, len(before) - LESSONS_LATER + 1)]
    settled = {id for name in before for id, right in first_answers(_review_of(name)).items() if right}
    missed = [question for name in long_ago for question in _missed(name, first_answers(name))]
    questions = tuple(question for question in missed if question.id not in settled)
    return Quiz(name=_review_of(quiz), title="From earlier lessons", questions=questions) if questions else None


def _missed(name: str, first_answers: Mapping[str, bool]) -> Iterator[Question]:
    for question in get(name).questions if first_answers else ():
        if first_answers.get(question.id) is False:
            yield replace(question, id=f"{name}.{question.id}")


def _review_of(quiz: str) -> str:
    return f"{quiz}: from earlier lessons"
