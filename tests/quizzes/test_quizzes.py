"""Every answer gets its own sentence, a retry asks anew, and nothing on show gives an answer away."""

import json
import random
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import pairwise

import pytest

from course_lib import CourseError, quizzes
from course_lib.quizzes import Answer, Choice, Numeric, Option, Question, Quiz, Sitting
from tests.quizzes.sample_quiz import QUIZ, secrets

ONE, SEVERAL, DRAWN, EXACT = QUIZ.questions


def letter_of(question: Question, text: str, attempt: int = 0) -> str:
    problem = question.problem(attempt)
    assert isinstance(problem, Choice)
    return next(letter for letter, option in problem.lettered.items() if option.text == text)


def numeric(expected: float | Fraction, **settings: object) -> Numeric:
    return Numeric(prompt="How many?", expected=expected, right="Yes.", wrong="Count.", **settings)  # type: ignore


# One option


@pytest.mark.parametrize("attempt", range(5))
def test_each_option_answers_with_its_own_sentence_wherever_it_stands(attempt: int) -> None:
    problem = ONE.problem(attempt)
    assert isinstance(problem, Choice)
    for letter, option in problem.lettered.items():
        feedback = ONE.answer(letter, attempt)
        assert (feedback.correct, feedback.message) == (option.right, option.feedback)
        assert feedback.reading == option.text
    for written in ("{}", "{})", "({})", "{}."):
        assert ONE.answer(written.format(problem.solution.upper()), attempt).correct


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "You chose none. Choose one."),
        ("a, b", "You chose 2. Choose one."),
        ("x", "There is no option x. Choose from a, b, c, d."),
    ],
)
def test_a_choice_that_is_none_is_not_marked(given: str, message: str) -> None:
    feedback = ONE.answer(given)
    assert (feedback.status, feedback.correct) == ("unread", False)
    assert str(feedback) == f"Not marked. {message}"


# Several options


def test_several_options_are_right_together_only() -> None:
    texts = ("The parameters", "The gradients", "The moments of `Adam`")
    parameters, gradients, moments = (letter_of(SEVERAL, text) for text in texts)

    assert SEVERAL.answer(f"{gradients}, {parameters}").correct
    assert SEVERAL.answer(parameters + gradients).message.splitlines()[0] == "That is all of them."
    assert SEVERAL.answer(parameters).message == f"1 missing.\n{parameters}) Each rank runs the whole model."
    message = f"1 too many, 2 missing.\n{moments}) These are what stage 1 cuts."
    assert SEVERAL.answer(moments).message == message
    assert SEVERAL.answer("abc").message.splitlines()[0] == "1 too many."
    assert not SEVERAL.answer("abc").correct
    assert SEVERAL.answer("").status == "unread"


# Numbers


def test_a_number_is_right_within_the_tolerance_that_is_shown() -> None:
    question = numeric(38.5e9, unit="GB", tolerance=0.01)
    assert question.text() == "How many?\nAnswer in GB, within 1 % of the exact value."
    assert [question.answer(given).correct for given in ("38.5", "38.12", "38.88")] == [True] * 3
    assert [question.answer(given).status for given in ("38.11", "38.89")] == ["wrong"] * 2


def test_any_unit_of_memory_is_converted() -> None:
    feedback = numeric(38.5e9, unit="GiB").answer("38.5 GB")
    assert feedback.correct
    assert feedback.message == "Yes.\nYour answer was read as 38.5 GB, which is 35.8559 GiB."


def test_an_exact_number_has_no_slack() -> None:
    third = numeric(Fraction(1, 3), tolerance=0)
    assert third.instruction == "Answer with a number, exactly."
    assert third.answer("1/3").correct
    assert third.answer("0.333333333333").status == "wrong"


def test_a_unit_that_does_not_fit_is_feedback_and_not_marked() -> None:
    feedback = numeric(7e9, unit="elements").answer("7 GB")
    assert (feedback.status, feedback.message) == (
        "unread",
        "`GB` does not fit this question. Give the answer in elements.",
    )


@pytest.mark.parametrize("attempt", range(10))
def test_each_mistake_gets_its_own_sentence_whatever_is_drawn(attempt: int) -> None:
    problem = DRAWN.problem(attempt)
    assert isinstance(problem, Numeric)
    for mistake, sentence in problem.mistakes:
        feedback = DRAWN.answer(f"{mistake} bytes", attempt)
        assert feedback.status == "wrong"
        assert feedback.message.startswith(sentence)


