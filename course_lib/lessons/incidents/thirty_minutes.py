"""Incident: one rank works, the others wait, and the time limit ends the job."""

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...exercises import Case, Exercise, Solution

PAUSE = 1.2
"""Seconds that the 13th text of a rank takes in the incident."""


class Tokenizer:
    """Counts the texts. The 13th is slow, so a time limit always stops the incident between two lines of progress.

    A token is the number of a character, counted from "0". So token 0 is no padding: the first text ends with it.
    """

    def __init__(self, pause: float) -> None:
        self.pause, self.count = pause, 0

    def __call__(self, text: str) -> list[int]:
        self.count += 1
        if self.count == 13:
            time.sleep(self.pause)
        return [byte - ord("0") for byte in text.encode()]


def draw(rng: random.Random, number: int) -> Case:
    world_size = (4, 2, 3)[number % 3]
    count = (6 if number == 0 else 3) * world_size
    texts = [rng.choice("abcdef") * rng.randint(1, 4) + str(n) for n in range(count)]
    if number > 0:
        texts[-1], texts[1] = texts[0], texts[0]  # a text may come twice, also within a part
    what = f"{len(texts)} texts"
    return Case(world_size=world_size, args=lambda rank: (texts, Tokenizer(PAUSE if number == 0 else 0.0)), what=what)


def prepared(solution: Solution, texts: list[str], tokenize: Tokenizer) -> dict[str, Any]:
    return {"tokens": solution(texts, tokenize), "texts that this rank tokenized": tokenize.count}


exercise = Exercise("incidents.thirty_minutes", title="Incident: thirty minutes", draw=draw, trial=prepared,
    answers={
        "where": "rank 0, at line 10",
        "why": "less work for the slowest rank",
    },
    inputs_matter=False, case_count=3, task="""
    The job ends before its first step, always after the same time: [LongLoRA, issue
    45](https://github.com/JIA-Lab-research/LongLoRA/issues/45). Repair the program until its docstring is true.
    """, hints="""
    What does rank 0 do while the others wait? How long would it take with four times as many texts?

    The work can be divided: each rank tokenizes a part of the texts, and then all ranks exchange their parts.

    `texts[rank::world_size]` is a part. `dist.all_gather_object(parts, mine)` brings all parts to all ranks.

    ```python
    mine = [tokenize(text) for text in texts[...]]
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(...)
    return [parts[n % dist.get_world_size()][...] for n in range(len(texts))]
    ```
    """, explanation="""
    No rank is broken here. Three ranks wait in a broadcast for rank 0, and the limit of the collective ends them, not
    the work. A longer limit makes the job pass and keeps four GPUs idle for half an hour; with more data it ends again.
    Divide the work, or do it before the job, on machines without GPUs. A time limit should be a little above the
    longest wait that you can explain.
    """)


@exercise
def prepare(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """Return the tokens of all texts, in their order, on every rank.

    `tokenize(text)` is slow. All ranks share the work: each tokenizes as many texts as the others. They divide evenly.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = [tokenize(text) for text in texts[rank::world_size]]
    parts: list[Any] = [None] * world_size
    dist.all_gather_object(parts, mine)
    return [parts[n % world_size][n // world_size] for n in range(len(texts))]


@exercise.start
def start(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    tokens = []
    if dist.get_rank() == 0:
        for number, text in enumerate(texts, 1):
            tokens.append(tokenize(text))
            if number % 8 == 0:
                print(f"tokenized {number} of {len(texts)}")
    box = [tokens]
    dist.broadcast_object_list(box)
    return box[0]


@exercise.mistake
def still_one_rank(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """Rank 0 still tokenizes all texts, and the other ranks wait for it. Next: give each rank a part of the texts."""
    box = [[tokenize(text) for text in texts] if dist.get_rank() == 0 else []]
    dist.broadcast_object_list(box)
    return box[0]


@exercise.mistake
def longer_time_limit(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """Rank 0 still tokenizes all texts. A longer limit only lets the other ranks wait longer. Next: divide the work."""
    group = dist.new_group(timeout=timedelta(hours=4))
    box = [[tokenize(text) for text in texts] if dist.get_rank() == 0 else []]
    dist.broadcast_object_list(box, group=group)
    return box[0]


@exercise.mistake
def waits_in_a_barrier(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """Rank 0 still tokenizes all texts, and a barrier or more calls do not change that. Next: divide the work."""
    box = [[tokenize(text) for text in texts] if dist.get_rank() == 0 else []]
    dist.barrier()
    dist.broadcast_object_list(box)
    return box[0]


@exercise.mistake
def everything_everywhere(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """Every rank tokenizes all texts. Nobody waits, but the job takes as long as before, on every rank's processors.
    Next: give each rank a part, and exchange the parts."""
    return [tokenize(text) for text in texts]


exercise.edit("parts-in-rank-order", {"[parts[n % world_size][n // world_size] for n in range(len(texts))]":
    "[tokens for part in parts for tokens in part]"}, """
    You put the parts together one rank after the other, and the texts were dealt out one by one. The order is lost.
    Next: take text n from rank n % world_size.
    """)

exercise.edit("only-its-own-part", {"[parts[n % world_size][n // world_size] for n in range(len(texts))]": "mine"}, """
    Each rank returns its own part. The task asks for all tokens, on every rank. Next: put all parts together.
    """)

exercise.edit("only-on-rank-zero", {"dist.all_gather_object(parts, mine)":
    "dist.gather_object(mine, parts if rank == 0 else None)\nif rank > 0:\n    return []"}, """
    Only rank 0 gets all parts: `gather_object` brings them to one rank. Next: use `dist.all_gather_object`.
    """)

exercise.variant_edit("one-block-each", {"texts[rank::world_size]":
    "texts[rank * len(texts) // world_size : (rank + 1) * len(texts) // world_size]",
    "[parts[n % world_size][n // world_size] for n in range(len(texts))]": "sum(parts, [])"})


@exercise.variant
def a_broadcast_each(texts: list[str], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = [tokenize(text) for text in texts[rank::world_size]]
    tokens: list[list[int]] = [[] for _ in texts]
    for src in range(world_size):
        box = [mine]
        dist.broadcast_object_list(box, src)
        tokens[src::world_size] = box[0]
    return tokens
