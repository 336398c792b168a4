"""A step of Muon on shards: each matrix is whole on its owner for a moment."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Solution, normal, only_calls


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 3, 1, 4)[number % 4]
    shapes = [(world_size * rng.randint(2, 3), rng.randint(5, 7)) for _ in range(3 if number else 2)]
    owners = [rng.randrange(world_size) for _ in shapes] if number else [1, 0]
    lr, seed = rng.uniform(0.1, 0.5), rng.getrandbits(24)

    def args(rank: int) -> tuple[list[Tensor], list[Tensor], list[int], float]:
        wholes = [[normal(*shape, seed=seed + 10 * at + kind) for at, shape in enumerate(shapes)] for kind in (0, 1)]
        shards, grads = ([whole.chunk(world_size)[rank].clone() for whole in of_kind] for of_kind in wholes)
        return shards, grads, list(owners), lr

    matrices = ", ".join(f"{rows} × {columns}" for rows, columns in shapes)
    return Case(world_size=world_size, args=args, what=f"matrices of {matrices}, owned by ranks {owners}")


def stepped(
    solution: Solution, shards: list[Tensor], grads: list[Tensor], owners: list[int], lr: float
) -> dict[str, Any]:
    """Return the rank's rows after the step, and which matrices it made orthogonal."""
    seen: list[str] = []

    def orthogonal(matrix: Tensor) -> Tensor:
        seen.append(" × ".join(map(str, sorted(matrix.shape))))  # also the transposed matrix has this result
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        result: Tensor = left @ right
        return result

    solution(shards, grads, owners, orthogonal, lr)
    return {"its rows": shards, "what it made orthogonal": sorted(seen)}


exercise = Exercise("production.muon_owner_step", title="A step of Muon on shards", draw=draw, trial=stepped,
    inputs_matter=False, tolerance=1e-4, case_count=4, rules=[only_calls("gather", "scatter")], task="""
    Each rank has some rows of every matrix in `shards`, and the same rows of its averaged gradient in `grads`. All
    ranks have equally many rows of a matrix. Matrix number `k` belongs to rank `owners[k]`. Only its owner makes its
    gradient orthogonal: it collects the rows with `dist.gather`, calls `orthogonal` on the whole, and sends every rank
    its rows of the result with `dist.scatter`. Then each rank subtracts `lr` times these rows from its shard, in place.
    """, hints="""
    Which part of the step needs a whole matrix, and which part works on each row separately?

    The rows of a matrix go to its owner, and come back as rows of the update. Both are collectives: every rank calls
    them for every matrix, in the same order. Only the owner has the list of all rows.

    `dist.gather(tensor, gather_list, dst=owner)` and `dist.scatter(tensor, scatter_list, src=owner)`. The lists are
    None on all ranks except the owner.

    ```python
    for shard, grad, owner in zip(shards, grads, owners, strict=True):
        rows = [torch.empty_like(grad) for ...] if ... else None
        dist.gather(...)
        updates = list(orthogonal(torch.cat(...)).chunk(...)) if ... else None
        update = torch.empty_like(grad)
        dist.scatter(...)
        shard -= ...
    ```
    """, explanation="""
    Lesson 04 began with owners of whole parameters, and gave them up because Adam works on each element separately, so
    a flat tensor can be cut anywhere. Muon brings the owners back, because it needs whole matrices. The gradient's rows
    travel to one owner and the update's rows travel back, so N ranks together send 2(N − 1)/N of a matrix, and each
    matrix is made orthogonal once. If every rank gathers it instead, they send N/2 times as much and do the same work
    N times. Momentum works on each element separately, so it can stay in shards.""")


