"""The memory layouts of the engines: the ZeRO paper's, torch's own, this course's `zero`, and nanotron's.

They agree on what is sharded. They differ in how tensors are cut and padded, in what they keep in fp32, and in the
buffers of their communication. Buffers are planned only where tensors are known: a bare number of parameters gives only
the states, as in the paper's formulas. What a schedule holds for less than a unit's time is not planned: a dry run
measures it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..training.precision import Precision
from ..training.settings import Settings
from ..training.shapes import Model, Unit, numel
from .partition import flat, greedy, rows
from .parts import AVERAGING, END, FORWARD, MOMENTS, START, STEP

BUCKET_BYTES = 25 * 2**20
"""The default size of a bucket, as in DistributedDataParallel."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Tensors of `numels` elements of `width` bytes, when they exist, and the reason for their size."""

    name: str
    numels: Sequence[int]
    width: int
    why: str
    moments: tuple[str, ...] = MOMENTS


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The states of rank 0. No rank holds more, except for counts of steps (see memory.py).

    Attributes:
        policy: bytes of each kind of element, as this engine has them.
        shard: elements of each sharded tensor that the rank keeps, padding included.
        updated: elements of each tensor that its optimizer sees.
        bucket_bytes: how much of the gradients is reduced at a time, outside of stage 3.
    """

    policy: Precision
    shard: Sequence[int]
    updated: Sequence[int]
    bucket_bytes: int


def layout(model: Model, settings: Settings) -> Layout:
    """Return the layout of the engine that the settings name."""
    engine, stage, ranks = settings.engine, settings.stage, settings.shards
    policy, bucket_bytes = _policy(settings), settings.bucket_bytes or BUCKET_BYTES
    whole = everything(model)
    shard = updated = whole
    if engine == "zero" and stage:
        if stage == 2 and settings.bucket_bytes is None:
            bucket_bytes = max(1, min(BUCKET_BYTES, policy.parameter * model.params // 8))
        buckets = _buckets(model, settings, bucket_bytes)
        shard = [-(-sum(bucket) // ranks) for bucket in buckets]
        updated = _fragments(buckets, shard, stage)
    elif stage:
        cut = {"torch": rows if stage == 3 else _fullest}.get(engine, flat)
        shard = updated = cut(model.units, ranks) or [-(-model.params // ranks)]
    return Layout(policy=policy, shard=shard, updated=updated, bucket_bytes=bucket_bytes)


def _policy(settings: Settings) -> Precision:
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


def _fullest(units: Sequence[Unit], ranks: int) -> list[int]:
    """Return the tensors of the rank that holds most in ZeroRedundancyOptimizer, which cuts no tensor."""
    shapes = [shape for unit in units for shape in unit]
    return uncut([max(map(tuple, greedy(shapes, ranks)), key=numel)]) if shapes else []


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
    fragments = [
        min(end, mine) - (end - tensor)
        for bucket, mine in zip(buckets, shard, strict=True)
        for end, tensor in zip(accumulate(bucket), bucket, strict=True)
        if end - tensor < mine or not tensor
    ]
    return fragments if stage == 3 else fragments[::-1]


def uncut(units: Sequence[Unit]) -> list[int]:
    """Return the elements of each tensor of these units."""
    return [numel([shape]) for unit in units for shape in unit]


def everything(model: Model) -> list[int]:
    """Return the elements of each tensor of the model; one tensor, if only its size is known."""
    return [numel([shape]) for shape in model.shapes] or [model.params]


# What is held when


def parameters(model: Model, engine: Layout, settings: Settings) -> Held:
    """Return the parameters held between steps: whole up to stage 2, a shard in stage 3."""
    policy, padded = engine.policy, settings.engine == "zero" and settings.stage
    if settings.stage < 3:
        numels = [settings.shards * piece for piece in engine.shard] if padded else everything(model)
        return Held(name="parameters", numels=numels, width=policy.parameter, why=f"{policy.parameter} bytes each")
    why = f"{policy.kept} bytes each, a shard: 1/{settings.shards}"
    return Held(name="parameters", numels=engine.shard, width=policy.kept, why=why)


def gradients(model: Model, engine: Layout, settings: Settings) -> list[Held]:
    """Return the gradients held, fp32 sums included.

    Sharded ones (from stage 2 on) and those that are summed over micro-batches exist until the step; the others come
    layer by layer: at the start of backward the outer unit's, at its end all but the first layer's.
    """
    policy, whole = engine.policy, everything(model)
    averaged = settings.engine == "zero" or (settings.engine == "torch" and settings.stage == 3)
    sharded = settings.stage >= 2 or (averaged and settings.stage == 1)
    total = engine.shard if sharded else whole
    why = f"{policy.gradient} bytes each" + (f", a shard: 1/{settings.shards}" if sharded else "")
    layers = [numel(unit) for unit in model.units[1:]]
    first = layers[0] // (settings.shards if sharded else 1) if layers else 0
    late = sum(total) - first  # at the end of backward
    kept = settings.micro_batches > 1
    found: list[Held] = []

    def add(name: str, numels: Sequence[int], width: int, *moments: str) -> None:
        found.append(Held(name=name, numels=numels, width=width, why=why, moments=moments))

    if policy.accumulated:  # the sums stay; the 16-bit gradients are there until they are added
        when = MOMENTS if settings.engine == "nanotron" or kept else (START, END, AVERAGING, STEP)
        add("fp32 sums of gradients", total, policy.accumulated, *when)
        if settings.engine == "nanotron":
            add("gradients as they come", [late], policy.gradient, END)
            return found
    name = "averaged gradients" if averaged else "gradients"
    if averaged and settings.stage == 1:
        own = settings.policy.parameter
        add("gradients", whole, own, *((FORWARD, START) if kept else ()), END, AVERAGING, STEP)
        add(name, total, policy.gradient, STEP)
    elif kept:
        add(name, total, policy.gradient, FORWARD, START, END, AVERAGING, STEP)
    else:
        if model.units and layers:
            outer = model.early // (settings.shards if sharded else 1)
            add(f"{name} of the outer unit", [outer], policy.gradient, START)
            add(f"{name} of all but the first layer", [late], policy.gradient, END)
        add(name, total, policy.gradient, *(() if layers else (END,)), AVERAGING, STEP)
    return found


def buffers(model: Model, engine: Layout, settings: Settings) -> list[Held]:
    """Return the buffers of communication, and the whole gradients on their way there; none for a single rank."""
    if settings.stage == 3:
        return _unit_buffers(model, engine, settings)
    policy, ranks = engine.policy, settings.data_parallel
    if ranks == 1 or not model.units:
        return []
    largest, copied = max(everything(model)), settings.engine in ("torch", "nanotron")
    if copied:
        why = "DistributedDataParallel's copy of all gradients"
        ddp = Held(name="gradient buckets", numels=[model.params], width=policy.gradient, why=why)
        why = "two, while they are added up"
        twice = Held(name="gradients of tied tensors", numels=[2 * model.tied], width=policy.gradient, why=why,
                     moments=(END,))  # fmt: skip
        return [ddp, twice]
    under_way = 2 if settings.overlap else 1
    if settings.engine == "zero":
        return _flat_gradients(engine, settings, largest)
    bucket = min(under_way * engine.bucket_bytes // policy.gradient, model.params)
    return [Held(name="gradients under way", numels=[bucket], width=policy.gradient, why=f"{under_way} buckets",
                 moments=(START, END))]  # fmt: skip


def _flat_gradients(engine: Layout, settings: Settings, largest: int) -> list[Held]:
    """Return the flat buffers of this course's engines to stage 2, and the gradient that moves into one.

    In 16 bits, torch makes an fp32 copy on CPUs of what it adds to an fp32 sum. Stage 0 has no further buffer.
    """
    policy, own, stage = engine.policy, settings.policy.parameter, settings.stage
    when = AVERAGING if stage == 1 else END
    whole = [settings.shards * piece for piece in engine.shard]
    found = [Held(name="gradients under way", numels=[largest_run(whole, stage)] if stage else [],
                  width=policy.gradient, why="whole, flat and padded", moments=(when,))]  # fmt: skip
    if stage != 1:
        found.append(Held(name="a gradient as it comes", numels=[largest], width=own, why="whole", moments=(when,)))
    if policy.master and settings.allocator == "exact":
        found.append(Held(name="a gradient cast to be added", numels=[largest], width=policy.gradient,
                          why="torch does so on CPUs", moments=(when,)))  # fmt: skip
    return found


def _unit_buffers(model: Model, engine: Layout, settings: Settings) -> list[Held]:
    """Return stage 3's buffers: whole parameters of the outer unit and the layers in use, whole gradients."""
    if not model.units or (settings.shards == 1 and settings.engine == "paper"):
        return []
    policy, torch = engine.policy, settings.engine == "torch"
    outer, *layers = map(numel, model.units)
    ahead = 1 + settings.prefetch
    run = largest_run(layers, ahead)
    at_once = 2 if settings.overlap and settings.engine == "paper" else 1
    under_way = largest_run(layers, at_once)
    found: list[Held] = []

    def add(name: str, size: int, width: int, why: str, *moments: str) -> None:
        found.append(Held(name=name, numels=[size], width=width, why=why, moments=moments))

    if settings.reshard:
        add("gathered parameters", outer, policy.parameter, "whole: the outer unit", FORWARD)
        add("gathered parameters", outer + run, policy.parameter, f"whole: the outer unit and {ahead} layers", START,
            END)  # fmt: skip
    else:
        add("gathered parameters", model.params, policy.parameter, "whole: all are kept from forward", FORWARD, START,
            END)  # fmt: skip
    wire = policy.reduced
    if not torch or under_way > outer:
        add("gradients under way", max(under_way, 0 if torch else outer), wire, f"whole: {at_once} layers", START, END)
    else:
        add("gradients under way", outer, wire, "whole: the outer unit", END)
    if torch and settings.pipeline_parallel > 1 and settings.micro_batches > 1:
        why = "whole: they are reduced after the last micro-batch"
        add("sums of gradients", model.params, settings.policy.reduced, why, FORWARD, START, END)
    if settings.engine != "paper":
        came = max(layers, default=0) + model.early
        add("gradients as they come", came, settings.policy.parameter, "whole: a layer, head and norm", START, END)
    return found


def largest_run(sizes: Sequence[int], length: int) -> int:
    """Return the largest sum of `length` neighbours, or of all if there are fewer."""
    return max((sum(sizes[at : at + length]) for at in range(max(1, len(sizes) - length + 1))), default=0)
