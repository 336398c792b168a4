"""Clipping by the norm of the whole gradient, when each rank holds only a part of it."""

import math
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, count = draw_world_size(rng, number), rng.getrandbits(32), 1 + (number > 0) * rng.randint(1, 2)
    numels = rng.sample((2, 3, 5, 6), count)  # not 4: its root is 2, which may be the number of ranks
    silent: set[tuple[int, int]] = set()  # which shard of which rank has no gradient
    if number in (1, 4):
        silent = {(rng.randrange(world_size), rng.randrange(count))}
    if number in (2, 5):
        silent = {(world_size - 1, shard) for shard in range(count)}
    share = 2.0 if number in (3, 4) else rng.choice((0.3, 0.9))  # of the norm; 0.9 is above that of most ranks

    def grads(rank: int) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(seed + rank)
        drawn = [torch.randn(numel, generator=generator) for numel in numels]
        return [None if (rank, shard) in silent else 3 * grad for shard, grad in enumerate(drawn)]

    def args(rank: int) -> tuple[list[nn.Parameter], float]:
        shards = [nn.Parameter(torch.full((numel,), 5.0)) for numel in numels]
        for shard, grad in zip(shards, grads(rank), strict=True):
            shard.grad = grad
        return shards, max_norm

    everything = torch.cat([grad for rank in range(world_size) for grad in grads(rank) if grad is not None])
    max_norm = math.ceil(10 * share * everything.norm().item()) / 10
    what = f"{count} shard{'s' * (count > 1)} each, norm {everything.norm().item():.3g}, "
    what += f"max_norm {max_norm:g}"
    what += "".join(f", no gradient for shard {shard} of rank {rank}" for rank, shard in sorted(silent))
    return Case(world_size=world_size, args=args, what=what)


def norm_and_gradients(solution: Solution, shards: list[nn.Parameter], max_norm: float) -> dict[str, Any]:
    before = [shard.grad for shard in shards]
    norm = solution(shards, max_norm)
    kept = [shard.grad is grad for shard, grad in zip(shards, before, strict=True)]
    gradients = [shard.grad for shard in shards]
    if isinstance(norm, Tensor) and norm.numel() == 1:
        norm = norm.reshape(()).float()  # a tensor of shape [1] is one number, too, and so is one in fp64
    return {"norm": norm, "gradients": gradients, "each gradient is the tensor that it was": kept}


exercise = Exercise("zero2.clip_shards", title="Clip by the norm of all", draw=draw, trial=norm_and_gradients,
    inputs_matter=False, rules=[at_most("all_reduce", 1)], task="""
    Clip the gradients as `torch.nn.utils.clip_grad_norm_` does in one process. Take the norm of all gradients together,
    over all shards and all ranks, with at most one all-reduce. If it is above `max_norm`, multiply each gradient by
    `max_norm / norm`, in place; if not, leave the gradients as they are. Return the norm before clipping, the same on
    every rank. A shard without a gradient adds nothing to the norm. A rank without any gradient still takes
    part.""", hints="""
    Three gradients have the norms 3, 4 and 12. What is the norm of all of them together?

    Norms do not add up; their squares do. The square of the norm is a sum over elements, so you can sum shard by shard
    and then rank by rank.

    `grad.square().sum()` for each, then one `dist.all_reduce`, then `sqrt()`. `*=` multiplies in place.

    ```python
    grads = [shard.grad for shard in shards if ...]
    squares = sum((grad.square().sum() for grad in grads), start=torch.zeros(()))
    dist.all_reduce(...)
    norm = ...
    if norm > max_norm:
        ...  # scale each in place
    return norm
    ```
    """, explanation="""
    The squared norm is a sum over elements, and each element of the averaged gradient is in one shard of one rank. So
    each rank adds up the squares of its own elements, and one all-reduce of one number makes the total. Padding is zero
    and adds nothing. With data parallel, every rank has the whole gradient, and the norm needs no communication; with
    ZeRO-2 it needs one collective. Every rank must get the same norm, and so the same factor. If the factors differed,
    the shards of one gradient would be scaled differently, and its direction would change.""")