@exercise
def muon_owner_step(
    shards: list[Tensor],
    grads: list[Tensor],
    owners: list[int],
    orthogonal: Callable[[Tensor], Tensor],
    lr: float,
) -> None:
    """Subtract `lr` times the orthogonal gradient from each matrix, of which this rank has some rows.

    `grads` are the same rows of the averaged gradients. Only rank `owners[k]` calls `orthogonal` for
    matrix k, on the whole gradient. All ranks have equally many rows of a matrix. Use only
    `dist.gather` and `dist.scatter`.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for shard, grad, owner in zip(shards, grads, owners, strict=True):
        rows = [torch.empty_like(grad) for _ in range(ranks)] if rank == owner else None
        dist.gather(grad, rows, dst=owner)
        updates = None if rows is None else list(orthogonal(torch.cat(rows)).chunk(ranks))
        update = torch.empty_like(grad)
        dist.scatter(update, updates, src=owner)
        shard -= lr * update


@exercise.mistake
def own_rows_only(
    shards: list[Tensor],
    grads: list[Tensor],
    owners: list[int],
    orthogonal: Callable[[Tensor], Tensor],
    lr: float,
) -> None:
    """You make this rank's own rows orthogonal. They are not the rows of the orthogonal matrix, because the rows of
    other ranks change them. Next: gather the rows on the owner, and make the whole orthogonal there."""
    for shard, grad in zip(shards, grads, strict=True):
        shard -= lr * orthogonal(grad)


@exercise.mistake
def on_every_rank(
    shards: list[Tensor],
    grads: list[Tensor],
    owners: list[int],
    orthogonal: Callable[[Tensor], Tensor],
    lr: float,
) -> None:
    """Every rank gathers every matrix and makes it orthogonal. The result is right, but all ranks do the same work.
    Next: gather the rows only on the owner."""
    ranks = dist.get_world_size()
    for shard, grad in zip(shards, grads, strict=True):
        rows = [torch.empty_like(grad) for _ in range(ranks)]
        dist.all_gather(rows, grad)
        shard -= lr * orthogonal(torch.cat(rows)).chunk(ranks)[dist.get_rank()]


exercise.edit("rank-0-owns-all", {"zip(shards, grads, owners, strict=True)":
    "zip(shards, grads, [0] * len(shards), strict=True)"}, """
    Rank 0 makes every matrix orthogonal, and the other ranks wait for it. Next: use the owner of each matrix.""")

exercise.edit("only-the-owner-calls", {"        dist.gather(grad, rows, dst=owner)":
    "        if rank == owner:\n            dist.gather(grad, rows, dst=owner)"}, """
    Only the owner calls `dist.gather`. A gather needs the rows of all ranks, so the owner waits for them.
    Next: call it on every rank. Only the list depends on the rank.""")

exercise.edit("each-ranks-rows", {"list(orthogonal(torch.cat(rows)).chunk(ranks))": "list(map(orthogonal, rows))"}, """
    The owner makes each rank's rows orthogonal by themselves. They are not the rows of the orthogonal matrix, because
    the rows of other ranks change them. Next: join the rows first, and make the whole orthogonal.""")

exercise.edit("side-by-side", {"torch.cat(rows)).chunk(ranks)": "torch.cat(rows, 1)).chunk(ranks, 1)"}, """
    You join the ranks' rows side by side, which is a different matrix. Shards are rows, so they lie below each other.
    Next: join and cut along the first dimension.""")

exercise.edit("joined-side-by-side", {"torch.cat(rows)": "torch.cat(rows, 1)"}, """
    You join the ranks' rows side by side, so the whole has the wrong shape, and its pieces do not fit into the shards.
    Shards are rows, so they lie below each other. Next: join along the first dimension.""")

exercise.edit("without-orthogonal", {"orthogonal(torch.cat(rows))": "torch.cat(rows)"}, """
    The owner sends the gradient back as it is, so your step is plain SGD. Next: call `orthogonal` on the joined rows.
    """)

exercise.edit("subtracts-the-gradient", {"lr * update": "lr * grad"}, """
    You call `orthogonal`, but what reaches the shards is the gradient. Next: follow the result of `orthogonal`: which
    line sends it, and which line subtracts it?""")

exercise.edit("adds", {"shard -= ": "shard += "}, """
    You add the update, so the loss rises. Next: subtract it.""")

exercise.edit("a-new-tensor", {"shard -= lr * update": "shard = shard - lr * update"}, """
    You make a new tensor and give it the old name. The caller's shard keeps its old values.
    Next: change it in place.""")


@exercise.variant
def all_gathers_first(
    shards: list[Tensor],
    grads: list[Tensor],
    owners: list[int],
    orthogonal: Callable[[Tensor], Tensor],
    lr: float,
) -> None:
    wholes: dict[int, Tensor] = {}
    for number, (grad, owner) in enumerate(zip(grads, owners, strict=True)):
        mine = owner == dist.get_rank()
        rows = [torch.empty_like(grad) for _ in range(dist.get_world_size())] if mine else None
        dist.gather(grad, rows, dst=owner)
        if rows is not None:
            wholes[number] = orthogonal(torch.cat(rows))
    for number, (shard, owner) in enumerate(zip(shards, owners, strict=True)):
        update = torch.empty_like(shard)
        whole = wholes.get(number)
        dist.scatter(update, None if whole is None else list(whole.split(len(update))), src=owner)
        shard.sub_(update, alpha=lr)


exercise.variant_edit("rows-by-split", {".chunk(ranks)": ".split(len(grad))"})
