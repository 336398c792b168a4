"""The memory layouts of the engines: the paper's, torch's own, and in zero.py this course's `zero`.

They agree on what is sharded. They differ in how tensors are cut and padded, in what they keep in fp32, and in the
buffers of their communication. Buffers are planned only where tensors are known: a bare number of parameters gives only
the states, as in the paper's formulas.
"""

from dataclasses import replace
from functools import partial

from ..training.settings import Settings
from ..training.shapes import Model, numel
from .fully_shard import fully_shard
from .layout import BUCKET_BYTES, Held, Layout, everything, gradients, parameters, uncut, unit_buffers
from .partition import flat, greedy
from .parts import END, START
from .zero import zero


def layout(model: Model, settings: Settings) -> Layout:
    """Return the layout of the engine that the settings name."""
    if settings.engine == "torch":
        return fully_shard(model, settings) if settings.stage == 3 else _torch(model, settings)
    return (_paper if settings.engine == "paper" else zero)(model, settings)


def _paper(model: Model, settings: Settings) -> Layout:
    """Return the ZeRO paper's layout: each unit laid flat, padded and cut evenly, gradients as backward makes them."""
    policy, stage, ranks = settings.policy, settings.stage, settings.shards
    whole = everything(model)
    shard = _or_bare(flat(model.units, ranks), model, ranks) if stage else whole
    under_way = 2 if settings.overlap else 1
    bucket_bytes = settings.bucket_bytes or BUCKET_BYTES
    bucket = min(under_way * bucket_bytes // policy.gradient, model.params)
    buffers = unit_buffers(model, settings, policy) if stage == 3 and model.units else [
        Held(name="gradients under way", numels=[bucket], width=policy.gradient,
             why=f"{under_way} buckets", moments=(START, END)),
    ]  # fmt: skip
    return Layout(
        policy=policy, shard=shard, updated=shard, parameters=parameters(whole, shard, settings, policy),
        gradients=gradients(model, policy.gradient, partial(flat, ranks=ranks), shard, settings),
        bucket_bytes=bucket_bytes, buffers=buffers if model.units and settings.world_size > 1 else [],
    )  # fmt: skip


def _torch(model: Model, settings: Settings) -> Layout:
    """Return the layout of DistributedDataParallel, with ZeroRedundancyOptimizer in stage 1.

    ZeroRedundancyOptimizer cuts no tensor: the plan is for the rank with the largest states. The step of a rank with a
    larger tensor may briefly need more.
    """
    policy, whole = replace(settings.policy, accumulated=0), everything(model)
    fullest = max(greedy(model.shapes, settings.shards), key=numel)
    shard = _or_bare(uncut([tuple(fullest)]), model, settings.shards) if settings.stage else whole
    copies = Held(name="gradient buckets", numels=[model.params], width=policy.gradient,
                  why="DistributedDataParallel's copy of all gradients")  # fmt: skip
    twice = Held(name="gradients of tied tensors", numels=2 * model.tied, width=policy.gradient,
                 why="two, while they are added up", moments=(END,))  # fmt: skip
    return Layout(
        policy=policy, shard=shard, updated=shard, parameters=parameters(whole, shard, settings, policy),
        gradients=[*gradients(model, policy.gradient, uncut, shard, settings), twice],
        bucket_bytes=settings.bucket_bytes or BUCKET_BYTES, buffers=[copies] if model.units else [],
    )  # fmt: skip


def _or_bare(shard: list[int], model: Model, ranks: int) -> list[int]:
    """Return `shard`, or one shard of all parameters if no tensors are known."""
    return shard if model.units else [-(-model.params // ranks)]
