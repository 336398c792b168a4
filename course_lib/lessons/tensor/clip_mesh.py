"""Clipping by the norm of all gradients, on a mesh with an axis of ZeRO and an axis of tensor parallel."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ...exercises import Case, Exercise, Solution, at_most, normal, only_calls

NUMELS = (3, 2)
"""The sizes of a rank's shards, both of cut and of whole parameters."""


def draw(rng: random.Random, number: int) -> Case:
    sizes, seed = ((2, 2), (1, 2), (2, 1), (1, 4))[number % 4], rng.getrandbits(32)
    norm = torch.cat(every_gradient(sizes, seed)).norm().item()
    max_norm = round(norm * (0.9, 2.0, 0.3, 0.9)[number % 4], 1)  # 0.9: above that of each rank's own elements
    what = f"a mesh of {sizes[0]} × {sizes[1]} (data × tensor), max_norm {max_norm:g}"
    return Case(world_size=sizes[0] * sizes[1], args=lambda rank: (sizes, max_norm, seed), what=what)


def gradient(numel: int, seed: int, number: int, place: int) -> torch.Tensor:
    """Return the gradient of shard `number`, for a rank of the mesh, or for a rank of `data`."""
    return normal(numel, seed=seed + 100 * number + place)


def every_gradient(sizes: tuple[int, int], seed: int) -> list[torch.Tensor]:
    """Return all gradients of the mesh, each element once."""
    cut = [gradient(n, seed, number, rank) for number, n in enumerate(NUMELS) for rank in range(sizes[0] * sizes[1])]
    whole = [gradient(n, seed + 1000, number, data) for number, n in enumerate(NUMELS) for data in range(sizes[0])]
    return cut + whole


