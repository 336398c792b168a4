"""Which tokens of a sequence a rank has, so that all ranks have as much to compute."""

import random

import torch
from torch import Tensor

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 4, 3, 1)[number]
    length = 2 * world_size * rng.randint(1, 3)
    return Case(world_size=world_size, args=lambda rank: (rank, world_size, length), what=f"{length} tokens")


exercise = Exercise("context.places", title="As much work for each rank", draw=draw, case_count=4, task="""
    A causal query at place p sees p + 1 keys, so the last ranks of a sequence that is cut in order have most of the
    work. Cut the sequence into 2N equal pieces, and give rank r two of them: the r-th from the front, and the r-th from
    the back. Return the places of this rank's tokens, in ascending order. 2N divides the length.
    """, hints="""
    Of 8 pieces on 4 ranks, rank 0 has pieces 0 and 7. Which ones has rank 1, and which ones rank 3?

    Piece n has the places from n · size to (n + 1) · size. Rank r has the pieces r and 2N − 1 − r.

    `torch.arange(length).chunk(2 * world_size)` gives the places of all pieces.

    ```python
    pieces = torch.arange(length).chunk(2 * world_size)
    return torch.cat([..., ...])
    ```
    """, explanation="""
    Place p from the front and place p from the back see p + 1 and length − p keys: together length + 1, for every p. So
    all ranks compute as much, and a round of the ring takes as long on each. Llama 3 was trained with this cut. Every
    tensor that goes with a token has to be cut in the same way: token, target, and position.
    """)


@exercise
def places(rank: int, world_size: int, length: int) -> Tensor:
    """Return the places of the tokens that `rank` has: [length / world_size], in ascending order."""
    pieces = torch.arange(length).chunk(2 * world_size)
    return torch.cat([pieces[rank], pieces[2 * world_size - 1 - rank]])


exercise.edit("in-order", {"chunk(2 * world_size)": "chunk(world_size)",
    "torch.cat([pieces[rank], pieces[2 * world_size - 1 - rank]])": "pieces[rank]"}, """
    You cut the sequence in order. The last rank's queries then see nearly all keys, and the first rank's few; all wait
    for the last. Next: cut into 2N pieces, and pair one from the front with one from the back.
    """)

exercise.edit("every-nth-piece", {"pieces[2 * world_size - 1 - rank]": "pieces[world_size + rank]"}, """
    Rank r has pieces r and N + r, so the last rank has the later piece of both halves, and still the most work.
    Next: count the second piece from the back.
    """)

exercise.edit("one-past-the-end", {"2 * world_size - 1 - rank": "2 * world_size - 2 - rank"}, """
    The last piece has the number 2N − 1, and belongs to rank 0. Yours begins one piece earlier. Next: check which piece
    rank 0 gets from the back.
    """)

exercise.edit("from-the-back-at-zero", {"pieces[2 * world_size - 1 - rank]": "pieces[-rank]"}, """
    Counted from the back, the last piece has the number −1. You begin with −0, which is the first piece.
    Next: check which piece rank 0 gets from the back.
    """)

exercise.edit("n-pieces", {"chunk(2 * world_size)": "chunk(world_size)",
    "pieces[2 * world_size - 1 - rank]": "pieces[world_size - 1 - rank]"}, """
    You cut into N pieces and give each rank two, so every piece has two ranks. Next: cut into 2N pieces.
    """)

exercise.edit("striped", {"torch.cat([pieces[rank], pieces[2 * world_size - 1 - rank]])":
    "torch.arange(length)[rank::world_size]"}, """
    You deal the tokens out in turns. This balances the work as well (it is called striped attention), but the task asks
    for two pieces, which the ring can compute as whole blocks. Next: give each rank one piece from the front and one
    from the back.
    """)

exercise.edit("descending", {"pieces[rank], pieces[2 * world_size - 1 - rank]":
    "pieces[2 * world_size - 1 - rank], pieces[rank]"}, """
    You have the right pieces, but the later one comes first. Next: return the places in ascending order.
    """)


@exercise.variant
def by_arithmetic(rank: int, world_size: int, length: int) -> Tensor:
    size = length // (2 * world_size)
    front = torch.arange(rank * size, (rank + 1) * size)
    return torch.cat([front, length - 1 - front.flip(0)])


@exercise.variant
def folded(rank: int, world_size: int, length: int) -> Tensor:
    both = torch.arange(length).view(2, world_size, -1)
    return torch.cat([both[0, rank], both[1].flip(0)[rank]])
