"""Clipping by the norm of all gradients, of which each rank has a part."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..checking.rules import at_most
from ..data_parallel.data import ranks
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size
from . import stubs

Shards = list[nn.Parameter]


def clip_shards(shards: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale all gradients down, in place, so that their norm over all ranks is at most `max_norm`."""
    grads = [shard.grad for shard in shards if shard.grad is not None]
    squares = sum((grad.square().sum() for grad in grads), start=torch.zeros(()))
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > max_norm:
        for grad in grads:
            grad *= max_norm / norm
    return norm


def grads_of(shards: Shards) -> list[Tensor]:
    return [shard.grad for shard in shards if shard.grad is not None]


def squares_of(shards: Shards) -> Tensor:
    return sum((grad.square().sum() for grad in grads_of(shards)), start=torch.zeros(()))


def global_norm(shards: Shards) -> Tensor:
    squares = squares_of(shards)
    dist.all_reduce(squares)
    return squares.sqrt()


def scale(shards: Shards, norm: Tensor, max_norm: float) -> Tensor:
    for grad in grads_of(shards):
        grad *= (max_norm / norm).clamp(max=1)
    return norm


def local_norm(shards: Shards, max_norm: float) -> Tensor:
    return scale(shards, squares_of(shards).sqrt(), max_norm)


def tells_global_scales_local(shards: Shards, max_norm: float) -> Tensor:
    norm = global_norm(shards)
    scale(shards, squares_of(shards).sqrt(), max_norm)
    return norm


def sum_of_norms(shards: Shards, max_norm: float) -> Tensor:
    norm = squares_of(shards).sqrt()
    dist.all_reduce(norm)
    return scale(shards, norm, max_norm)


def largest_norm(shards: Shards, max_norm: float) -> Tensor:
    norm = squares_of(shards).sqrt()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX)
    return scale(shards, norm, max_norm)


def mean_of_norms(shards: Shards, max_norm: float) -> Tensor:
    norm = squares_of(shards).sqrt()
    dist.all_reduce(norm)
    return scale(shards, norm / dist.get_world_size(), max_norm)


def mean_of_squares(shards: Shards, max_norm: float) -> Tensor:
    squares = squares_of(shards)
    dist.all_reduce(squares)
    return scale(shards, (squares / dist.get_world_size()).sqrt(), max_norm)


def without_the_root(shards: Shards, max_norm: float) -> Tensor:
    squares = squares_of(shards)
    dist.all_reduce(squares)
    return scale(shards, squares, max_norm)


def adds_norms_of_shards(shards: Shards, max_norm: float) -> Tensor:
    total = sum((grad.norm() for grad in grads_of(shards)), start=torch.zeros(()))
    dist.all_reduce(total)
    return scale(shards, total, max_norm)


def shard_by_shard(shards: Shards, max_norm: float) -> Tensor:
    norm = global_norm(shards)
    for shard in shards:
        if shard.grad is not None:
            scale([shard], shard.grad.norm(), max_norm)
    return norm


def always_scales(shards: Shards, max_norm: float) -> Tensor:
    norm = global_norm(shards)
    for grad in grads_of(shards):
        grad *= max_norm / norm
    return norm


def norm_afterwards(shards: Shards, max_norm: float) -> Tensor:
    norm = scale(shards, global_norm(shards), max_norm)
    return norm.clamp(max=max_norm)


def not_in_place(shards: Shards, max_norm: float) -> Tensor:
    norm = global_norm(shards)
    for grad in grads_of(shards):
        grad = grad * (max_norm / norm).clamp(max=1)
    return norm


def clips_values(shards: Shards, max_norm: float) -> Tensor:
    norm = global_norm(shards)
    for grad in grads_of(shards):
        grad.clamp_(-max_norm, max_norm)
    return norm


def norm_of_parameters(shards: Shards, max_norm: float) -> Tensor:
    squares = sum((shard.detach().square().sum() for shard in shards), start=torch.zeros(()))
    dist.all_reduce(squares)
    return scale(shards, squares.sqrt(), max_norm)


def stumbles_over_none(shards: Shards, max_norm: float) -> Tensor:
    grads: list[Any] = [shard.grad for shard in shards]
    squares: Any = sum(grad.square().sum() for grad in grads)
    dist.all_reduce(squares)
    return scale(shards, squares.sqrt(), max_norm)


def ranks_without_gradients_stay_away(shards: Shards, max_norm: float) -> Tensor:
    if not grads_of(shards):
        return torch.zeros(())
    return scale(shards, global_norm(shards), max_norm)


