"""Loss scaling: gradients are divided by the scale, and all ranks agree on whether one has overflowed."""

import math
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal


def draw_bad(rng: random.Random, number: int, world_size: int, count: int) -> dict[tuple[int, int], float]:
    """Return the number that is not finite, by rank and shard: none, or one in the last shard, or in the first.

    Draws 1 and 3 contain NaN, draw 2 contains ∞, and draw 5 −∞.
    """
    if number in (0, 4):
        return {}
    rank, shard = (world_size - 1, count - 1) if number in (1, 2) else (rng.randrange(world_size), 0)
    return {(rank, shard): {2: math.inf, 5: -math.inf}.get(number, math.nan)}


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    count, seed, scale = 1 + (number > 0) * rng.randint(1, 2), rng.getrandbits(32), 2.0 ** rng.randint(8, 16)
    numels, bad = rng.sample(range(2, 7), count), draw_bad(rng, number, world_size, count)
    silent = {(0, shard) for shard in range(count)} | {(world_size - 1, 0)} if number == 4 else set()
    if number == 2:
        silent = {(0, rng.randrange(count))}

    def args(rank: int) -> tuple[list[nn.Parameter], float]:
        shards = [nn.Parameter(torch.full((numel,), 5.0)) for numel in numels]
        for place, shard in enumerate(shards):
            if (rank, place) not in silent:
                shard.grad = scale * normal(shard.numel(), seed=seed + 10 * rank + place)
                shard.grad[-1] = bad.get((rank, place), shard.grad[-1])
                if number == 4:
                    shard.grad[0] = scale * 1e6  # far more than fp16 can hold, and finite
        return shards, scale

    what = f"{count} shard{'s' * (count > 1)} each, scale {scale:g}"
    what += "".join(f", {value} in shard {shard} of rank {rank}" for (rank, shard), value in bad.items())
    what += "".join(f", no gradient for shard {shard} of rank {rank}" for rank, shard in sorted(silent))
    return Case(world_size=world_size, args=args, what=what)


def answer_and_gradients(solution: Solution, shards: list[nn.Parameter], scale: float) -> dict[str, Any]:
    before = [shard.grad for shard in shards]
    finite = solution(shards, scale)
    kept = [shard.grad is grad for shard, grad in zip(shards, before, strict=True)]
    return {
        "whether all are finite": finite,
        "gradients": [shard.grad for shard in shards] if finite else "not used",
        "each gradient is the tensor that it was": kept if finite else "not used",
        "values": [shard.detach() for shard in shards],
    }


exercise = Exercise("precision.unscale", title="Unscale, and agree", draw=draw, trial=answer_and_gradients,
    inputs_matter=False, rules=[at_most("all_reduce", 1)], task="""
    Divide each gradient by `scale`, in place. Then return True if all gradients of all ranks are finite, and False if
    any contains an infinity or a NaN. The answer is the same on every rank. Use at most one all-reduce. A shard without
    a gradient counts as finite. A rank without any gradient still takes part.""", hints="""
    One element of one shard is infinite. Which rank sees it, and which ranks have to skip the step?

    Each rank reduces its own gradients to one number. Which operation combines these numbers into one answer that is
    the same on every rank: a sum, a maximum or a minimum?

    `grad /= scale`, `grad.isfinite().all()`, `dist.all_reduce(flag, op=dist.ReduceOp.MIN)`.

    ```python
    grads = [shard.grad for shard in shards if ...]
    for grad in grads:
        ...
    finite = torch.tensor(float(all(...)))
    dist.all_reduce(finite, op=...)
    return bool(...)
    ```
    """, explanation="""
    With sharded gradients, an overflow is in the shard of one rank, and the other ranks cannot see it. Each rank
    contributes one number, and one all-reduce combines them. Here it takes the minimum of the flags. The sum of the
    numbers of overflows works too, and so does the norm, which clipping needs anyway, except that it may also reject
    finite gradients above about 1e19, whose squares overflow. Division by a power of two is exact. It has to happen in
    fp32: in fp16 the divided gradients would underflow, and the scale was there to avoid that.""")


@exercise
def unscale(shards: list[nn.Parameter], scale: float) -> bool:
    """Divide the gradients by `scale`, in place; return whether all gradients of all ranks are finite.

    `shards` are this rank's; a gradient may be None. If any gradient is not finite, the gradients are
    not used again, and may have any value. Use at most one all-reduce.
    """
    grads = [shard.grad for shard in shards if shard.grad is not None]
    for grad in grads:
        grad /= scale
    finite = torch.tensor(float(all(grad.isfinite().all() for grad in grads)))
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    return bool(finite)


AGREE = "dist.all_reduce(finite, op=dist.ReduceOp.MIN)\n"

exercise.edit("decides-alone", {AGREE: ""}, """
    Each rank decides from its own shards. If one rank skips the step and the others make it, their shards belong to
    different models, or the ranks wait for each other forever. Next: all-reduce the answer, and return the result.""")

exercise.edit("any-rank-suffices", {"MIN": "MAX"}, """
    You return True as soon as *one* rank's gradients are finite. The gradients of all ranks have to be.
    Next: if 1 stands for finite, take the minimum of the flags: `dist.ReduceOp.MIN`.""")

