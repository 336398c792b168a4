"""The memory layout of this course's `zero`: the states, and the buffers for averaging gradients; see replay.py.

Buckets (to stage 2) and units (stage 3) are flat and padded, and gradients are averaged in fp32. The optimizer sees
fragments of parameters, without padding. In 16 bits stage 3 keeps masters, and no other shard.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..training.settings import Settings
from ..training.shapes import Model, numel
from . import replay
from .layout import BUCKET_BYTES, Held, Layout, everything, outer_gradients, parameters, uncut
from .parts import AVERAGING, END, FORWARD, START, STEP
from .replay import Moment, Sizes


def zero(model: Model, settings: Settings) -> Layout:
    """Return the layout of `course_lib.zero`'s engine for this stage."""
    stage, ranks = settings.stage, settings.shards
    policy = replace(settings.policy, accumulated=0)
    if policy.master:
        policy = replace(policy, kept=0, gradient=4, reduced=4)
    bucket_bytes = settings.bucket_bytes or BUCKET_BYTES
    if stage == 2 and settings.bucket_bytes is None:
        bucket_bytes = max(1, min(BUCKET_BYTES, policy.parameter * model.params // 8))
    buckets, whole = _buckets(model, settings, bucket_bytes), everything(model)
    shard = [-(-sum(bucket) // ranks) for bucket in buckets] if stage else whole
    states = Layout(
        policy=policy, shard=shard, updated=_fragments(buckets, shard, stage) if stage else whole,
        parameters=parameters([ranks * piece for piece in shard] if stage else whole, shard, settings, policy),
        gradients=_between_backward_and_step(whole, shard, settings, policy.gradient),
        bucket_bytes=bucket_bytes, buffers=[],
    )  # fmt: skip
    return _with_averaging(states, model, settings, buckets) if model.units else states


def _buckets(model: Model, settings: Settings, bucket_bytes: int) -> list[list[int]]:
    """Return the tensor sizes in each flat buffer: units in stage 3; below, buckets, from the last tensor on."""
    if settings.stage == 3 and model.units:
        return [uncut([unit]) for unit in model.units if unit]
    buckets: list[list[int]] = [[]]
    for tensor in reversed(everything(model)):
        if settings.policy.parameter * sum(buckets[-1]) >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(tensor)
    return buckets


def _fragments(buckets: Sequence[Sizes], shard: Sizes, stage: int) -> list[int]:
    """Return the size of each tensor's part in rank 0's shard. Empty tensors are whole on every rank.

    The optimizer takes them in the order of the parameters; buckets begin with the last parameter.
    """
    fragments = [
        min(end, mine) - (end - tensor)
        for bucket, mine in zip(buckets, shard, strict=True)
        for end, tensor in zip(accumulate(bucket), bucket, strict=True)
        if end - tensor < mine or not tensor
    ]
    return fragments if stage == 3 else fragments[::-1]


def _between_backward_and_step(whole: Sizes, shard: Sizes, settings: Settings, width: int) -> list[Held]:
    """Return the gradients held after backward: averages; in stage 1 whole ones, which `step` averages."""
    if settings.stage != 1:
        averages = (AVERAGING, STEP)
        return [Held(name="averaged gradients", numels=shard, width=width, why=_of(settings, width), moments=averages)]
    own = settings.policy.parameter
    return [
        Held(name="gradients", numels=whole, width=own, why=f"{own} bytes each, whole", moments=(END, STEP)),
        Held(name="averaged gradients", numels=shard, width=width, why=_of(settings, width), moments=(STEP,)),
    ]


def _with_averaging(states: Layout, model: Model, settings: Settings, buckets: Sequence[Sizes]) -> Layout:
    """Return `states` with the buffers at the beginning of backward, and at the moment when averaging takes most."""
    moments, policy = _moments(model, settings, buckets), states.policy
    worst = max(moments, key=lambda moment: moment.nbytes(policy.parameter, policy.gradient))
    first = next(moment for moment in moments if moment.averaged or moment.under_way or moment.gathered)
    shown = [(AVERAGING, worst)] if settings.stage == 1 else [(START, first), (END, worst)]
    gradients, buffers, copies = list(states.gradients), list[Held](), list[Held]()
    if settings.stage == 3:
        outer = [numel(model.units[0])]
        buffers.append(Held(name="gathered parameters", numels=outer, width=policy.parameter,
                            why="whole: the outer unit", moments=(FORWARD,)))  # fmt: skip
    for when, moment in shown:
        for kind, name, numels, width, why in (
            (gradients, "averaged gradients", moment.averaged, policy.gradient, _of(settings, policy.gradient)),
            (gradients, "gradients as they come", moment.gradients, policy.parameter, "whole"),
            (buffers, "gradients under way", moment.under_way, policy.gradient, "whole, flat and padded"),
            (buffers, "gathered parameters", moment.gathered, policy.parameter, "whole units"),
            (buffers, "shards cast to be gathered", moment.cast, policy.parameter, "from the fp32 masters"),
            (copies, "a gradient cast to be added", moment.copied, policy.gradient, "torch does so on CPUs"),
        ):
            kind.append(Held(name=name, numels=numels, width=width, why=why, moments=(when,)))
    return replace(states, gradients=gradients, buffers=buffers, copies=copies)


def _moments(model: Model, settings: Settings, buckets: Sequence[Sizes]) -> list[Moment]:
    """Return the moments that replay.py finds, without copies that are not made.

    In fp32 nothing is cast. To add a 16-bit tensor to an fp32 one, torch makes a copy on CPUs, but none on GPUs.
    """
    stage, ranks = settings.stage, settings.shards
    last = len(model.shapes) - 1  # the first tensor in the buckets
    order = [[last - place for place in group] for group in model.order]
    if stage == 3:
        units = [uncut([unit]) for unit in model.units]
        outer = outer_gradients(model)
        found = replay.stage3(units, ranks, settings.prefetch, outer.early, outer.again)
    elif stage == 2:
        found = replay.stage2(buckets, ranks, order)
    else:
        found = replay.stage1(buckets, ranks) if stage else replay.data_parallel(buckets, order)
    unmade: dict[str, Sizes] = {"cast": (), "copied": ()}
    if settings.policy.master:
        unmade = {} if settings.allocator == "exact" else {"copied": ()}
    return [replace(moment, **unmade) for moment in found]


def _of(settings: Settings, width: int) -> str:
    return f"{width} bytes each" + (f", a shard: 1/{settings.shards}" if settings.stage else "")