def test_a_mistake_is_recognised_within_the_tolerance_of_the_question() -> None:
    question = numeric(100, tolerance=0.1, mistakes=((50, "Half."),))
    firsts = [question.answer(given).message.splitlines()[0] for given in ("44", "45", "55", "56")]
    assert firsts == ["Too low. Count.", "Half.", "Half.", "Too low. Count."]


def test_the_fp32_master_weights_left_whole_are_recognised() -> None:
    assert "7 B parameters" in DRAWN.problem().prompt and "on 8 ranks" in DRAWN.problem().prompt
    assert "master weights" in DRAWN.answer("58.7 GiB").message
    assert DRAWN.answer("24.4 GiB").correct


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("35.86 GB", "That is the number in GiB. The question asks for GB."),
        ("38.5 MB", "The digits are right, but 10^3 times too few: look at the unit."),
        ("38.5e9", "The digits are right, but 10^9 times too many: look at the unit."),
        ("20", "Too low. Count."),
        ("50", "Too high. Count."),
    ],
)
def test_a_wrong_number_that_no_mistake_claims_still_gets_a_reason(given: str, message: str) -> None:
    feedback = numeric(38.5e9, unit="GB").answer(given)
    assert feedback.status == "wrong"
    assert feedback.message.splitlines()[0] == message


def test_a_rough_guess_is_not_taken_for_a_number_in_gib() -> None:
    assert numeric(3.5e9, unit="GB", tolerance=0.1).answer("3").message.startswith("Too low.")


def test_a_plain_number_may_be_given_in_python() -> None:
    assert EXACT.answer(16).correct
    assert not EXACT.answer(12.0).correct


# Asking


@pytest.mark.parametrize("question", QUIZ.questions, ids=lambda question: question.id)
def test_the_solution_is_right_on_every_attempt(question: Question) -> None:
    for attempt in range(20):
        assert question.answer(question.problem(attempt).solution, attempt).correct


def test_the_same_attempt_always_asks_the_same() -> None:
    again = Question(id=DRAWN.id, ask=DRAWN.ask)
    for attempt in range(10):
        assert DRAWN.problem(attempt) == again.problem(attempt)


@pytest.mark.parametrize("question", [ONE, SEVERAL, DRAWN], ids=lambda question: question.id)
def test_no_retry_repeats_what_was_just_asked(question: Question) -> None:
    texts = [question.problem(attempt).text() for attempt in range(20)]
    assert all(text != following for text, following in pairwise(texts))


def test_drawing_touches_no_other_random_stream() -> None:
    random.seed(0)
    expected = random.random()
    random.seed(0)
    DRAWN.problem(3)
    assert random.random() == expected


def test_a_question_that_cannot_draw_anything_new_says_so() -> None:
    question = Question(id="stuck", ask=lambda rng: numeric(1))
    with pytest.raises(ValueError, match="Question 'stuck' drew the same 100 times"):
        question.problem(1)


# Text


def test_the_text_of_a_quiz_is_stable() -> None:
    assert (
        repr(QUIZ)
        == """\
Quiz: Ranks & shards

1. Four ranks call `all_reduce` on a tensor each. What does rank 2 hold then?
   a) Its own tensor, as before
   b) A quarter of the sum
   c) The sum of all four
   d) All four tensors, one after the other
   Choose one.

2. What does every rank hold whole?

   ```python
   engine = zero.Stage1(model)
   ```
   a) The moments of `Adam`
   b) The parameters
   c) The gradients
   Choose every option that is right.

3. A model of 7 B parameters trains with `AdamW` in mixed precision on 8 ranks, its gradients and \
optimizer states sharded. How much does one rank hold?
   Answer in GiB, within 1 % of the exact value.

4. How many bytes does all-fp32 `Adam` keep for one parameter, all told?
   Answer in bytes, exactly."""
    )


def test_no_repr_gives_an_answer_away() -> None:
    problems = [question.problem() for question in QUIZ.questions]
    shown = " ".join([repr(QUIZ), repr(QUIZ.questions), repr(problems)])
    assert "right=" not in shown and "expected" not in shown
    for secret in secrets():
        assert secret not in shown


# A sitting


