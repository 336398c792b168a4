"""The first exercise, which shows how the course works."""

import random

import torch
import torch.distributed as dist

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    world_size = (4, 1, 2, 3, 6)[number] if number < 5 else rng.randint(2, 4)  # 6: more than the lesson's worlds
    return Case(world_size=world_size, args=lambda rank: ())


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
    Next: multiply the number by itself.""")

exercise.edit("doubled", {"**": "*"}, """
    Your function returns twice the rank's number. That equals the square on ranks 0 and 2, and not on the others.
    Next: make a power of it, not a multiple.""")

exercise.edit("power-of-two", {"dist.get_rank() ** 2": "2 ** dist.get_rank()"}, """
    Your function returns 2 to the power of the rank. The task asks for the rank to the power of 2.
    Next: swap the base and the exponent.""")

exercise.edit("caret", {"**": "^"}, """
    In Python, `^` is not a power. It is the exclusive or of the bits of two numbers. Next: look up how Python writes a
    power.
    """)

exercise.edit("rank-as-a-name", {"dist.get_rank()": "rank"}, """
    Your function reads a variable `rank`, which does not exist: a rank's number is the result of a call of torch.
    Next: call `dist.get_rank()` in your function.""")

exercise.edit("prints-it", {"return dist.get_rank() ** 2": "print(dist.get_rank() ** 2)"}, """
    Your function returns None. A rank's result is what your function returns; what it prints is only shown.
    Next: write `return` before the square.""")

exercise.edit("times-the-world-size", {"** 2": "* dist.get_world_size()"}, """
    Your function multiplies the rank's number by the number of ranks. That is the square only by chance.
    Next: multiply the rank's number by itself.""")

# The next two are functions, not edits, so they make no pairs: for `2 * dist.get_world_size()`, neither message of the
# pair would be true.


@exercise.mistake
def counts_from_one() -> int:
    """Your function squares the rank's number plus one. Ranks count from 0, as lists do. Next: square
    `dist.get_rank()`, without adding 1."""
    return (dist.get_rank() + 1) ** 2


@exercise.mistake
def world_size_squared() -> int:
    """Your function squares the number of ranks, which is the same on all of them. The task asks for the square of the
    rank's own number. Next: which call did `ten_times` make to tell the ranks apart?"""
    return dist.get_world_size() ** 2


@exercise.variant
def times_itself() -> int:
    rank = dist.get_rank()
    return rank * rank


@exercise.variant
def with_pow() -> int:
    return int(torch.tensor(dist.get_rank()).pow(2))