def a_call_for_each_shard(shards: Shards, max_norm: float) -> Tensor:
    squares = [shard.grad.square().sum() if shard.grad is not None else torch.zeros(()) for shard in shards]
    for square in squares:
        dist.all_reduce(square)
    return scale(shards, torch.stack(squares).sum().sqrt(), max_norm)


def with_torch(shards: Shards, max_norm: float) -> Tensor:
    mine = torch.nn.utils.get_total_norm(grads_of(shards))
    squares = torch.as_tensor(mine).square()
    dist.all_reduce(squares)
    norm: Tensor = squares.sqrt()
    torch.nn.utils.clip_grads_with_norm_(shards, max_norm, norm)
    return norm


def with_one_vector(shards: Shards, max_norm: float) -> Tensor:
    flat = torch.cat([torch.zeros(1), *(grad.flatten() for grad in grads_of(shards))])
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, flat.norm())
    norm: Tensor = torch.stack(norms).norm()
    for shard in shards:
        if shard.grad is not None:
            shard.grad = shard.grad * min(1.0, max_norm / norm.item())
    return norm


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed, count = draw_world_size(rng, number), rng.getrandbits(32), 1 + (number > 0) * rng.randint(1, 2)
    numels = rng.sample(range(2, 7), count)
    silent: set[tuple[int, int]] = set()  # which shard of which rank has no gradient
    if number in (1, 4):
        silent = {(rng.randrange(world_size), rng.randrange(count))}
    if number in (2, 5):
        silent = {(world_size - 1, shard) for shard in range(count)}
    share = 2.0 if number in (3, 4) else rng.choice((0.3, 0.5))  # of the norm

    def grads(rank: int) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(seed + rank)
        drawn = [torch.randn(numel, generator=generator) for numel in numels]
        return [None if (rank, shard) in silent else 3 * grad for shard, grad in enumerate(drawn)]

    def args(rank: int) -> tuple[Shards, float]:
        shards = [nn.Parameter(torch.full((numel,), 5.0)) for numel in numels]
        for shard, grad in zip(shards, grads(rank), strict=True):
            shard.grad = grad
        return shards, max_norm

    everything = torch.cat([grad for rank in range(world_size) for grad in grads(rank) if grad is not None])
    max_norm = math.ceil(10 * share * everything.norm().item()) / 10
    about = f"{ranks(world_size)}, {count} shard{'s' * (count > 1)} each, norm {everything.norm().item():.3g}, "
    about += f"at most {max_norm:g} wanted"
    about += "".join(f", no gradient for shard {shard} of rank {rank}" for rank, shard in sorted(silent))
    return Case(world_size=world_size, args=args, about=about)


def norm_and_gradients(solution: Solution, shards: Shards, max_norm: float) -> dict[str, Any]:
    norm = solution(shards, max_norm)
    return {"norm": norm, "gradients": [shard.grad for shard in shards]}


