"""A quiz that answers without a kernel or a script: an option unfolds, and says whether it is right and why."""

from course_lib import quizzes
from course_lib.quizzes import Choice, Question
from course_lib.widgets.style import inline, markup

MARKS = {True: "✓ Right.", False: "✗ Not yet."}


def quiz(name: str) -> str:
    """Return the questions of a lesson's quiz as HTML."""
    asked = quizzes.get(name)
    questions = "".join(f"<li>{question(one)}</li>" for one in asked.questions)
    return f'<div class="quiz"><p><strong>Quiz: {inline(asked.title)}</strong></p><ol>{questions}</ol></div>'


def question(asked: Question) -> str:
    """Return one question as HTML. If it draws its numbers, they are those of a learner's first attempt."""
    problem = asked.problem()
    if isinstance(problem, Choice):
        answers = "".join(_unfolds(one.text, MARKS[one.right], one.feedback) for one in problem.options)
        return f"{markup(problem.prompt)}<p>{problem.instruction}</p>{answers}"
    return markup(problem.prompt) + _unfolds("Show the answer", f"{problem.solution}.", problem.right)


def _unfolds(summary: str, headline: str, why: str) -> str:
    answer = f"<p><strong>{inline(headline)}</strong> {inline(why)}</p>"
    return f"<details><summary>{inline(summary)}</summary>{answer}</details>"
