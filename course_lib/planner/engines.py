"""How those who train lay out a rank's memory: the paper, this course's `zero`, and torch's own.

They agree on what is sharded. They differ in how tensors are cut and padded, in what they keep in fp32, and in the
buffers of their communication. Buffers are told where tensors are known: from a bare number of parameters only the
states follow, as in the paper's formulas.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from .layout import Held, Layout, everything, gradients, largest_run, parameters, uncut, unit_buffers
from .partition import flat, greedy, rows
from .parts import END, START, STEP
from .settings import Settings
from .shapes import Model, numel


def layout(model: Model, settings: Settings) -> Layout:
    """The layout of the engine that the settings name."""
    return {"paper": _paper, "zero": _zero, "torch": _torch}[settings.engine](model, settings)


def _paper(model: Model, settings: Settings) -> Layout:
    """As the ZeRO paper has it: each unit laid flat, padded and cut evenly, gradients as backward makes them."""
    policy, stage, ranks = settings.policy, settings.stage, settings.shards
    whole = everything(model)
    shard = _or_bare(flat(model.units, ranks), model, ranks) if stage else whole
    under_way = 2 if settings.overlap else 1
    bucket = min(under_way * settings.bucket_bytes // policy.gradient, model.params)
    buffers = unit_buffers(model, settings, policy) if stage == 3 and model.units else [
        Held(name="gradients under way", numels=[bucket], width=policy.gradient,
             why=f"{under_way} buckets", moments=(START, END)),
    ]  # fmt: skip
    return Layout(
        policy=policy, shard=shard, updated=shard, parameters=parameters(whole, shard, settings, policy),
        gradients=gradients(model, policy.gradient, partial(flat, ranks=ranks), shard, settings),
        buffers=buffers if model.units and settings.world_size > 1 else [],
    )  # fmt: skip


def _zero(model: Model, settings: Settings) -> Layout:
    """This course's `zero`: buckets (to stage 2) or units (stage 3) flat and padded, gradients summed in fp32.

    The optimizer sees fragments of parameters, without padding. In 16 bits stage 3 keeps masters and no other shard.
    """
    stage, ranks = settings.stage, settings.shards
    policy = replace(settings.policy, accumulated=0)
    if policy.master:
        policy = replace(policy, kept=0, gradient=4, reduced=4)
    buckets = _buckets(model, settings)
    sizes = [sum(bucket) for bucket in buckets]
    whole = everything(model)
    shard = [-(-size // ranks) for size in sizes] if stage else whole
    grads = gradients(model, policy.gradient, partial(flat, ranks=ranks), shard, settings)
    buffers: list[Held] = []
    if stage == 1:  # they stay whole and as they are; the step averages them bucket by bucket
        why = f"{policy.gradient} bytes each, a shard: 1/{ranks}"
        grads = [
            Held(name="gradients", numels=whole, width=policy.parameter, why="whole", moments=(END, STEP)),
            Held(name="averaged gradients", numels=shard, width=policy.gradient, why=why, moments=(STEP,)),
        ]
        buffers = [Held(name="gradients under way", numels=[max(sizes)], width=policy.gradient,
                        why="a bucket, in the step", moments=(END,))]  # fmt: skip
    elif stage == 2:
        buffers = [Held(name="gradients under way", numels=[largest_run(sizes, 2)], width=policy.gradient,
                        why="2 buckets", moments=(START, END))]  # fmt: skip
    elif stage == 3 and model.units:
        buffers = unit_buffers(model, settings, policy)
    return Layout(
        policy=policy, shard=shard, updated=_fragments(buckets, shard) if stage else whole,
        parameters=parameters([ranks * piece for piece in shard] if stage else whole, shard, settings, policy),
        gradients=grads, buffers=buffers if model.units else [],
    )  # fmt: skip


def _buckets(model: Model, settings: Settings) -> list[list[int]]:
    """Elements of the tensors in each flat buffer: units in stage 3; before, buckets, from the last tensor on."""
    if settings.stage == 3 and model.units:
        return [uncut([unit]) for unit in model.units if unit]
    buckets: list[list[int]] = [[]]
    for tensor in reversed(everything(model)):
        if settings.policy.parameter * sum(buckets[-1]) >= settings.bucket_bytes:
            buckets.append([])
        buckets[-1].append(tensor)
    return buckets


def _fragments(buckets: Sequence[Sequence[int]], shard: Sequence[int]) -> list[int]:
    """Elements of each tensor's part in rank 0's shard: what begins in it. Empty tensors are whole on every rank."""
    return [
        min(end, mine) - (end - tensor)
        for bucket, mine in zip(buckets, shard, strict=True)
        for end, tensor in zip(accumulate(bucket), bucket, strict=True)
        if end - tensor < mine or not tensor
    ]


def _torch(model: Model, settings: Settings) -> Layout:
    """DistributedDataParallel, with ZeroRedundancyOptimizer in stage 1; fully_shard in stage 3.

    fully_shard cuts each tensor by rows, and its shards, fp32 in mixed precision, are the masters themselves.
    """
    stage, ranks = settings.stage, settings.shards
    policy = replace(settings.policy, accumulated=0)
    if policy.master:
        policy = replace(policy, kept=4, gradient=4, master=0)
    whole = everything(model)
    if stage == 1:
        fullest = max(greedy(model.shapes, ranks), key=numel)
        shard = _or_bare(uncut([tuple(fullest)]), model, ranks)
    else:
        shard = _or_bare(rows(model.units, ranks), model, ranks) if stage == 3 else whole
    copies = Held(name="gradient buckets", numels=[model.params], width=policy.gradient,
                  why="DistributedDataParallel's copy of all gradients")  # fmt: skip
    buffers = [copies] if stage < 3 else unit_buffers(model, settings, policy) if model.units else []
    return Layout(
        policy=policy, shard=shard, updated=shard, parameters=parameters(whole, shard, settings, policy),
        gradients=gradients(model, policy.gradient, partial(rows, ranks=ranks), shard, settings),
        buffers=buffers if model.units else [],
    )  # fmt: skip


def _or_bare(shard: list[int], model: Model, ranks: int) -> list[int]:
    """`shard`; where no tensors are known, as if the model were one."""
    return shard if model.units else [-(-model.params // ranks)]
