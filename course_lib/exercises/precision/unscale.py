"""Loss scaling: gradients are divided by the scale, and all ranks agree on whether one has overflowed."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..checking.rules import at_most
from ..data_parallel.data import ranks
from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import normal

Shards = list[nn.Parameter]


def unscale(shards: list[nn.Parameter], scale: float) -> bool:
    """Divide the gradients by `scale`, in place; return whether they are finite: all, on every rank."""
    grads = [shard.grad for shard in shards if shard.grad is not None]
    for grad in grads:
        grad /= scale
    finite = torch.tensor(float(all(grad.isfinite().all() for grad in grads)))
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    return bool(finite)


def grads_of(shards: Shards) -> list[Tensor]:
    return [shard.grad for shard in shards if shard.grad is not None]


def divide(shards: Shards, scale: float) -> None:
    for grad in grads_of(shards):
        grad /= scale


def is_finite(shards: Shards) -> bool:
    """Whether all gradients of this rank are."""
    return all(bool(grad.isfinite().all()) for grad in grads_of(shards))


def on_all(mine: bool) -> bool:
    """Whether it holds on every rank."""
    flag = torch.tensor(float(mine))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def decides_alone(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    return is_finite(shards)


def any_rank_suffices(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    flag = torch.tensor(float(is_finite(shards)))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def first_rank_decides(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    flag = torch.tensor(float(is_finite(shards)))
    dist.broadcast(flag, src=0)
    return bool(flag)


def only_infinity(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    return on_all(not any(bool(grad.isinf().any()) for grad in grads_of(shards)))


def only_nan(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    return on_all(not any(bool(grad.isnan().any()) for grad in grads_of(shards)))


def any_element_suffices(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    return on_all(all(bool(grad.isfinite().any()) for grad in grads_of(shards)))


def only_the_first_shard(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    return on_all(is_finite(shards[:1]))


def tells_overflow(shards: Shards, scale: float) -> bool:
    return not unscale(shards, scale)


def multiplies(shards: Shards, scale: float) -> bool:
    for grad in grads_of(shards):
        grad *= scale
    return on_all(is_finite(shards))


def not_in_place(shards: Shards, scale: float) -> bool:
    for grad in grads_of(shards):
        grad = grad / scale
    return on_all(is_finite(shards))


def averages_as_well(shards: Shards, scale: float) -> bool:
    divide(shards, scale * dist.get_world_size())
    return on_all(is_finite(shards))


def values_not_gradients(shards: Shards, scale: float) -> bool:
    for shard in shards:
        shard.data /= scale
    return on_all(is_finite(shards))


def cleans_up(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    for grad in grads_of(shards):
        grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return on_all(is_finite(shards))


def stumbles_over_none(shards: Shards, scale: float) -> bool:
    grads: list[Any] = [shard.grad for shard in shards]
    for grad in grads:
        grad /= scale
    return on_all(all(bool(grad.isfinite().all()) for grad in grads))


def leaves_at_overflow(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    if not is_finite(shards):
        return False
    return on_all(True)


def stays_away_without_gradients(shards: Shards, scale: float) -> bool:
    if not grads_of(shards):
        return True
    divide(shards, scale)
    return on_all(is_finite(shards))


def a_call_for_each_shard(shards: Shards, scale: float) -> bool:
    divide(shards, scale)
    answers = [on_all(is_finite([shard])) for shard in shards]
    return all(answers)


def counts_overflows(shards: Shards, scale: float) -> bool:
    overflows = torch.zeros((), dtype=torch.int64)
    for shard in shards:
        if shard.grad is not None:
            overflows += (~shard.grad.isfinite()).sum()
            shard.grad.div_(scale)
    dist.all_reduce(overflows)
    return overflows.item() == 0


def by_the_norm(shards: Shards, scale: float) -> bool:
    grads = grads_of(shards)
    if grads:
        torch._foreach_mul_(grads, 1 / scale)
    total = torch.as_tensor(torch.nn.utils.get_total_norm(grads))
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, total)
    return all(math.isfinite(norm) for norm in norms)


Bad = dict[tuple[int, int], float]


def draw_bad(rng: random.Random, number: int, world_size: int, count: int) -> Bad:
    """The number that is not finite, by rank and shard: none, or one in the last shard, or in the first."""
    if number in (0, 4):
        return {}
    rank, shard = (world_size - 1, count - 1) if number in (1, 2) else (rng.randrange(world_size), 0)
    return {(rank, shard): math.nan if number % 2 else math.copysign(math.inf, rng.random() - 0.5)}


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 3, 4, 1)[number] if number < 4 else rng.randint(2, 4)
    count, seed, scale = 1 + (number > 0) * rng.randint(1, 2), rng.getrandbits(32), 2.0 ** rng.randint(8, 16)
    numels, bad = rng.sample(range(2, 7), count), draw_bad(rng, number, world_size, count)
    silent = {(0, shard) for shard in range(count)} if number == 4 else set()
    if number == 2:
        silent = {(0, rng.randrange(count))}

    def args(rank: int) -> tuple[Shards, float]:
        shards = [nn.Parameter(torch.full((numel,), 5.0)) for numel in numels]
        for place, shard in enumerate(shards):
            if (rank, place) not in silent:
                shard.grad = scale * normal(shard.numel(), seed=seed + 10 * rank + place)
                shard.grad[-1] = bad.get((rank, place), shard.grad[-1])
        return shards, scale

    about = f"{ranks(world_size)}, {count} shard{'s' * (count > 1)} each, scale {scale:g}"
    about += "".join(f", {value} in shard {shard} of rank {rank}" for (rank, shard), value in bad.items())
    about += "".join(f", no gradient for shard {shard} of rank {rank}" for rank, shard in sorted(silent))
    return Case(world_size=world_size, args=args, about=about)


def verdict_and_gradients(solution: Solution, shards: Shards, scale: float) -> dict[str, Any]:
    finite = solution(shards, scale)
    return {
        "whether all are finite": finite,
        "gradients": [shard.grad for shard in shards] if finite else "not used",
        "values": [shard.detach() for shard in shards],
    }


UNSCALE = Exercise(
    name="precision.unscale",
    title="Unscale, and agree",
    task="Divide each gradient by `scale`, in place. Then return True if all gradients of all ranks are finite, and "
    "False if there is an infinity or a NaN in any: the same answer on every rank, with at most one all-reduce. A "
    "shard without a gradient is finite, and a rank without any takes part nevertheless.",
    stub=stubs.unscale,
    reference=unscale,
    draw=draw,
    trial=verdict_and_gradients,
    inputs_matter=False,
    rules=[at_most("all_reduce", 1)],
    variants={"counts-overflows": counts_overflows, "by-the-norm": by_the_norm},
    mistakes=[
        Mistake(
            id="decides-alone",
            solution=decides_alone,
            told="Each rank judges by its own shards. Then one rank skips the step, and the others make it: from there "
            "on the shards belong to different models, or the ranks wait for each other for ever.",
            action="All-reduce the answer.",
        ),
        Mistake(
            id="any-rank-suffices",
            solution=any_rank_suffices,
            told="With you all is well as soon as *one* rank is finite. All have to be.",
            action="Take the smallest of the flags (`dist.ReduceOp.MIN`) if 1 stands for finite.",
        ),
        Mistake(
            id="first-rank-decides",
            solution=first_rank_decides,
            told="Rank 0 tells the others what it has found. What is wrong elsewhere it cannot know.",
            action="Use a collective to which every rank brings its own flag.",
        ),
        Mistake(
            id="only-infinity",
            solution=only_infinity,
            told="You look for infinities alone. Infinity minus infinity is NaN, so an overflow may come as that.",
            action="`isfinite()` is false for both.",
        ),
        Mistake(
            id="only-nan",
            solution=only_nan,
            told="You look for NaN alone. A number that is too large for fp16 becomes an infinity first.",
            action="`isfinite()` is false for both.",
        ),
        Mistake(
            id="any-element-suffices",
            solution=any_element_suffices,
            told="A gradient passes with you if *any* of its elements is finite. All have to be.",
            action="Use `.isfinite().all()`.",
        ),
        Mistake(
            id="only-the-first-shard",
            solution=only_the_first_shard,
            told="You look at the first shard alone, and the overflow may be in any.",
            action="Look at all of `shards`.",
        ),
        Mistake(
            id="tells-overflow",
            solution=tells_overflow,
            told="You return whether there was an overflow. Asked for is the opposite: whether all are finite.",
            action="Turn the answer round.",
        ),
        Mistake(
            id="multiplies",
            solution=multiplies,
            told="You multiply by the scale. The loss was multiplied before backward, and this is to undo it.",
            action="Divide.",
        ),
        Mistake(
            id="not-in-place",
            solution=not_in_place,
            told="The shards' gradients are still scaled when you are done. If you wrote `grad = grad / scale`: that "
            "makes a new tensor, and the shard keeps its own.",
            action="Write `grad /= scale`, or `grad.div_(scale)`.",
        ),
        Mistake(
            id="averages-as-well",
            solution=averages_as_well,
            told="You divide by the world size as well. The shards' gradients are averages already.",
            action="Divide by `scale` alone.",
        ),
        Mistake(
            id="values-not-gradients",
            solution=values_not_gradients,
            told="You divide the parameters themselves.",
            action="Use `shard.grad`.",
        ),
        Mistake(
            id="cleans-up",
            solution=cleans_up,
            told="You replace infinities by numbers before you look for them. So the step is made with gradients that "
            "are wrong, and the scale stays too large for ever.",
            action="Leave them as they are, and return False.",
        ),
        Mistake(
            id="stumbles-over-none",
            solution=stumbles_over_none,
            told="A shard may have no gradient: then its `grad` is None.",
            action="Leave those out.",
        ),
        Mistake(
            id="leaves-at-overflow",
            solution=leaves_at_overflow,
            told="The rank that finds an overflow returns at once, and the others wait for it in the all-reduce. It is "
            "the one that has something to tell them.",
            action="Let it bring its flag, too.",
        ),
        Mistake(
            id="stays-away-without-gradients",
            solution=stays_away_without_gradients,
            told="A rank without gradients returns early, and the others wait for it in the all-reduce.",
            action="Let it say that it is finite.",
        ),
        Mistake(
            id="a-call-for-each-shard",
            solution=a_call_for_each_shard,
            told="Right, with an all-reduce for each shard. Each costs the time in which a message passes all ranks, "
            "and one number is all that has to travel.",
            action="Combine this rank's flags first.",
        ),
    ],
    hints=[
        "An element of one shard is infinite. Who sees it? Who has to skip the step?",
        "Each rank finds out about its own, as one number. What makes one answer of the ranks' answers, the same "
        "everywhere: a sum, a largest, a smallest?",
        "`grad /= scale`, `grad.isfinite().all()`, `dist.all_reduce(flag, op=dist.ReduceOp.MIN)`.",
        "```python\ngrads = [shard.grad for shard in shards if ...]\nfor grad in grads:\n    ...\n"
        "finite = torch.tensor(float(all(...)))\ndist.all_reduce(finite, op=...)\nreturn bool(...)\n```",
    ],
    explanation="With sharded gradients an overflow is in the shard of one rank, and the others cannot see it. One "
    "number on each rank and one all-reduce make one answer of it. Here the smallest of the flags; the number of "
    "overflows, summed, does as well, and so does the norm that clipping needs anyway. Dividing by a power of two is "
    "exact. It has to happen in fp32: in fp16 it would bring back the underflow that the scale was there to avoid.",
)
