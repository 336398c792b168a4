"""Say hello by rank."""

from __future__ import annotations

import random

import torch.distributed as dist

from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import draw_world_size


def hello() -> str:
    """Return this rank's greeting; on rank 2 of 4 it is "rank 2 of 4 says hello"."""
    return f"rank {dist.get_rank()} of {dist.get_world_size()} says hello"


def prints_it() -> None:
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} says hello")


def counts_from_one() -> str:
    return f"rank {dist.get_rank() + 1} of {dist.get_world_size()} says hello"


def highest_rank() -> str:
    return f"rank {dist.get_rank()} of {dist.get_world_size() - 1} says hello"


def swapped() -> str:
    return f"rank {dist.get_world_size()} of {dist.get_rank()} says hello"


def four_ranks() -> str:
    return f"rank {dist.get_rank()} of 4 says hello"


def always_rank_zero() -> str:
    return f"rank 0 of {dist.get_world_size()} says hello"


def only_rank_zero() -> str | None:
    if dist.get_rank() == 0:
        return f"rank {dist.get_rank()} of {dist.get_world_size()} says hello"
    return None


def the_example() -> str:
    return "rank 2 of 4 says hello"


def no_f() -> str:
    return "rank {dist.get_rank()} of {dist.get_world_size()} says hello"


def with_format() -> str:
    return "rank {} of {} says hello".format(dist.get_rank(), dist.get_world_size())  # noqa: UP032


def from_the_group() -> str:
    group = dist.group.WORLD
    assert group is not None
    return " ".join(["rank", str(group.rank()), "of", str(group.size()), "says", "hello"])


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    return Case(world_size=world_size, args=lambda rank: (), about=f"{world_size} rank{'s' * (world_size > 1)}")


HELLO = Exercise(
    name="ranks.hello",
    title="Say hello by rank",
    task='Return the sentence `"rank 2 of 4 says hello"`, with the number of the rank that runs your function in '
    "place of 2, and the number of all ranks in place of 4.",
    stub=stubs.hello,
    reference=hello,
    draw=draw,
    variants={"format": with_format, "the-group": from_the_group},
    mistakes=[
        Mistake(
            id="prints-it",
            solution=prints_it,
            told="Your function prints the sentence and returns nothing. What a rank prints is only shown; what it "
            "returns is what others can work with.",
            action="Write `return` in place of `print`.",
        ),
        Mistake(
            id="counts-from-one",
            solution=counts_from_one,
            told="Your ranks count from 1. Ranks count from 0, as lists do: with 4 ranks the last one is rank 3.",
            action="Use `dist.get_rank()` as it is.",
        ),
        Mistake(
            id="highest-rank",
            solution=highest_rank,
            told='After "of" stands the number of the last rank, which is one less than the number of ranks.',
            action="Use `dist.get_world_size()` as it is.",
        ),
        Mistake(
            id="swapped",
            solution=swapped,
            told="The two numbers are in each other's place: first comes the rank, then how many there are.",
            action="Swap them.",
        ),
        Mistake(
            id="four-ranks",
            solution=four_ranks,
            told="Your function says that there are 4 ranks in every world, and this one has another number of them.",
            action="Ask `dist.get_world_size()` instead of writing the number down.",
        ),
        Mistake(
            id="always-rank-zero",
            solution=always_rank_zero,
            told="Every rank says that it is rank 0. They all run the same code, and only asking tells them apart.",
            action="Ask `dist.get_rank()` for the number.",
        ),
        Mistake(
            id="only-rank-zero",
            solution=only_rank_zero,
            told="Only rank 0 returns the sentence; the others return None. Every rank was asked to say hello.",
            action="Take the `return` out of the `if`.",
        ),
        Mistake(
            id="the-example",
            solution=the_example,
            told="Your function returns the example as it stands, on every rank and in every world.",
            action="Ask `dist.get_rank()` and `dist.get_world_size()` for the two numbers.",
        ),
        Mistake(
            id="no-f",
            solution=no_f,
            told="The braces stand in your sentence as they are: Python fills them in only in an f-string.",
            action='Put an f before the quotation mark: f"rank {...}".',
        ),
    ],
    hints=[
        "Every rank runs the very same lines. How can one of them find out which one it is?",
        "A rank's number, and the number of all ranks, are known to `torch.distributed`: ask it inside the function.",
        "`dist.get_rank()` and `dist.get_world_size()`.",
        '```python\nreturn f"rank {dist.get_rank()} of {...} says hello"\n```',
    ],
    explanation="The function is the same on every rank, and so are its lines. What differs is the answer to "
    "`dist.get_rank()`: 0 on the first rank, `dist.get_world_size() - 1` on the last. Nearly everything that ranks do "
    "differently begins with these two numbers.",
)
