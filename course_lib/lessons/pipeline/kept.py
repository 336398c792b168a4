"""The activations that a schedule keeps."""

import random

from ...exercises import Case, Exercise
from .one_forward_one_backward import one_forward_one_backward

UNEVEN = ("F0 B0 F1 F2 F3 B1 B2 F4 B3 B4", "F0 F1 F2 B2 F3 B3 B1 F4 F5 F6 B6 B5 B4 B0")
"""The first keeps most in the middle; in the second, backwards come in a different order than forwards."""


def draw(rng: random.Random, number: int) -> Case:
    rank, world_size, micro_batches = ((0, 4, 6), (1, 3, 5), (2, 4, 8), (1, 2, 3))[number % 4]
    if number % 6 > 3:
        text = UNEVEN[number % 2]
        schedule = [({"F": "forward", "B": "backward"}[action[0]], int(action[1:])) for action in text.split()]
        what = f"the schedule {text}"
    elif number % 6 == 2:  # goes further ahead later than at first
        schedule = [("forward", 0), ("forward", 1), ("backward", 0), *(("forward", n) for n in range(2, micro_batches))]
        schedule += [("backward", n) for n in range(1, micro_batches)]
        what = f"a schedule of {micro_batches} micro-batches"
    elif number % 6 == 1:
        schedule = [("forward", n) for n in range(micro_batches)] + [("backward", n) for n in range(micro_batches)]
        what = f"all forward, all backward, {micro_batches} micro-batches"
    else:
        schedule = one_forward_one_backward(rank, world_size, micro_batches)
        what = f"1F1B on rank {rank} of {world_size}, {micro_batches} micro-batches"
    return Case(world_size=0, args=lambda _: (list(schedule),), what=what)


exercise = Exercise("pipeline.kept", title="Micro-batches in memory", draw=draw, inputs_matter=False, task="""
    Return the largest number of micro-batches whose activations a rank keeps at one time. The activations of a
    micro-batch are kept from its forward until its backward has ended.
    """, hints="""
    Go through the schedule and keep a count. What changes it, and when is it largest?

    A forward adds one, a backward takes one away.

    Note the largest count after each action, not the count at the end.

    ```python
    now, most = 0, 0
    for kind, _ in schedule:
        now += ...
        most = ...
    ```
    """, explanation="""
    On rank r of P, 1F1B keeps at most P − r micro-batches; all forward first keeps all M. The first rank of a pipeline
    needs the most memory for activations, so it is often given fewer blocks.
    """)


@exercise
def kept(schedule: list[tuple[str, int]]) -> int:
    """Return the largest number of micro-batches whose activations are kept at one time.

    The schedule is a list of pairs such as ("forward", 0) and ("backward", 0).
    """
    now, most = 0, 0
    for kind, _ in schedule:
        now += 1 if kind == "forward" else -1
        most = max(most, now)
    return most


exercise.edit("all-that-went-forward", {"1 if kind == \"forward\" else -1": "kind == \"forward\""}, """
    You count the micro-batches that went forward, and never one that came back. A backward frees the activations of its
    micro-batch. Next: subtract one at each backward.
    """)

exercise.edit("at-the-end", {"return most": "return now"}, """
    You return the count at the end, when all micro-batches have come back: 0. The memory must hold the largest count.
    Next: keep the maximum on the way.
    """)

exercise.edit("at-first-backward", {"most = max(most, now)": "if kind == \"backward\":\n    break\nmost = now"}, """
    You stop at the first backward. That is right where all forwards come first; a schedule may go further ahead later.
    Next: go through the whole schedule and keep the maximum.
    """)

exercise.edit("the-actions", {"return most": "return len(schedule)"}, """
    You return the number of actions. Each micro-batch has two, and its activations are kept between them.
    Next: count up at a forward and down at a backward, and return the largest count.
    """)

exercise.edit("after-the-backward", {"max(most, now)": "max(most, now if kind == \"backward\" else 0)"}, """
    You look at the count after backwards only, when one micro-batch has just been freed: one too few.
    Next: compare the count after every action.
    """)


@exercise.mistake
def longest_run(schedule: list[tuple[str, int]]) -> int:
    """You return the longest run of forwards. One backward between them frees one micro-batch only, not all.
    Next: subtract one at each backward instead of starting again."""
    run, longest = 0, 0
    for kind, _ in schedule:
        run = run + 1 if kind == "forward" else 0
        longest = max(longest, run)
    return longest


exercise.variant_edit("both-by-name", {"1 if kind == \"forward\" else -1":
    "{\"forward\": 1, \"backward\": -1}[kind]"})


@exercise.variant
def with_sets(schedule: list[tuple[str, int]]) -> int:
    held: set[int] = set()
    counts = [0]
    for _kind, number in schedule:
        held ^= {number}
        counts.append(len(held))
    return max(counts)
