"""Lesson 00, start here: one exercise and two questions that show how the course works."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist

from ..quizzes import Choice, Numeric, Option, Question, Quiz, register
from ..quizzes import Mistake as Misreading
from .form.declare import Case, Exercise, Mistake


def first() -> int:
    """Return the square of this rank's number: 9 on rank 3."""
    raise NotImplementedError


def square() -> int:
    """Return the square of this rank's number: 9 on rank 3."""
    return dist.get_rank() ** 2


def the_rank_itself() -> int:
    return dist.get_rank()


def doubled() -> int:
    return 2 * dist.get_rank()


def power_of_two() -> int:
    return int(2 ** dist.get_rank())


def caret() -> int:
    return dist.get_rank() ^ 2


def counts_from_one() -> int:
    return (dist.get_rank() + 1) ** 2


def world_size_squared() -> int:
    return dist.get_world_size() ** 2


def always_nine() -> int:
    return 9


def prints_it() -> None:
    print(dist.get_rank() ** 2)


def times_itself() -> int:
    rank = dist.get_rank()
    return rank * rank


def with_pow() -> int:
    return int(torch.tensor(dist.get_rank()).pow(2))


def draw(rng: random.Random, number: int) -> Case:
    world_size = (4, 1, 2, 3)[number] if number < 4 else rng.randint(2, 4)
    return Case(world_size=world_size, args=lambda rank: (), about=f"{world_size} rank{'s' * (world_size > 1)}")


EXERCISES = (
    Exercise(
        name="start.first",
        title="Your first exercise",
        task="Return the square of the rank's number: 0 on rank 0, 1 on rank 1, 4 on rank 2, and so on.",
        stub=first,
        reference=square,
        draw=draw,
        variants={"times-itself": times_itself, "pow": with_pow},
        mistakes=[
            Mistake(
                id="the-rank-itself",
                solution=the_rank_itself,
                told="You return the rank's number as it is. Its square was asked for.",
                action="Multiply it by itself: `dist.get_rank() ** 2`.",
            ),
            Mistake(
                id="doubled",
                solution=doubled,
                told="You return twice the rank's number. On ranks 0 and 2 that is the square as well, and on "
                "the others it is not.",
                action="Multiply the number by itself, not by 2: `** 2` in place of `* 2`.",
            ),
            Mistake(
                id="power-of-two",
                solution=power_of_two,
                told="You return 2 to the power of the rank, and the rank to the power of 2 was asked for.",
                action="Swap the two: `dist.get_rank() ** 2`.",
            ),
            Mistake(
                id="caret",
                solution=caret,
                told="In Python `^` is not a power but the exclusive or of two numbers' bits.",
                action="Write `**` in place of `^`.",
            ),
            Mistake(
                id="counts-from-one",
                solution=counts_from_one,
                told="You square the rank's number plus one. Ranks count from 0, as lists do.",
                action="Use `dist.get_rank()` as it is.",
            ),
            Mistake(
                id="world-size-squared",
                solution=world_size_squared,
                told="You square the number of all ranks, which is the same on each of them.",
                action="Use `dist.get_rank()`, the number of this one.",
            ),
            Mistake(
                id="always-nine",
                solution=always_nine,
                told="Every rank returns 9, which is right on rank 3 alone.",
                action="Compute the square from `dist.get_rank()`.",
            ),
            Mistake(
                id="prints-it",
                solution=prints_it,
                told="Your function returns nothing. A rank's result is what it returns; what it prints is only shown.",
                action="Write `return` before the square.",
            ),
        ],
        hints=[
            "Every rank runs the same line. What differs between them, and how did the cell above ask for it?",
            "The square of a number is the number times itself. The number is the rank that runs your function.",
            "`dist.get_rank()` gives the number, and `** 2` squares it.",
            "```python\nreturn dist.get_rank() ...\n```",
        ],
        explanation="One function, the same on every rank, and four results: `dist.get_rank()` is what differs.",
    ),
)


def result_of_a_rank(rng: random.Random) -> Numeric:
    world_size = rng.choice([6, 8, 10])
    rank = rng.randrange(4, world_size)
    return Numeric(
        prompt=f"```python\nrun = World({world_size}).run(lambda: 10 * dist.get_rank())\n```\n\nWhat is `run[{rank}]`?",
        expected=10 * rank,
        tolerance=0,
        right="It is what that rank returned.",
        wrong="Put the rank's number in place of `dist.get_rank()`.",
        mistakes=(
            Misreading.near(10 * (rank - 1), "Ranks count from 0."),
            Misreading.near(10 * world_size, "That would be computed from the number of all ranks."),
            Misreading.near(rank, "That is the rank's number; the function returns ten times as much."),
        ),
    )


QUIZ = register(
    Quiz(
        name="start",
        title="Start here",
        questions=(
            Question(id="result-of-a-rank", ask=result_of_a_rank),
            Question(
                id="one-rank-fails",
                ask=Choice(
                    prompt="One of four ranks raises an exception while the others wait for it. What happens in this "
                    "course?",
                    options=(
                        Option(
                            text="All ranks are stopped, and one message tells which rank failed, and where",
                            right=True,
                            feedback="Within about a second, and the next run works as if nothing had happened.",
                        ),
                        Option(
                            text="The others wait until you restart the kernel",
                            feedback="So it would be with bare processes. A world ends the other ranks.",
                        ),
                        Option(
                            text="The others go on without it",
                            feedback="They cannot: what they wait for will never come.",
                        ),
                        Option(
                            text="The rank is started again",
                            feedback="Nothing is repeated. You fix the line and run the cell again.",
                        ),
                    ),
                ),
            ),
        ),
    )
)