exercise.edit("sums-the-flags", {", op=dist.ReduceOp.MIN": "", "return bool(finite)": "return finite.item() == 1"}, """
    You sum the flags, and compare the sum with 1. Where all of several ranks are finite, the sum is the world size.
    Next: take the minimum of the flags: without `op`, an all-reduce sums.""")

exercise.edit("first-rank-decides", {AGREE: "dist.broadcast(finite, src=0)\n"}, """
    Every rank returns what rank 0 found. Rank 0 does not see an overflow in the shard of a different rank.
    Next: use a collective to which every rank contributes its own flag.""")

exercise.edit("any-element-suffices", {"isfinite().all()": "isfinite().any()"}, """
    You return True although an element is not finite. Perhaps one finite element of a gradient suffices, or nothing
    looks for infinities and NaN. (`bool` of a NaN is True.)
    Next: look at how all elements of a gradient become one answer: `isfinite()` has one for each element.""")

exercise.edit("only-infinity", {"all(grad.isfinite().all()": "not any(grad.isinf().any()"}, """
    You look only for infinities. Infinity minus infinity is NaN, so an overflow can also appear as NaN.
    Next: use `isfinite()`, which is false for both.""")

NO_INFINITY = """
    An infinity is not found, at least of one sign. An overflow gives an infinity first, and a NaN only if it is
    computed with further. Next: use `isfinite()`, which is false for NaN and for infinities of both signs."""

exercise.edit("only-nan", {"all(grad.isfinite().all()": "not any(grad.isnan().any()"}, NO_INFINITY)

exercise.edit("minus-infinity-passes", {"all(grad.isfinite().all()": "all(grad.max() < math.inf"}, NO_INFINITY)

exercise.edit("infinity-passes", {"all(grad.isfinite().all()": "all(grad.min() > -math.inf"}, NO_INFINITY)

exercise.edit("not-in-place", {"grad /= scale": "grad = grad / scale"}, """
    The shards' gradients are still scaled at the end. If you wrote `grad = grad / scale`: that makes a new tensor, and
    the shard keeps the old one. Next: divide in place.""")

exercise.edit("multiplies", {"grad /= scale": "grad *= scale"}, """
    The gradients are multiplied by `scale`. They contain this factor already, because the loss was scaled before
    backward. Next: divide by it.""")

exercise.edit("new-tensors", {"for grad in grads:\ngrad /= scale":
    "for shard in shards:\n    if shard.grad is not None:\n        shard.grad = shard.grad / scale"}, """
    The numbers are right, but each `.grad` is a new tensor. If the gradients were views of a flat buffer, the buffer
    still has the old numbers. Next: divide in place.""")

exercise.edit("cleans-up", {"grad /= scale": "grad.div_(scale).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)"}, """
    You replace infinities and NaN by numbers before you look for them. So the step is made with wrong gradients, and
    the scale stays too large. Next: leave the gradients as they are, and return False.""")

exercise.edit("leaves-at-overflow", {AGREE: f"if not finite:\n    return False\n{AGREE}"}, """
    A rank that finds an overflow returns at once, and the other ranks wait for it in the all-reduce.
    Next: call the all-reduce on every rank, and let this rank contribute 0.""")

exercise.edit("stays-away-without-gradients", {"for grad in grads:\ngrad /=":
    "if not grads:\n    return True\nfor grad in grads:\n    grad /="}, """
    A rank without gradients returns early, and the other ranks wait for it in the all-reduce.
    Next: call the all-reduce on every rank, and let this rank contribute 1.""")

ONLY_WITH_GRADIENTS = " if shard.grad is not None"
NONE = """
    You divide the gradient of every shard, and a shard may have none: its `.grad` is None then. Next: leave these
    shards out of the division and of the question whether all are finite. The all-reduce stays on every rank."""

exercise.edit("divides-none", {ONLY_WITH_GRADIENTS: ""}, NONE)

exercise.edit("divides-none-in-place", {ONLY_WITH_GRADIENTS: "", "grad /= scale": "grad.div_(scale)"}, NONE)

exercise.edit("the-wrong-way-round", {"return bool(finite)": "return not bool(finite)"}, """
    You return True where a gradient is not finite, and False where all are. The task asks whether all are finite.
    Next: what should the function return when nothing is wrong?""")


@exercise.variant
def counts_overflows(shards: list[nn.Parameter], scale: float) -> bool:
    overflows = torch.zeros((), dtype=torch.int64)
    for shard in shards:
        if shard.grad is not None:
            overflows += (~shard.grad.isfinite()).sum()
            shard.grad.div_(scale)
    dist.all_reduce(overflows)
    return overflows.item() == 0


@exercise.variant
def by_the_norm(shards: list[nn.Parameter], scale: float) -> bool:
    grads = [shard.grad for shard in shards if shard.grad is not None]
    if grads:
        torch._foreach_mul_(grads, 1 / scale)
    total = torch.as_tensor(torch.nn.utils.get_total_norm(grads))
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, total)
    return all(math.isfinite(norm) for norm in norms)
