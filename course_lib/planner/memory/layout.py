"""The layouts of the states in each engine: the ZeRO paper's, torch's own, this course's `zero`, and nanotron's.

They agree on what is sharded. They differ in how tensors are cut and padded, and in what they keep in fp32.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..training.frozen import trained
from ..training.pieces import together
from ..training.precision import FROZEN, Precision
from ..training.settings import Settings
from ..training.shapes import Model, Unit, numel

BUCKET_BYTES = 25 * 2**20
"""The default size of a bucket, as in DistributedDataParallel."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The states of rank 0. No rank holds more, except for counts of steps (see memory.py).

    Attributes:
        policy: bytes of each kind of element, as this engine has them.
        shard: elements of each sharded tensor that the rank keeps, padding included.
        updated: elements of each tensor that its optimizer sees.
        bucket_bytes: how much of the gradients is reduced at a time, outside of stage 3.
        units: the tensors that are sharded, unit by unit, with the experts of all expert-parallel ranks.
    """

    policy: Precision
    shard: Sequence[int]
    updated: Sequence[int]
    bucket_bytes: int
    units: Sequence[Unit]


def layout(model: Model, settings: Settings) -> Layout:
    """Return the layout of what is trained, of the engine that the settings name."""
    engine, stage, ranks = settings.engine, settings.stage, settings.shards
    policy, bucket_bytes = engine_policy(settings), settings.bucket_bytes or BUCKET_BYTES
    whole, units = everything(model), together(model.units, settings)
    shard = updated = whole
    if engine == "zero" and stage:
        if stage == 2 and settings.bucket_bytes is None:
            bucket_bytes = max(1, min(BUCKET_BYTES, policy.parameter * model.params // 8))
        buckets = _buckets(model, settings, bucket_bytes)
        shard = [-(-sum(bucket) // ranks) for bucket in buckets]
        updated = _fragments(buckets, shard, stage)
    elif stage:
        shard = flat(units, ranks)
        if engine == "torch":
            shard = rows(units, ranks) if stage == 3 else max(greedy(units, ranks), key=sum)
        shard = updated = shard or [-(-model.params // ranks)]
    return Layout(policy=policy, shard=shard, updated=updated, bucket_bytes=bucket_bytes, units=units)


def optimized(model: Model, settings: Settings) -> Sequence[Unit]:
    """Return the units whose shapes the optimizer sees: of adapters, or of the piece of which a part is trained.

    With the experts of all expert-parallel ranks where these share the states.
    """
    units = trained(model, settings).units if settings.lora_rank else model.units
    return together(units, settings) if settings.stage else units


def engine_policy(settings: Settings) -> Precision:
    """Return the bytes of each element: this course's engines and `fully_shard` average gradients in fp32.

    The fp32 shards of `fully_shard` are the masters themselves; gradients are on the wire as its `reduce_dtype` says.
    """
    policy = settings.policy
    if settings.engine == "zero" and policy.master:
        return replace(policy, accumulated=0, kept=0, gradient=4, reduced=4)
    if settings.engine == "torch":
        policy = replace(policy, accumulated=0)
        return replace(policy, kept=4, gradient=4, master=0) if policy.master and settings.stage == 3 else policy
    return policy


def _buckets(model: Model, settings: Settings, bucket_bytes: int) -> list[list[int]]:
    """Return the tensor sizes in each flat buffer of `zero`: units in stage 3; below, buckets, from the last tensor."""
    if settings.stage == 3 and model.units:
        return [uncut([unit]) for unit in model.units if unit]
    buckets: list[list[int]] = [[]]
    for tensor in reversed(everything(model)):
        if settings.policy.parameter * sum(buckets[-1]) >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(tensor)
    return buckets


def _fragments(buckets: Sequence[Sequence[int]], shard: Sequence[int], stage: int) -> list[int]:
    """Return the size of each tensor's part in rank 0's shard. Empty tensors are whole on every rank.

    The optimizer takes them in the order of the parameters; buckets begin with the last parameter.
    """
    fragments = [min(end, mine) - (end - tensor) for bucket, mine in zip(buckets, shard, strict=True)
                 for end, tensor in zip(accumulate(bucket), bucket, strict=True)
                 if end - tensor < mine or not tensor]  # fmt: skip
    return fragments if stage == 3 else fragments[::-1]


def uncut(units: Sequence[Unit]) -> list[int]:
    """Return the elements of each tensor of these units."""
    return [math.prod(shape) for unit in units for shape in unit]


def everything(model: Model) -> list[int]:
    """Return the elements of each tensor of the model; one tensor, if only its size is known."""
    return [math.prod(shape) for shape in model.shapes] or [model.params]


def flat(units: Sequence[Unit], ranks: int) -> list[int]:
    """Return the elements of each unit's shard, padding included: units end to end, as the paper, FSDP1, DeepSpeed."""
    return [-(-numel(unit) // ranks) for unit in units]


def rows(units: Sequence[Unit], ranks: int) -> list[int]:
    """Return the elements of each tensor's shard in fully_shard: of its rows, padded. A scalar counts as one row."""
    return [-(-(shape or (1,))[0] // ranks) * math.prod(shape[1:]) for unit in units for shape in unit]


def padded_rows(model: Model, settings: Settings) -> Model:
    """Return the model that adapters leave frozen, with rows padded as fully_shard pads them.

    With other engines, and for quantized matrices, which are packed without rows, it is the model itself.
    """
    packed = FROZEN[settings.frozen] < FROZEN["bf16"]
    if settings.engine != "torch" or settings.stage < 3 or not settings.lora_rank or packed:
        return model
    many = settings.shards
    return replace(model, units=tuple(
        tuple((-(-(shape or (1,))[0] // many) * many, *shape[1:]) for shape in unit) for unit in model.units
    ))  # fmt: skip


def greedy(units: Sequence[Unit], ranks: int) -> list[list[int]]:
    """Return the elements of each rank's tensors in ZeroRedundancyOptimizer, which cuts no tensor.

    The largest goes first, to the rank that has least so far; of tensors with equally many elements, the earlier one.
    """
    owned: list[list[int]] = [[] for _ in range(ranks)]
    least = [(0, rank) for rank in range(ranks)]
    for tensor in sorted(uncut(units), reverse=True):
        held, rank = least[0]
        owned[rank].append(tensor)
        heapq.heapreplace(least, (held + tensor, rank))
    return owned