@exercise
def clip_shards(shards: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale all gradients down, in place, so that their norm over all ranks is at most `max_norm`.

    `shards` are this rank's; a gradient may be None, on one rank or on all.
    Return the norm before clipping, a tensor of one number, the same on every rank.
    Use at most one all-reduce.
    """
    grads = [shard.grad for shard in shards if shard.grad is not None]
    squares = sum((grad.square().sum() for grad in grads), start=torch.zeros(()))
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > max_norm:
        for grad in grads:
            grad *= max_norm / norm
    return norm


SQUARES = "squares = sum((grad.square().sum() for grad in grads), start=torch.zeros(()))\ndist.all_reduce(squares)"
SCALE = "if norm > max_norm:\nfor grad in grads:\ngrad *= max_norm / norm"

exercise.edit("local-norm", {"dist.all_reduce(squares)\n": ""}, """
    Each rank clips by the norm of its own shards. It is smaller than the norm of all, and differs from rank to rank. So
    the shards of one gradient are scaled by different factors, and the gradient's direction changes.
    Next: add up the squares over ranks, with one all-reduce, before you take the root.""")

exercise.edit("largest-norm", {"dist.all_reduce(squares)\n": "",
    "return norm": "dist.all_reduce(norm, dist.ReduceOp.MAX)\nreturn norm"}, """
    Each rank clips by the norm of its own shards, and you return the largest of these norms. The shards of one gradient
    are scaled by different factors, and the norm of all is larger than each of them.
    Next: add up the squares over ranks, before you take the root and before you clip.""")

exercise.edit("largest-norm-for-all", {"dist.all_reduce(squares)\n": "",
    "norm = squares.sqrt()": "norm = squares.sqrt()\ndist.all_reduce(norm, dist.ReduceOp.MAX)"}, """
    You clip by the largest of the ranks' norms. It is the same on every rank, but less than the norm of all, which
    contains the squares of every rank. So you clip too little, or not at all.
    Next: add up the squares over ranks, and take the root afterwards.""")

exercise.edit("clips-by-its-own-norm", {"squares)\nnorm = squares.sqrt()\n":
    "squares)\nnorm = squares.sqrt()\nown = torch.cat([torch.zeros(1), *[grad.flatten() for grad in grads]]).norm()\n",
    SCALE: "if own > max_norm:\n    for grad in grads:\n        grad *= max_norm / own"}, """
    You return the norm of all shards, and each rank clips by the norm of its own. So the shards of one gradient are
    scaled by different factors, and the gradient's direction changes.
    Next: clip by the norm that you return.""")

exercise.edit("sum-of-norms", {"dist.all_reduce(squares)\nnorm = squares.sqrt()":
    "norm = squares.sqrt()\ndist.all_reduce(norm)"}, """
    You add up the norms of the ranks. The norms 3 and 4 make 5, not 7: the norm of all is the root of the sum of the
    squares. Next: all-reduce the sum of the squares, and take the root afterwards.""")

NORMS = """
    You add up the norms of the shards. The norms 3 and 4 make 5, not 7: the norm of all is the root of the sum of the
    squares. Next: add up the squares of all shards, on all ranks, and take the root afterwards."""

exercise.edit("sum-of-the-shards-norms", {"grad.square().sum()": "grad.norm()", "squares.sqrt()": "squares"}, NORMS)

exercise.edit("root-of-the-shards-norms", {"grad.square().sum()": "grad.norm()"}, NORMS)

exercise.edit("mean-of-squares", {"dist.all_reduce(squares)\nnorm = squares.sqrt()":
    "dist.all_reduce(squares)\nnorm = (squares / dist.get_world_size()).sqrt()"}, """
    You divide the sum of the squares by the world size. The gradients are averaged already, and the ranks sum squares
    of different elements. Next: leave out the division.""")

exercise.edit("mean-over-elements", {"grad.square().sum()": "grad.square().mean()"}, """
    You take the mean of each gradient's squares. The norm of all gradients together is the root of a sum, in which each
    element counts the same. Next: add up the squares of the elements.""")

exercise.edit("mean-over-shards", {"squares.sqrt()": "(squares / (len(grads) or 1)).sqrt()"}, """
    You divide the sum of the squares by the number of gradients of this rank. The norm of all gradients together is the
    root of a sum, and the ranks may divide by different numbers. Next: leave out the division.""")

exercise.edit("without-the-root", {"squares.sqrt()": "squares"}, """
    You use the squared norm as the norm. Next: take the root of the sum.""")

exercise.edit("shard-by-shard", {SCALE:
    "for grad in grads:\n    grad *= (max_norm / grad.norm()).clamp(max=1)"}, """
    You clip a part of the gradient, such as one shard, by the norm of this part. Small parts stay as they are and large
    ones shrink, so the gradient's direction changes. Next: compute one factor for all shards, from the norm of all.""")

exercise.edit("always-scales", {SCALE: "for grad in grads:\n    grad *= max_norm / norm"}, """
    You also scale where the norm is below `max_norm`, and the gradients grow.
    Next: scale only where the norm is too large.""")

exercise.edit("not-in-place", {"grad *= max_norm / norm": "grad = grad * (max_norm / norm)"}, """
    The shards keep their old gradients. If you wrote `grad = grad * factor`: that makes a new tensor, and only your
    variable refers to it. Next: multiply in place: a new tensor does not change the old one.""")

exercise.edit("ranks-without-gradients-stay-away", {"squares = sum":
    "if not grads:\n    return torch.zeros(())\nsquares = sum"}, """
    A rank without gradients returns early, and the other ranks wait for it in the all-reduce.
    Next: let it take part with the square 0.""")

exercise.edit("a-call-for-each-shard", {SQUARES: "squares = torch.zeros(())\nfor shard in shards:\n"
    "    square = torch.zeros(()) if shard.grad is None else shard.grad.square().sum()\n"
    "    dist.all_reduce(square)\n    squares += square"}, """
    The numbers are right, but you call all-reduce once for each shard. Each call takes the time of a message through
    all ranks, and one number is enough. Next: add up the squares of this rank first, then all-reduce the sum.""")

exercise.edit("new-tensors", {SCALE: "if norm > max_norm:\n    for shard in shards:\n        "
    "shard.grad = None if shard.grad is None else shard.grad * (max_norm / norm)"}, """
    The numbers are right, but each `.grad` is a new tensor. If the gradients were views of a flat buffer, the buffer
    still has the old numbers. Next: multiply in place.
    """)


@exercise.variant
def with_torch(shards: list[nn.Parameter], max_norm: float) -> Tensor:
    mine = torch.nn.utils.get_total_norm([shard.grad for shard in shards if shard.grad is not None])
    squares = torch.as_tensor(mine).square()
    dist.all_reduce(squares)
    norm: Tensor = squares.sqrt()
    torch.nn.utils.clip_grads_with_norm_(shards, max_norm, norm)
    return norm


@exercise.variant
def with_one_vector(shards: list[nn.Parameter], max_norm: float) -> Tensor:
    flat = torch.cat([torch.zeros(1), *(shard.grad.flatten() for shard in shards if shard.grad is not None)])
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, flat.norm())
    norm: Tensor = torch.stack(norms).norm()
    for shard in shards:
        if shard.grad is not None:
            shard.grad.mul_(min(1.0, max_norm / norm.item()))
    return norm.reshape(1)