CLIP_SHARDS = Exercise(
    name="zero2.clip_shards",
    title="Clip by the norm of all",
    task="Clip the gradients as `torch.nn.utils.clip_grad_norm_` would in one process: if the norm of all gradients "
    "together, over all shards and all ranks, is above `max_norm`, multiply each by `max_norm / norm`, in place; "
    "otherwise leave them as they are. Return the norm before clipping, the same on every rank. A shard without a "
    "gradient counts for nothing, and a rank without any takes part nevertheless.",
    stub=stubs.clip_shards,
    reference=clip_shards,
    draw=draw,
    trial=norm_and_gradients,
    inputs_matter=False,
    rules=[at_most("all_reduce", 1)],
    variants={"with-torch": with_torch, "with-one-vector": with_one_vector},
    mistakes=[
        Mistake(
            id="local-norm",
            solution=local_norm,
            told="Each rank clips by the norm of its own shards. That norm is smaller than the whole, and another one "
            "on each rank: shards of one gradient are scaled by different factors, and its direction changes.",
            action="Add up the squares over ranks, with one all-reduce, before you take the root.",
        ),
        Mistake(
            id="tells-global-scales-local",
            solution=tells_global_scales_local,
            told="You return the norm over all ranks, and scale by the one of this rank's shards.",
            action="Scale by the norm that you return.",
        ),
        Mistake(
            id="sum-of-norms",
            solution=sum_of_norms,
            told="You add up norms. The norms 3 and 4 do not make 7, but 5: the root of the sum of the squares.",
            action="All-reduce the square, and take the root afterwards.",
        ),
        Mistake(
            id="adds-norms-of-shards",
            solution=adds_norms_of_shards,
            told="You add up norms, over shards and over ranks. The norms 3 and 4 do not make 7, but 5: the root of "
            "the sum of the squares.",
            action="Add up `grad.square().sum()`, and take the root of the total.",
        ),
        Mistake(
            id="largest-norm",
            solution=largest_norm,
            told="You take the largest norm of a rank. The norm of all is larger: the root of the sum of their "
            "squares.",
            action="All-reduce the sum of the squares, and take the root afterwards.",
        ),
        Mistake(
            id="mean-of-norms",
            solution=mean_of_norms,
            told="You average the norms of the ranks. Each rank has another part of one gradient, and the norm of the "
            "whole is the root of the sum of their squares.",
            action="All-reduce the square, do not divide, and take the root.",
        ),
        Mistake(
            id="mean-of-squares",
            solution=mean_of_squares,
            told="You divide the sum of the squares by the world size. The gradients are averaged already; what is "
            "summed here are squares of different elements.",
            action="Leave out the division.",
        ),
        Mistake(
            id="without-the-root",
            solution=without_the_root,
            told="You compare the squared norm with `max_norm`.",
            action="Take the root of the sum: `squares.sqrt()`.",
        ),
        Mistake(
            id="shard-by-shard",
            solution=shard_by_shard,
            told="Each shard is clipped by its own norm. So the small ones stay as they are while large ones shrink, "
            "and the direction of the gradient changes.",
            action="Use one factor for all: `max_norm / norm`, with the norm of all.",
        ),
        Mistake(
            id="always-scales",
            solution=always_scales,
            told="You also scale where the norm is below `max_norm`, and gradients grow.",
            action="Scale only if `norm > max_norm`.",
        ),
        Mistake(
            id="norm-afterwards",
            solution=norm_afterwards,
            told="You return the norm after clipping. Asked for is the one before: it tells who watches a training "
            "that something is about to blow up.",
            action="Return what you computed first.",
        ),
        Mistake(
            id="not-in-place",
            solution=not_in_place,
            told="The scaled gradients go into a variable, and the shards keep theirs: `grad = grad * factor` makes a "
            "new tensor.",
            action="Write `grad *= factor`, or `grad.mul_(factor)`.",
        ),
        Mistake(
            id="clips-values",
            solution=clips_values,
            told="You limit each element to `max_norm`. Then large elements shrink and small ones do not, and the "
            "norm may still be above.",
            action="Multiply all gradients by `max_norm / norm`.",
        ),
        Mistake(
            id="norm-of-parameters",
            solution=norm_of_parameters,
            told="You take the norm of the parameters.",
            action="Use `shard.grad`.",
        ),
        Mistake(
            id="stumbles-over-none",
            solution=stumbles_over_none,
            told="A shard may have no gradient: then its `grad` is None.",
            action="Leave those out.",
        ),
        Mistake(
            id="ranks-without-gradients-stay-away",
            solution=ranks_without_gradients_stay_away,
            told="A rank without gradients returns early, and the others wait for it in the all-reduce.",
            action="Let it bring the square 0.",
        ),
        Mistake(
            id="a-call-for-each-shard",
            solution=a_call_for_each_shard,
            told="Right numbers, with an all-reduce for each shard. Each costs the time in which a message passes all "
            "ranks, and one number is all that has to travel.",
            action="Add up the squares of this rank first, then all-reduce the sum.",
        ),
    ],
    hints=[
        "Three gradients with the norms 3, 4 and 12: what is the norm of all of them together?",
        "Norms do not add up; their squares do. And a square of the norm is a sum over elements, which can be summed "
        "shard by shard and then rank by rank.",
        "`grad.square().sum()` for each, then one `dist.all_reduce`, then `sqrt()`. `*=` multiplies in place.",
        "```python\ngrads = [shard.grad for shard in shards if ...]\nsquares = sum((grad.square().sum() for grad in "
        "grads), start=torch.zeros(()))\ndist.all_reduce(...)\nnorm = ...\nif norm > max_norm:\n    ...  # scale "
        "each in place\nreturn norm\n```",
    ],
    explanation="The squared norm is a sum over elements, and each element of the averaged gradient lies in one shard "
    "of one rank: so each rank adds up the squares of its own, and one all-reduce of one number makes the total. Every "
    "rank comes to the same norm and the same factor. That is the price of ZeRO-2: where data parallel finds the whole "
    "gradient on every rank, and so needs no communication for the norm, here it takes a collective. Padding is zero, "
    "and adds nothing. For the root, every rank has to come to the same number: were it another on each, the shards of "
    "one gradient would be scaled by different factors, and its direction would change.",
)