def norm_and_gradients(solution: Solution, sizes: tuple[int, int], max_norm: float, seed: int) -> Any:
    """Return the norm, and the gradients afterwards."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    cut, whole = ([nn.Parameter(torch.zeros(numel)) for numel in NUMELS] for _ in range(2))
    for number, shard in enumerate(cut):
        shard.grad = gradient(shard.numel(), seed, number, dist.get_rank())
    for number, shard in enumerate(whole):  # the same on all ranks of a tensor group
        shard.grad = gradient(shard.numel(), seed + 1000, number, data.rank())
    before = [shard.grad for shard in cut + whole]
    norm = solution(cut, whole, max_norm, data, tensor)
    kept = [shard.grad is grad for shard, grad in zip(cut + whole, before, strict=True)]
    gradients = {"cut": [shard.grad for shard in cut], "whole": [shard.grad for shard in whole]}
    if isinstance(norm, torch.Tensor) and norm.numel() == 1:
        norm = norm.reshape(())
    return {"norm": norm, **gradients, "each gradient is the tensor that it was": kept}


exercise = Exercise("tensor.clip_mesh", title="Clip on a mesh", draw=draw, trial=norm_and_gradients, case_count=4,
    inputs_matter=False, rules=[only_calls("all_reduce"), at_most("all_reduce", 3)], task="""
    The ranks form a mesh. ZeRO shards every parameter over the ranks of `data`. Before that, tensor parallel cuts the
    matrices over the ranks of `tensor`. It leaves parameters such as the norms whole: their gradients are the same on
    all ranks of `tensor`. Clip as one process would: take the norm of all gradients, count each element once, scale
    every gradient by `max_norm / norm` in place if the norm is larger, and return the norm before, on every rank. Use
    at most three all-reduces, and no other collective.
    """, hints="""
    A mesh has 2 × 4 ranks. On how many ranks is one element of a matrix? On how many is one element of a norm's weight?

    The element of the matrix is on one rank. That of the norm is on one rank of each `data` group, and there are 4 such
    groups: a sum over all ranks counts it 4 times.

    Add up the squares of `cut` and of `whole` separately. Both are summed over `data`; only that of `cut` is summed
    over `tensor`. `dist.all_reduce(x, group=data)` sums over this rank's group, and `squares[:1]` is a view.

    ```python
    squares = torch.stack([sum(...) for shards in (cut, whole)])
    dist.all_reduce(...)
    dist.all_reduce(...)
    norm = ...
    if norm > max_norm:
        ...  # scale each gradient in place
    return norm
    ```
    """, explanation="""
    Sum over the ranks that hold different elements. Every element of `cut` exists once on the mesh;
    an element of `whole` exists once in each data group, and counts once. If it counted N times, the norm would depend
    on the mesh, and a run that continues on a different mesh would clip differently: without an error, and with a
    different loss curve.
    """)


@exercise
def clip_mesh(
    cut: list[nn.Parameter],
    whole: list[nn.Parameter],
    max_norm: float,
    data: dist.ProcessGroup,
    tensor: dist.ProcessGroup,
) -> torch.Tensor:
    """Scale all gradients, in place, so that their norm over the mesh is at most `max_norm`.

    cut: shards of parameters that are cut over `tensor`: each rank of the mesh has different elements.
    whole: shards of parameters that are not: the ranks of a `tensor` group have the same elements.
    Return the norm before, a tensor of one number, the same on every rank.
    Use at most three all-reduces, and no other call.
    """
    squares = torch.stack([sum(shard.grad.square().sum() for shard in shards) for shards in (cut, whole)])
    dist.all_reduce(squares, group=data)
    dist.all_reduce(squares[:1], group=tensor)
    norm = squares.sum().sqrt()
    if norm > max_norm:
        for shard in cut + whole:
            shard.grad *= max_norm / norm
    return norm


OVER_BOTH = "dist.all_reduce(squares, group=data)\ndist.all_reduce(squares[:1], group=tensor)\n"

exercise.edit("copies-counted", {"squares[:1], group=tensor": "squares, group=tensor"}, """
    You sum both over all ranks. The ranks of a tensor group have the same gradients of whole parameters, so these count
    once for each of them. Next: sum only the squares of `cut` over `tensor`.
    """)

exercise.edit("only-over-data", {"dist.all_reduce(squares[:1], group=tensor)\n": ""}, """
    You sum over `data` only. Each rank of a tensor group has different parts of the matrices, and computes a different
    norm, so the parts are scaled differently. Next: sum the squares of `cut` over `tensor` as well.
    """)

exercise.edit("into-a-copy", {"squares[:1], group=tensor": "squares[:1].clone(), group=tensor"}, """
    You sum the squares of `cut` over `tensor`, and the sum does not reach your norm: `all_reduce` writes it into a
    copy, such as the one that indexing with a list, `x[[0]]`, makes. Next: sum into the tensor from which you compute
    the norm.
    """)

exercise.edit("only-over-tensor", {"dist.all_reduce(squares, group=data)\n": ""}, """
    You sum over `tensor` only. ZeRO has sharded every parameter over `data`, so each data rank has different elements.
    Next: sum the squares of both kinds over `data` as well.
    """)

exercise.edit("groups-swapped", {"squares, group=data": "squares, group=tensor",
    "squares[:1], group=tensor": "squares[:1], group=data"}, """
    The whole parameters are not summed over `data`, where they are sharded. Over `tensor` they are copies.
    Next: over which group do you sum the cut parameters, and over which the whole ones?
    """)

exercise.edit("no-all-reduce", {OVER_BOTH: ""}, """
    Each rank clips by the norm of its own elements. Next: sum the squares over both groups.
    """)

exercise.edit("two-norms", {"squares.sum().sqrt()": "squares.sqrt().sum()"}, """
    You add two norms. The norms 3 and 4 make 5, not 7: add the squares. Next: take the root once, of the total.
    """)

exercise.edit("no-root", {"squares.sum().sqrt()": "squares.sum()"}, """
    Your norm is the square of the norm: the sum of all squares, without the root. Next: take the root of the total.
    """)

exercise.edit("cut-only", {"for shard in cut + whole": "for shard in cut"}, """
    You scale the gradients of the cut parameters only. Next: multiply all gradients by the same factor.
    """)

exercise.edit("always-scales", {"if norm > max_norm:\nfor shard in cut + whole:\nshard.grad *= max_norm / norm":
    "for shard in cut + whole:\n    shard.grad *= max_norm / norm"}, """
    You also scale where the norm is below `max_norm`, and the gradients grow. Next: scale only where the norm is too
    large.
    """)

exercise.edit("not-scaled", {"shard.grad *= max_norm / norm": "grad = shard.grad * (max_norm / norm)"}, """
    The norm is right, and every gradient is as it was: what you multiply is not written into the gradients. Next:
    scale the gradients themselves.
    """)

exercise.edit("new-tensors", {"shard.grad *= max_norm / norm": "shard.grad = shard.grad * (max_norm / norm)"}, """
    The numbers are right, but each `.grad` is a new tensor. If the gradients were views of a flat buffer, the buffer
    still has the old numbers. Next: multiply in place.
    """)

exercise.variant_edit("divided-copies", {OVER_BOTH:
    "squares[1] /= dist.get_world_size(tensor)\ndist.all_reduce(squares)\n"})

exercise.variant_edit("one-sum-each", {OVER_BOTH:
    "dist.all_reduce(squares[0])\ndist.all_reduce(squares[1], group=data)\n"})
