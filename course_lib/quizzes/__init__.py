"""Quizzes with feedback: questions, the marking of answers, and a learner's way through a quiz.

    quizzes.get("ranks").questions[0].answer("b")       # mark one answer
    quizzes.Sitting(quizzes.get("ranks"))               # take the quiz, with retries and a score

Imports point one way: review, sitting -> quiz -> choice, numeric -> quantities, feedback.
"""

from .choice import Choice, Option
from .feedback import Feedback
from .numeric import Numeric
from .quantities import Unreadable, read, write
from .quiz import Problem, Question, Quiz
from .review import get, names, review
from .sitting import Answer, Score, Sitting, Turn

__all__ = [
    "Answer", "Choice", "Feedback", "Numeric", "Option", "Problem", "Question", "Quiz", "Score", "Sitting", "Turn",
    "Unreadable", "get", "names", "read", "review", "write",
]  # fmt: skip
