"""An embedding that is cut along the vocabulary."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal, only_calls
from .all_reduce import all_reduce
from .data import my_part, output_and_gradients


def draw(rng: random.Random, number: int) -> Case:
    """Draw tokens of the first rank only in draw 1, so that the others have none of their rows."""
    world_size, seed, width = draw_world_size(rng, number), rng.getrandbits(32), rng.randint(2, 3)
    vocab = world_size * rng.randint(2, 3)
    tokens = [*range(vocab), *(rng.randrange(vocab) for _ in range(2))]  # all of them, so the first and last of a part
    rng.shuffle(tokens)
    if number == 1:
        tokens = [token % (vocab // world_size) for token in tokens]
    return Case(
        world_size=world_size,
        args=lambda rank: (torch.tensor(tokens), my_part(normal(vocab, width, seed=seed), 0), seed),
        what=f"a vocabulary of {vocab}, the tokens {', '.join(map(str, tokens))}",
    )


def one_step(solution: Solution, tokens: Tensor, rows: Tensor, seed: int) -> Any:
    """Return the vectors of the tokens, and the gradient of this rank's rows."""
    rows = rows.clone().requires_grad_()
    slopes = normal(len(tokens), rows.shape[1], seed=seed + 1)
    result = output_and_gradients(solution(tokens, rows), slopes, rows=rows)
    idle = not (tokens // len(rows) == dist.get_rank()).any()
    if idle and isinstance(result, dict) and result["gradient of rows"] is None:  # as good as zeros
        result["gradient of rows"] = torch.zeros_like(rows)
    return result


exercise = Exercise("tensor.embedding", title="Cut the vocabulary", draw=draw, trial=one_step, case_count=4,
    rules=[only_calls("all_reduce"), at_most("all_reduce", 1)], task="""
    The embedding has a row for each token of the vocabulary, and this rank has `len(rows)` of them: rank r has the rows
    from `r * len(rows)` on. Every rank gets the same tokens, of the whole vocabulary. Return the vector of each token,
    on every rank. Use one all-reduce, your `all_reduce`. The gradient of a row comes from its own tokens only.
    """, hints="""
    Exactly one rank has the row of a token. What can the other ranks add so that the sum over ranks is this row?

    Zeros. Each rank looks up the tokens that it has, uses zeros for the other tokens, and the ranks sum.

    `index = tokens - rank * len(rows)` is the place among this rank's rows. It is outside of 0 to `len(rows) - 1` for
    tokens of other ranks: `torch.where(mine, index, 0)` looks up row 0 for these, and the result times `mine` is zero.

    ```python
    index = tokens - ...
    mine = (index >= 0) & ...
    found = F.embedding(torch.where(mine, index, 0), rows)
    return all_reduce(...)
    ```
    """, explanation="""
    The sum has one summand that is not zero. The mask matters in backward, too: without it, row 0 would get the
    gradients of all tokens that this rank does not have. The all-reduce sends [tokens, width], however large the
    vocabulary is. A gather of the rows would send the whole
    embedding, often a hundred thousand rows, in each step.
    """)


@exercise
def embedding(tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the vector of each token, [tokens, width], on every rank.

    tokens: [tokens], numbers of the whole vocabulary, the same on every rank.
    rows: [vocabulary / N, width], this rank's rows.
    Use one all-reduce, and no other call.
    """
    index = tokens - dist.get_rank() * len(rows)
    mine = (index >= 0) & (index < len(rows))
    found = F.embedding(torch.where(mine, index, 0), rows)
    return all_reduce(found * mine[:, None])


exercise.edit("not-masked", {"found * mine[:, None]": "found"}, """
    For a token of a different rank you look up row 0 and add it. Next: set the vectors of these tokens to zero before
    the sum.
    """)

exercise.edit("cut-off", {"found * mine[:, None]": "found",
    "torch.where(mine, index, 0)": "index.clamp(0, len(rows) - 1)"}, """
    You move the place of a different rank's token into the range, with `clamp`, and add the first or the last row.
    Next: set the vectors of these tokens to zero before the sum.
    """)

exercise.edit("whole-vocabulary", {"tokens - dist.get_rank() * len(rows)": "tokens"}, """
    You use a token's number as the place among this rank's rows. Rank 1's first row belongs to token `len(rows)`, not
    to token 0. Next: subtract the first token of this rank.
    """)

exercise.edit("modulo", {"index >= 0) & (index < len(rows)": "index >= 0) | (index < 0",
    "tokens - dist.get_rank() * len(rows)": "tokens % len(rows)"}, """
    Every rank takes every token for its own: `tokens % len(rows)` is always a place among its rows.
    Next: find out which tokens this rank has, and set the others to zero.
    """)

exercise.edit("no-sum", {"all_reduce(found * mine[:, None])": "found * mine[:, None]"}, """
    Each rank returns the vectors of its own tokens, and zeros for the others. Next: sum over ranks.
    """)

exercise.edit("average", {"all_reduce(found * mine[:, None])":
    "all_reduce(found * mine[:, None]) / dist.get_world_size()"}, """
    You average over ranks. All but one of the summands of a token are zero. Next: leave out the division.
    """)

exercise.edit("one-too-many", {"index < len(rows)": "index <= len(rows)"}, """
    You take the first token of the next rank for your own, and there is no row for it.
    Next: count the places: the last one is less than the number of rows.
    """)

exercise.edit("idle-rank-leaves", {"found =": "if not mine.any():\n    return rows.new_zeros(len(tokens), "
    "rows.shape[1], requires_grad=True)\nfound ="}, """
    A rank that has none of the tokens returns early. The others wait for it, because an all-reduce needs every rank.
    Next: let every rank make the call, even with zeros only.
    """)

exercise.edit("gathers-the-rows", {"found =": "parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]\n"
    "dist.all_gather(parts, rows.detach())\nparts[dist.get_rank()] = rows\n"
    "return F.embedding(tokens, torch.cat(parts))\nfound ="}, """
    The numbers are right. You bring the embedding of the whole vocabulary to every rank, in every step.
    Next: look up what this rank has, and sum the vectors of the tokens.
    """)


@exercise.variant
def only_its_own(tokens: Tensor, rows: Tensor) -> Tensor:
    places = (tokens // len(rows) == dist.get_rank()).nonzero().flatten()
    found = rows.new_zeros(len(tokens), rows.shape[1])
    return all_reduce(found.index_add(0, places, rows[tokens[places] % len(rows)]))


exercise.variant_edit("masked-fill", {"found * mine[:, None]": "found.masked_fill(~mine[:, None], 0)",
    "torch.where(mine, index, 0)": "index.clamp(0, len(rows) - 1)"})
