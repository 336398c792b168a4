"""Repetition: questions that the learner missed in earlier lessons are asked again two lessons later."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from .course import get
from .quiz import Question, Quiz

LESSONS_LATER = 2

FirstAnswers = Callable[[str], Mapping[str, bool]]
"""Returns, for the name of a quiz, whether the learner's first answer to each question was right."""


def review(quiz: str, lessons: Sequence[str], first_answers: FirstAnswers) -> Quiz | None:
    """Return the questions that come back in the lesson of `quiz`, or None.

    They were missed two lessons earlier or more: the first answer was wrong, and no first answer in a later review was
    right. Each is drawn again, with new numbers or in a new order. Answers to them are stored under the name of the
    review, so that the score of the earlier quiz does not change.

    lessons: their names, which are those of their quizzes, in order.
    """
    before = lessons[: lessons.index(quiz)] if quiz in lessons else ()
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
