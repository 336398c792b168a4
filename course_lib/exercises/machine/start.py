"""Lesson 00, start here: one exercise and two questions that show how the course works."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist

from ...quizzes import Choice, Numeric, Question, Quiz
from ...quizzes import Mistake as Misreading
from ..form.exercise import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    world_size = (4, 1, 2, 3)[number] if number < 4 else rng.randint(2, 4)
    return Case(world_size=world_size, args=lambda rank: (), about=f"{world_size} rank{'s' * (world_size > 1)}")


exercise = Exercise("start.first", title="Your first exercise", draw=draw, task="""
    Return the square of the rank's number: 0 on rank 0, 1 on rank 1, 4 on rank 2, and so on.""", hints="""
    Every rank runs the same line. What differs between the ranks, and how did the cell above find it out?

    The square of a number is the number times itself. The number is the rank that runs your function.

    `dist.get_rank()` returns the number, and `** 2` squares it.

    ```python
    return dist.get_rank() ...
    ```
    """, explanation="""
    The function is the same on every rank, and there are four results, because `dist.get_rank()` returns a different
    number on each rank.""")


@exercise
def first() -> int:
    """Return the square of this rank's number: 9 on rank 3."""
    return dist.get_rank() ** 2


exercise.edit("the-rank-itself", {" ** 2": ""}, """
    Your function returns the rank's number itself. The task asks for its square.
    Next: multiply the number by itself: `dist.get_rank() ** 2`.""")

exercise.edit("doubled", {"**": "*"}, """
    Your function returns twice the rank's number. That equals the square on ranks 0 and 2, and not on the others.
    Next: write `** 2` instead of `* 2`.""")

exercise.edit("power-of-two", {"dist.get_rank() ** 2": "2 ** dist.get_rank()"}, """
    Your function returns 2 to the power of the rank. The task asks for the rank to the power of 2.
    Next: swap the two: `dist.get_rank() ** 2`.""")

exercise.edit("caret", {"**": "^"}, """
    In Python, `^` is not a power. It is the exclusive or of the bits of two numbers. Next: write `**` instead of `^`.
    """)

exercise.edit("counts-from-one", {"dist.get_rank()": "(dist.get_rank() + 1)"}, """
    Your function squares the rank's number plus one. Ranks count from 0, as lists do.
    Next: square `dist.get_rank()`, without adding 1.""")

exercise.edit("prints-it", {"return dist.get_rank() ** 2": "print(dist.get_rank() ** 2)"}, """
    Your function returns None. A rank's result is what your function returns; what it prints is only shown.
    Next: write `return` before the square.""")


@exercise.variant
def times_itself() -> int:
    rank = dist.get_rank()
    return rank * rank


@exercise.variant
def with_pow() -> int:
    return int(torch.tensor(dist.get_rank()).pow(2))


EXERCISES = (exercise,)


def result_of_a_rank(rng: random.Random) -> Numeric:
    world_size = rng.choice([6, 8, 10])
    rank = rng.randrange(4, world_size)
    return Numeric(
        prompt=f"```python\nrun = World({world_size}).run(lambda: 10 * dist.get_rank())\n```\n\nWhat is `run[{rank}]`?",
        expected=10 * rank,
        tolerance=0,
        right="`run[rank]` is what that rank returned.",
        wrong="Replace `dist.get_rank()` by the rank's number, then multiply by 10.",
        mistakes=(
            Misreading.near(10 * (rank - 1), "Ranks count from 0."),
            Misreading.near(10 * world_size, "That is ten times the number of all ranks. Use the rank's own number."),
            Misreading.near(rank, "That is the rank's number; the function returns ten times as much."),
        ),
    )


QUIZ = Quiz(name="start", title="Start here", questions=(
    Question(id="result-of-a-rank", ask=result_of_a_rank),
    Question(id="one-rank-fails", ask=Choice.read("""
        One of four ranks raises an exception while the others wait for it. What happens in this course?

        - [x] All ranks are stopped, and one message names the rank that failed and the line
          > This takes about a second. The next run works as if nothing had happened.
        - [ ] The others wait until you restart the kernel
          > That happens with bare processes. A world stops the other ranks.
        - [ ] The others go on without the rank that failed
          > They cannot, because they wait for a call that the failed rank will never make.
        - [ ] The rank is started again
          > Nothing is repeated. You fix the line and run the cell again.""")),
))