def test_a_sitting_keeps_the_score_and_hands_over_plain_answers() -> None:
    stored: list[Answer] = []
    sitting = Sitting(QUIZ, on_answer=stored.append)
    one, _, drawn, _ = sitting.turns

    one.answer("")
    assert stored == []
    one.answer(letter_of(ONE, "A quarter of the sum"))
    one.answer(letter_of(ONE, "The sum of all four"))
    drawn.retry()
    drawn.answer(drawn.problem.solution)

    assert str(sitting.score) == "2 of 4 right"
    assert [(answer.question, answer.attempt, answer.correct) for answer in stored] == [
        ("after-all-reduce", 0, False),
        ("after-all-reduce", 0, True),
        ("held-by-stage2", 1, True),
    ]
    assert json.loads(json.dumps(asdict(stored[0]))) == {
        "quiz": "sample",
        "question": "after-all-reduce",
        "attempt": 0,
        "given": "b",
        "reading": "A quarter of the sum",
        "correct": False,
    }


def test_a_stored_answer_can_be_marked_again() -> None:
    stored: list[Answer] = []
    turn = Sitting(QUIZ, on_answer=stored.append).turns[2]
    turn.retry()
    feedback = turn.answer("58.7")
    assert DRAWN.answer(stored[0].given, stored[0].attempt) == feedback


def test_a_retry_asks_anew_and_keeps_what_was_earned() -> None:
    sitting = Sitting(QUIZ)
    turn = sitting.turns[2]
    before = turn.problem
    turn.answer(before.solution)
    assert "Right. Two bytes" in str(turn.feedback)

    turn.retry()
    assert turn.problem != before
    assert turn.feedback is None
    turn.answer("1")
    assert sitting.score.right == 1


def test_a_quiz_is_done_when_every_question_was_right_once() -> None:
    sitting = Sitting(QUIZ)
    for turn in sitting.turns:
        assert not sitting.score.done
        turn.answer(turn.problem.solution)
    assert sitting.score.done

    sitting.turns[2].retry()
    sitting.turns[2].answer("1")
    assert sitting.score.done


# The registry


def test_every_quiz_is_found_under_its_name() -> None:
    assert len(quizzes.names()) > 10
    assert [quizzes.get(name).name for name in quizzes.names()] == list(quizzes.names())


@pytest.mark.parametrize("name", quizzes.names())
def test_each_question_marks_its_solution_right_and_recognises_its_mistakes(name: str) -> None:
    for question in quizzes.get(name).questions:
        expected, recognised = set(), set()
        for attempt in range(10):
            problem = question.problem(attempt)
            assert problem.answer(problem.solution).correct
            mistakes = problem.mistakes if isinstance(problem, Numeric) else ()
            for place, (value, feedback) in enumerate(mistakes):
                expected.add(place)
                in_unit = replace(problem, expected=value, mistakes=(), tolerance=0.001).solution
                if problem.answer(in_unit).message.startswith(feedback):
                    recognised.add(place)  # not in each attempt: two mistakes may lead to one number
        assert recognised == expected, question.id


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(CourseError, match=r"There is no quiz named 'rank'\. Did you mean 'ranks'\?"):
        quizzes.get("rank")
    with pytest.raises(CourseError, match=r"There is no quiz named 'something else'\. There are: start, ranks"):
        quizzes.get("something else")


# Declarations that cannot work


def test_a_choice_without_one_right_option_is_refused() -> None:
    right = Option(text="yes", feedback="Yes.", right=True)
    wrong = Option(text="no", feedback="No.")
    for options in ((wrong, replace(wrong, text="never")), (right, replace(right, text="also"))):
        with pytest.raises(ValueError, match="options right, not one"):
            Choice(prompt="Is it?", options=options)
    with pytest.raises(ValueError, match="no two alike"):
        Choice(prompt="Is it?", options=(right, replace(wrong, text="yes")))


def test_a_mistake_within_the_tolerance_is_refused() -> None:
    with pytest.raises(ValueError, match=r"accepts 101\.0, the mistake 'Off by one.'. Draw other numbers."):
        numeric(100, mistakes=((101.0, "Off by one."),))


def test_an_exact_answer_is_not_a_float() -> None:
    with pytest.raises(ValueError, match=r"wants 0\.5 exactly. Compute an int or a Fraction."):
        numeric(0.5, tolerance=0)


def test_two_questions_with_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="needs some, all different"):
        Quiz(name="twice", title="Twice", questions=(ONE, ONE))
    with pytest.raises(ValueError, match="needs some, all different"):
        Quiz(name="none", title="None", questions=())
