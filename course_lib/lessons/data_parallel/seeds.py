"""Seeds: the same initial parameters on every rank, and different dropout."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, draw_world_size


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.randrange(100) if number != 1 else 0
    what = f"seed {seed}"
    return Case(world_size=world_size, args=lambda rank: (partial(nn.Linear, 4, 4), seed), what=what)


def compared(solution: Solution, make_model: Callable[[], nn.Linear], seed: int) -> Any:
    """Start twice with the seed and once with a different seed; compare parameters, and the dropout that follows."""
    starts = []
    for attempt, of_attempt in enumerate((seed, seed, seed + 50)):
        torch.manual_seed(900 + attempt)  # what a program left before; the same on every rank
        model = solution(make_model, of_attempt)
        if not isinstance(model, nn.Linear):
            return model
        dropout, numbers = nn.functional.dropout(torch.ones(64)).tolist(), torch.rand(10_000).tolist()
        starts.append(([param.tolist() for param in model.parameters()], dropout, numbers))
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, starts[0])
    (params, dropout, numbers), again, other = starts
    return {
        "the parameters are those of rank 0": params == everyones[0][0],
        "no other rank has this rank's dropout": [of_rank[1] for of_rank in everyones].count(dropout) == 1,
        "no other rank draws this rank's numbers earlier or later":
            # Of two independent draws about 6 numbers are equal: torch draws one of 2**24.
            sum(len({*numbers} & {*of_rank[2]}) > 100 for of_rank in everyones) == 1,
        "the same seed gives the same parameters again": params == again[0],
        "the same seed gives the same dropout again": dropout == again[1],
        "a different seed gives different parameters": params != other[0],
        "a different seed gives different dropout": dropout != other[1],
    }


exercise = Exercise("data_parallel.seeds", title="Same parameters, different dropout", draw=draw, trial=compared,
    inputs_matter=False, task="""
    Return `make_model()`, with the same parameters on every rank. Leave the random numbers in such a state that
    dropout, which comes later, drops elements on each rank independently of the other ranks. Both depend on `seed`
    only: a program that starts again with this seed repeats them, and a different seed changes them.""", hints="""
    Which random numbers have to be the same on all ranks? Which have to differ? Which of them are drawn first?

    A seed decides all random numbers that follow, until the next seed. You may seed more than once.

    `torch.manual_seed(seed)` before the model is made, `torch.manual_seed(...)` with the rank in it afterwards.

    ```python
    torch.manual_seed(seed)
    model = make_model()
    torch.manual_seed(...)
    return model
    ```
    """, explanation="""
    The first seed makes the parameters equal without a broadcast. The second one separates the ranks. With equal
    dropout, an element that rank 0 drops is dropped on all ranks, so the average over ranks contains less independent
    noise than one process has with the whole batch. No error appears. Code that cuts a *tensor* over ranks (tensor
    parallelism) needs the opposite in some places: equal dropout where ranks hold copies of the same activations.
    A shuffled dataset needs equal seeds, too, so that the ranks agree which rank takes which example. Compute seeds
    from numbers: Python's `hash` of a text, and a process id, differ from process to process. Here all ranks share one
    process, so the check cannot find a seed that depends on these.""")


@exercise
def start_model(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return `make_model()`, equal on every rank. Random numbers drawn later differ from rank to rank.

    Both depend on `seed` only: equal seeds repeat them, and a different seed changes them.
    """
    torch.manual_seed(seed)
    model = make_model()
    torch.manual_seed(seed + 1 + dist.get_rank())
    return model


FIRST, SECOND = "torch.manual_seed(seed)\n", "torch.manual_seed(seed + 1 + dist.get_rank())\n"

exercise.edit("one-seed", {SECOND: ""}, """
    After the model is made, torch's random numbers have the same seed on all ranks. The parameters agree, and so does
    everything random after them: all ranks drop the same elements. Next: seed again after the model is made,
    differently on each rank.""")

exercise.edit("rank-in-the-first-seed", {"(seed)\n": "(seed + dist.get_rank())\n", SECOND: ""}, """
    You seed with the rank before the model is made, so the ranks start from different parameters.
    Next: seed the same on every rank before `make_model()`, and put the rank into a second seed, after it.""")

exercise.edit("no-first-seed", {FIRST: ""}, """
    You make the model without a seed. Its parameters then depend on what the program drew before.
    Next: set the seed before the model is made.""")

exercise.edit("rank-without-seed", {"seed + 1 + dist.get_rank()": "dist.get_rank()"}, """
    Your second seed does not depend on `seed`, but on the rank only. Dropout is then the same in every training,
    whatever `seed` is. Next: combine `seed` and the rank.""")

exercise.edit("seed-times-rank", {"seed + 1 + dist.get_rank()": "seed * dist.get_rank()"}, """
    You multiply the seed by the rank. The product is 0 on rank 0 for every seed, and on all ranks for seed 0.
    Next: add them.""")

exercise.edit("seed-times-rank-and-one", {"seed + 1 + dist.get_rank()": "seed * (dist.get_rank() + 1)"}, """
    You multiply the seed. For seed 0 the product is 0 on every rank, and all ranks drop the same elements.
    Next: add the rank to the seed.""")

exercise.edit("never-the-same-again", {SECOND: "torch.seed()\n"}, """
    What seeds dropout differs each time, such as the time, or a number of the operating system, which `torch.seed()`
    takes. The ranks differ, and no program can repeat the training.
    Next: use `torch.manual_seed`, with a number that depends on `seed` and the rank.""")

exercise.edit("only-rank-zero-differs", {SECOND: "if dist.get_rank() > 0:\n    torch.manual_seed(seed + 1)\n"}, """
    Ranks 1, 2, ... all get the same second seed. Next: put the rank's number into the seed.""")

exercise.edit("shifts-one-sequence", {SECOND: "torch.rand(1000 * dist.get_rank())\n"}, """
    All ranks draw from one sequence of random numbers, and each rank starts further on. Their dropout looks different,
    but it is made of the same numbers, some elements apart.
    Next: seed again after the model is made, with the rank's number in the seed.""")


@exercise.variant
def broadcast_after(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(1000 * seed + dist.get_rank())
    model = make_model()
    for param in model.parameters():
        dist.broadcast(param.detach(), src=0)
    return model


@exercise.variant
def in_a_fork(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model()
