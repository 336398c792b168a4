"""The schedule 1F1B."""

import random
from typing import Any

from ...exercises import Case, Exercise, Solution


def draw(rng: random.Random, number: int) -> Case:
    world_size, micro_batches = ((4, 6), (3, 4), (4, 2), (1, 3), (8, 8), (2, 5))[number % 6]
    what = f"{micro_batches} micro-batches on {world_size} rank{'s' * (world_size > 1)}"
    return Case(world_size=0, args=lambda _: (world_size, micro_batches), what=what)


def of_every_rank(solution: Solution, world_size: int, micro_batches: int) -> dict[str, Any]:
    return {"schedules": {f"rank {rank}": solution(rank, world_size, micro_batches) for rank in range(world_size)}}


exercise = Exercise("pipeline.one_forward_one_backward", title="One forward, one backward", draw=draw,
    trial=of_every_rank, task="""
    Return what `rank` does, in order, as pairs such as `("forward", 0)` and `("backward", 0)`. Rank r first takes
    world_size − r − 1 micro-batches forward (or all, if there are fewer). From then on it alternates: one forward, one
    backward, as long as there are forwards. Then come the backwards that are left. Both passes take the
    micro-batches in the order 0, 1, 2, ...
    """, hints="""
    The last rank can go back as soon as it has gone forward. When can the rank before it?

    There are three phases: `ahead` forwards; then pairs of a forward and a backward; then the last `ahead` backwards.

    In the second phase, forward number `ahead + n` is paired with backward number `n`.

    ```python
    ahead = min(world_size - rank - 1, micro_batches)
    schedule = [("forward", n) for n in range(ahead)]
    for n in range(micro_batches - ahead):
        schedule += [...]
    ```
    """, explanation="""
    A rank that is r steps from the end keeps at most r + 1 micro-batches, however many there are. All forwards first
    would keep them all, with the same bubble: 1F1B saves memory, and no time.
    """)


@exercise
def one_forward_one_backward(rank: int, world_size: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return this rank's schedule, as pairs of "forward" or "backward" and the number of a micro-batch.

    First `world_size - rank - 1` forwards, or all if there are fewer; then one forward and one
    backward in turn; then the backwards that are left.
    """
    ahead = min(world_size - rank - 1, micro_batches)
    schedule = [("forward", n) for n in range(ahead)]
    for n in range(micro_batches - ahead):
        schedule += [("forward", ahead + n), ("backward", n)]
    schedule += [("backward", n) for n in range(micro_batches - ahead, micro_batches)]
    return schedule


exercise.edit("all-forward-first", {"min(world_size - rank - 1, micro_batches)": "micro_batches"}, """
    Your rank takes all micro-batches forward before the first backward. This is the schedule of GPipe: right results,
    and the activations of all micro-batches in memory. Next: go forward only until the first gradient can be there,
    then alternate.
    """)

exercise.edit("too-few-micro-batches", {"min(world_size - rank - 1, micro_batches)": "world_size - rank - 1"}, """
    With fewer micro-batches than ranks your schedule has micro-batches that do not exist.
    Next: go at most `micro_batches` forward at the start.
    """)

exercise.edit("counts-from-the-front", {"world_size - rank - 1": "rank"}, """
    Your rank goes `rank` forward at the start, so that the last rank goes furthest ahead. It is the first rank that has
    to wait longest for a gradient. Next: count the ranks that follow this one.
    """)

exercise.edit("never-ahead", {"min(world_size - rank - 1, micro_batches)": "0"}, """
    Each of your ranks goes back directly after each forward. Only on the last rank is there a gradient by then. Next:
    count the ranks that follow this one, and go as far ahead at the start.
    """)

exercise.edit("same-on-every-rank", {"world_size - rank - 1": "world_size - 1"}, """
    All your ranks go equally far ahead. The last rank can go back at once, so it keeps activations for nothing.
    Next: count the ranks that follow this one.
    """)

exercise.edit("one-further-ahead", {"world_size - rank - 1": "world_size - rank"}, """
    Your rank goes one micro-batch too far ahead, and so keeps the activations of one more than it has to.
    Next: count only the ranks that follow, without this one.
    """)

exercise.edit("backward-first", {'[("forward", ahead + n), ("backward", n)]':
    '[("backward", n), ("forward", ahead + n)]'}, """
    In your second phase the backward comes before the forward. On the last rank, micro-batch 0 then goes back before it
    has gone forward. Next: in each pair, put the forward first.
    """)

exercise.edit("same-number-twice", {'("backward", n)]\n': '("backward", ahead + n)]\n',
    "range(micro_batches - ahead, micro_batches)": "range(ahead)"}, """
    In your pairs the backward has the number of the forward. Except on the last rank, the gradient of that micro-batch
    has not come yet. Next: count forwards and backwards separately.
    """)

LAST_PHASE = 'schedule += [("backward", n) for n in range(micro_batches - ahead, micro_batches)]\n'

exercise.edit("ends-too-early", {LAST_PHASE: ""}, """
    Your schedule ends with the last forward, and the last `ahead` micro-batches never go back: their gradients are
    missing. Next: add the backwards that are left.
    """)

exercise.edit("last-in-first-out", {"range(micro_batches - ahead, micro_batches)":
    "reversed(range(micro_batches - ahead, micro_batches))"}, """
    In your last phase the newest micro-batch goes back first. Its gradient comes last.
    Next: take the backwards that are left in the order of their numbers.
    """)

exercise.variant_edit("slice", {"range(micro_batches - ahead, micro_batches)":
    "range(micro_batches)[micro_batches - ahead:]"})


@exercise.variant
def by_counting(rank: int, world_size: int, micro_batches: int) -> list[tuple[str, int]]:
    schedule: list[tuple[str, int]] = []
    forward = backward = 0
    while backward < micro_batches:
        if forward < micro_batches and forward - backward < world_size - rank:
            schedule.append(("forward", forward))
            forward += 1
        else:
            schedule.append(("backward", backward))
            backward += 1
    return schedule
