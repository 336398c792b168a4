"""Which tokens an expert of limited capacity takes."""

import random

import torch
from torch import Tensor
from torch.nn import functional as F

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    count, experts, capacity = rng.randint(8, 12), rng.randint(2, 4), rng.randint(1, 2)
    choice = torch.tensor([rng.choice([0, rng.randrange(experts)]) for _ in range(count)])
    choice[:3] = torch.tensor([0, 1, 0])
    if number == 1:
        capacity = count
    if number == 2:
        choice[:] = experts - 1
    what = f"{count} tokens, {experts} experts, capacity {capacity}"
    return Case(world_size=1, args=lambda rank: (choice.clone(), experts, capacity), what=what)


exercise = Exercise("context.capacity", title="A full expert", draw=draw, case_count=4, task="""
    An expert takes at most `capacity` tokens; those that come too late are dropped, and the block passes them on
    unchanged. Return, for each token, whether its expert takes it. Earlier tokens go first.
    """, hints="""
    How many tokens before this one have chosen the same expert?

    A running count for each expert says it. A table with a row for each token and a column for each expert, 1 where the
    token chose it, has these counts as its running sum from the top.

    `F.one_hot(choice, experts)`, `.cumsum(dim=0)`, and `.gather(1, choice[:, None])` takes each token's own column.

    ```python
    counts = F.one_hot(choice, experts).cumsum(dim=0)
    return ... <= capacity
    ```
    """, explanation="""
    With a capacity, every expert's buffer has a fixed size, so nothing has to be exchanged before the tokens travel,
    and no rank waits for an expert that everyone chose. The price is padding where an expert gets few tokens, and lost
    tokens where it gets many. An auxiliary loss (section 10) pushes the router towards equal shares, so that both stay
    small.
    """)


@exercise
def within_capacity(choice: Tensor, experts: int, capacity: int) -> Tensor:
    """Return [n], whether the expert that a token chose takes it; the first `capacity` tokens of an expert are taken.

    choice: [n], the number of each token's expert, below `experts`.
    """
    counts = F.one_hot(choice, experts).cumsum(dim=0)
    return counts.gather(1, choice[:, None])[:, 0] <= capacity


exercise.edit("one-too-few", {"<= capacity": "< capacity"}, """
    Each full expert takes one token too few. A running count that includes the token itself is 1 for the first. Next:
    take a token if fewer than `capacity` tokens before it chose the same expert.
    """)

exercise.edit("one-too-many", {"<= capacity": "<= capacity + 1"}, """
    Each full expert takes one token too many. Next: take a token if fewer than `capacity` tokens before it chose the
    same expert.
    """)

exercise.edit("all-together", {"counts.gather(1, choice[:, None])[:, 0]": "torch.arange(1, len(choice) + 1)"}, """
    You count all tokens, whichever expert they chose. Each expert has a capacity of its own. Next: count for each token
    the earlier tokens of the same expert.
    """)

exercise.edit("full-experts-take-none", {"counts.gather(1, choice[:, None])[:, 0]": "counts[-1][choice]"}, """
    You drop all tokens of an expert that got too many. It still takes the first ones. Next: compare a token's place
    among those of its expert.
    """)

exercise.edit("last-tokens", {"F.one_hot(choice, experts).cumsum(dim=0)":
    "F.one_hot(choice, experts).flip(0).cumsum(dim=0).flip(0)"}, """
    You take the last tokens of each expert. Next: count from the first token on.
    """)

exercise.edit("across-experts", {"cumsum(dim=0)": "cumsum(dim=1)"}, """
    Every token is taken, also by an expert that is full. One possible reason: a running sum along the experts of one
    token, where every token looks like its expert's first. Next: print for each token how many tokens of its expert you
    count. The number has to grow from one token of an expert to the next.
    """)

exercise.edit("capacity-shared", {"<= capacity": "<= capacity // experts"}, """
    You divide the capacity by the number of experts. It is the capacity of each. Next: compare with `capacity` itself.
    """)


@exercise.variant
def one_after_the_other(choice: Tensor, experts: int, capacity: int) -> Tensor:
    taken, kept = [0] * experts, []
    for expert in choice.tolist():
        taken[expert] += 1
        kept.append(taken[expert] <= capacity)
    return torch.tensor(kept)


exercise.variant_edit("by-product", {"counts.gather(1, choice[:, None])[:, 0]":
    "(counts * F.one_hot(choice, experts)).sum(dim=1)"})
