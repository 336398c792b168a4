"""What was missed in a quiz comes back two lessons later."""

from collections.abc import Mapping

import pytest

from course_lib import quizzes
from course_lib.quizzes import Quiz, review

LESSONS = ["start", "ranks", "memory", "parallel", "zero1"]
MISSED = {"start": {"result-of-a-rank": False, "one-rank-fails": True}}


def comes_back(quiz: str, first_answers: Mapping[str, Mapping[str, bool]]) -> Quiz | None:
    return review(quiz, LESSONS, lambda name: first_answers.get(name, {}))


def test_what_was_missed_comes_back_two_lessons_later() -> None:
    assert comes_back("start", MISSED) is None
    assert comes_back("ranks", MISSED) is None
    back = comes_back("memory", MISSED)

    assert back is not None
    assert (back.name, back.title) == ("memory: from earlier lessons", "From earlier lessons")
    assert [question.id for question in back.questions] == ["start.result-of-a-rank"]


def test_it_is_asked_in_another_form() -> None:
    back = comes_back("memory", MISSED)
    asked = quizzes.get("start").questions[0].problem()

    assert back is not None
    assert back.questions[0].problem().prompt != asked.prompt
    assert back.questions[0].answer(back.questions[0].problem().solution).correct


def test_it_comes_back_until_it_is_right_at_once() -> None:
    question = "start.result-of-a-rank"
    missed_again = MISSED | {"memory: from earlier lessons": {question: False}}
    right = missed_again | {"parallel: from earlier lessons": {question: True}}

    assert comes_back("parallel", MISSED) is not None  # nobody answered it in between
    assert comes_back("parallel", missed_again) is not None
    assert comes_back("parallel", right) is not None  # its own review, opened again, still shows it
    assert comes_back("zero1", right) is None


@pytest.mark.parametrize(
    "first_answers",
    [{}, {"start": {"result-of-a-rank": True}}, {"start": {"a-question-that-was-dropped": False}}],
    ids=["unanswered", "right", "dropped"],
)
def test_nothing_comes_back_that_was_not_missed(first_answers: Mapping[str, Mapping[str, bool]]) -> None:
    assert comes_back("zero1", first_answers) is None


def test_a_quiz_outside_the_lessons_has_no_review() -> None:
    assert comes_back("sample", MISSED) is None
