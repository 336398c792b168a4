"""Say hello by rank."""

import random

import torch.distributed as dist

from ...exercises import Case, Exercise, draw_world_size


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    return Case(world_size=world_size, args=lambda rank: ())


exercise = Exercise("ranks.hello", title="Say hello by rank", draw=draw, task="""
    Return the sentence `"rank 2 of 4 says hello"`. Replace 2 by the number of the rank that runs your function, and 4
    by the number of all ranks.""", hints="""
    Every rank runs the same lines. How can a rank find out which one it is?

    `torch.distributed` knows a rank's number and the number of all ranks. Ask for both inside the function.

    `dist.get_rank()` and `dist.get_world_size()`.

    ```python
    return f"rank {dist.get_rank()} of {...} says hello"
    ```
    """, explanation="""
    The function is the same on every rank. The result of `dist.get_rank()` differs: 0 on the first rank,
    `dist.get_world_size() - 1` on the last. Nearly everything that ranks do differently begins with these two numbers.
    """)


@exercise
def hello() -> str:
    """Return this rank's greeting; on rank 2 of 4 it is "rank 2 of 4 says hello"."""
    return f"rank {dist.get_rank()} of {dist.get_world_size()} says hello"


exercise.edit("prints-it", {"return f": "print(f", 'hello"': 'hello")'}, """
    Your function prints the sentence and returns None. `World.run` shows what a rank prints, and gives you what it
    returns. Next: write `return` instead of `print`.""")

exercise.edit("counts-from-one", {"dist.get_rank()": "dist.get_rank() + 1"}, """
    Your ranks count from 1. Ranks count from 0, as lists do: with 4 ranks, the last one is rank 3.
    Next: use `dist.get_rank()` as it is.""")

exercise.edit("swapped", {"dist.get_rank()": "dist.get_world_size()", "dist.get_world_size()": "dist.get_rank()"}, """
    You swapped the two numbers. The rank comes first, then the number of ranks. Next: swap them.""")

exercise.edit("four-ranks", {"{dist.get_world_size()}": "4"}, """
    Your function says that every world has 4 ranks, and this one has a different number of ranks.
    Next: use `dist.get_world_size()` instead of 4.""")

exercise.edit("always-rank-zero", {"{dist.get_rank()}": "0"}, """
    Every rank says that it is rank 0. All ranks run the same code, so a number in the code is the same on all of them.
    Next: use `dist.get_rank()` instead of 0.""")

exercise.edit("only-rank-zero", {"return": "if dist.get_rank() == 0:\n    return"}, """
    Only rank 0 returns the sentence; the other ranks return None. The task asks every rank to say hello.
    Next: take the `return` out of the `if`.""")

exercise.edit("no-f", {'f"': '"'}, """
    The braces appear in your sentence as they are. Python replaces them only in an f-string.
    Next: put an f before the quotation mark: f"rank {...}".""")

exercise.edit("no-f-and-no-braces", {'f"': '"', "{dist.get_rank()}": "dist.get_rank()",
    "{dist.get_world_size()}": "dist.get_world_size()"}, """
    Your sentence contains the names of the two functions: Python does not call a function inside quotation marks.
    Next: put an f before the quotation mark, and each call in braces: f"rank {...}".""")


@exercise.variant
def with_format() -> str:
    return "rank {} of {} says hello".format(dist.get_rank(), dist.get_world_size())  # noqa: UP032


@exercise.variant
def from_the_group() -> str:
    group = dist.group.WORLD
    assert group is not None
    return " ".join(["rank", str(group.rank()), "of", str(group.size()), "says", "hello"])
