"""Parameters, gradients and the buffers of communication that a rank holds, with the moments, by engine.

Buffers are planned only where tensors are known: a bare number of parameters gives only the states, as in the paper's
formulas. Memory that a schedule holds for less than a layer's time is not planned: a dry run measures it.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from ..training.frozen import frozen_bytes
from ..training.pieces import together
from ..training.precision import FROZEN
from ..training.settings import Settings
from ..training.shapes import Model, numel
from .layout import Layout, everything, padded_rows
from .parts import AVERAGING, END, FORWARD, MOMENTS, START, STEP, Part

ADDED_UP = "two, while they are added up"


def parameters(model: Model, engine: Layout, settings: Settings) -> Part:
    """Return the trained parameters held between steps: whole up to stage 2, a shard in stage 3."""
    policy, mine = engine.policy, sum(engine.shard)
    count, width, cut = mine, policy.kept, f", a shard: 1/{settings.shards}"
    if settings.stage < 3:
        padded = settings.engine == "zero" and settings.stage
        count, width, cut = settings.shards * mine if padded else model.params, policy.parameter, ""
    return Part(category="parameters", name="parameters", nbytes=width * count, why=f"{width} bytes each{cut}",
                host="parameters" in settings.offload)  # fmt: skip


def frozen(model: Model, settings: Settings) -> list[Part]:
    """Return the frozen parameters of a rank's piece, whole or a shard, and a quantized matrix while it is in use."""
    if not settings.partly_frozen:
        return []
    whole, cut, why = model, 1, settings.frozen
    if settings.stage == 3:
        whole = padded_rows(replace(model, units=tuple(together(model.units, settings))), settings)
        cut, why = settings.shards, f"{why}, a shard: 1/{settings.shards}"
    nbytes = sum(ceil(unit / cut) for unit in frozen_bytes(whole, settings))
    largest = max((numel([shape[-2:]]) for unit in model.units[1:] for shape in unit if len(shape) > 1), default=0)
    unpacked, host = 2 * largest if FROZEN[settings.frozen] < FROZEN["bf16"] else 0, "parameters" in settings.offload
    return [
        Part(category="parameters", name="frozen parameters", nbytes=nbytes, why=why, host=host),
        Part(category="parameters", name="dequantized parameters", nbytes=unpacked if nbytes else 0,
             why="the largest matrix in 16 bits", moments=(START, END)),
    ]  # fmt: skip


def gradients(model: Model, engine: Layout, settings: Settings) -> list[Part]:
    """Return the gradients held, fp32 sums included.

    Sharded ones (from stage 2 on) and those that are summed over micro-batches exist until the step; the others come
    layer by layer: at the start of backward the outer unit's, at its end all but the first layer's. The shards of whole
    sums, which are reduced after the last micro-batch, are counted from the first on.
    """
    policy, kept = engine.policy, settings.micro_batches > 1
    averaged = settings.engine == "zero" or (settings.engine == "torch" and settings.stage == 3)
    sharded = settings.stage >= 2 or (averaged and settings.stage == 1)
    cut = settings.shards if sharded else 1
    total = sum(engine.shard) if sharded else model.params
    layers = [numel(unit) // cut for unit in (engine.units if sharded else model.units)[1:]]
    late = total - (layers[0] if layers else 0)  # at the end of backward
    host = "optimizer" in settings.offload and settings.stage >= 2

    def held(name: str, count: int, *moments: str, width: int = policy.gradient) -> Part:
        why = f"{width} bytes each" + (f", a shard: 1/{cut}" if sharded else "")
        return Part(category="gradients", name=name, nbytes=width * count, why=why, moments=moments, host=host)

    sums = []
    if policy.accumulated:  # the sums stay; the 16-bit gradients are there until they are added
        when = MOMENTS if settings.engine == "nanotron" or kept else (START, END, AVERAGING, STEP)
        sums = [held("fp32 sums of gradients", total, *when, width=policy.accumulated)]
    if settings.engine == "nanotron" and sums:
        return [*sums, held("gradients as they come", late, END)]
    name = "averaged gradients" if averaged else "gradients"
    if averaged and settings.stage == 1:
        own, before = settings.policy.parameter, (FORWARD, START) if kept else ()
        return [held("gradients", model.params, *before, END, AVERAGING, STEP, width=own), held(name, total, STEP)]
    if settings.whole_gradients:
        sums.append(Part(category="gradients", name="sums of whole gradients", nbytes=policy.reduced * model.params,
                         why="whole: reduced after the last micro-batch", moments=(FORWARD, START, END)))  # fmt: skip
    if kept:
        return [*sums, held(name, total, FORWARD, START, END, AVERAGING, STEP)]
    if not layers:
        return [*sums, held(name, total, END, AVERAGING, STEP)]
    early = model.early
    if settings.engine == "zero" and settings.stage == 0:  # a bucket is whole from its first gradient on
        bucket = engine.bucket_bytes // settings.policy.parameter
        early, late = min(total, early + bucket), min(total, late + bucket)
    outer = held(f"{name} outside the layers", early // cut, START)
    return [*sums, outer, held(f"{name} of all but the first layer", late, END), held(name, total, AVERAGING, STEP)]


def buffers(whole: Model, model: Model, engine: Layout, settings: Settings) -> list[Part]:
    """Return the buffers of communication, and the whole gradients on their way there; for a single rank, only what
    moves between the device and the host, or what this course's engines make. Of the `whole` piece `model` is trained.
    """
    if settings.stage == 3:
        return _unit_buffers(whole, model, engine, settings)
    if settings.data_parallel == 1 and settings.engine != "zero" and not (settings.stage == 2 and settings.offload):
        return []
    width = engine.policy.gradient
    if settings.engine in ("torch", "nanotron"):
        return [
            _buffer("gradient buckets", model.params, width, "DistributedDataParallel's copy of all", *MOMENTS),
            _buffer("gradients of tied tensors", 2 * model.tied, width, ADDED_UP, END),
        ]
    if settings.engine == "zero":
        return _flat_gradients(model, engine, settings)
    bucket = min(2 * engine.bucket_bytes // width, model.params)
    return [_buffer("gradients under way", bucket, width, "2 buckets", START, END)]


def _buffer(name: str, count: float, width: int, why: str, *moments: str) -> Part:
    return Part(category="communication", name=name, nbytes=ceil(count * width), why=why, moments=moments)


def _flat_gradients(model: Model, engine: Layout, settings: Settings) -> list[Part]:
    """Return the flat buffers of this course's engines to stage 2, and the gradient that moves into one.

    In 16 bits, torch makes an fp32 copy on CPUs of what it adds to an fp32 sum. Stage 0 has no further buffer, but from
    the second micro-batch on, new sums are there until the end of backward, and the old ones as well.
    """
    policy, stage, largest = engine.policy, settings.stage, max(everything(model))
    when = AVERAGING if stage == 1 else END
    whole = settings.shards * largest_run(engine.shard, stage) if stage else 0
    found = [_buffer("gradients under way", whole, policy.gradient, "whole, flat and padded", when)]
    if stage == 1:
        found.append(_buffer("their average", whole // settings.shards, policy.gradient, "a shard", when))
    else:
        found.append(_buffer("a gradient as it comes", largest, settings.policy.parameter, "whole", when))
    found.append(_buffer("gradients of tied tensors", 2 * model.tied, settings.policy.parameter, ADDED_UP, END))
    if not stage and settings.micro_batches > 1:
        first = min(model.early + engine.bucket_bytes // settings.policy.parameter, model.params)
        found += [_buffer("new sums of gradients", count, policy.gradient, "whole, next to the old ones", moment)
                  for count, moment in ((first, START), (model.params, END))]  # fmt: skip
    if policy.master:
        found.append(_buffer("a gradient cast to be added", largest, policy.gradient, "torch does so on CPUs", when))
    return found


def _unit_buffers(whole_model: Model, model: Model, engine: Layout, settings: Settings) -> list[Part]:
    """Return stage 3's buffers: whole parameters of the outer unit and the layers in use, whole gradients."""
    whole_here = settings.shards == 1 and settings.engine == "paper"
    if whole_here and not settings.offload:
        return []
    policy, torch = engine.policy, settings.engine == "torch"
    outer, *layers = model.sizes
    at_once = 2 if settings.engine == "paper" else 1
    under_way = largest_run(layers, at_once)
    there = whole_here and "parameters" not in settings.offload
    found = [] if there else _gathered(whole_model, model, policy.parameter, settings)
    when = (START, END) if not torch or under_way > outer else (END,)
    whole = f"whole: {at_once} layers" if under_way > outer else "whole: what is outside the layers"
    found.append(_buffer("gradients under way", max(under_way, outer), policy.reduced, whole, *when))
    if settings.engine != "paper":
        came, own = max(layers, default=0) + model.early, settings.policy.parameter
        found.append(_buffer("gradients as they come", came, own, "whole: a layer, head and norm", START, END))
    return found


def _gathered(model: Model, own: Model, width: int, settings: Settings) -> list[Part]:
    """Return the whole parameters: of all units, if forward keeps them, or of the outer unit and the layers in use.

    If only some ranks gather in backward, each keeps their part of all units from forward on.
    """
    outer, *layers = gathered_bytes(model, own, width, settings)

    def held(nbytes: float, why: str, *moments: str) -> Part:
        return Part(category="parameters", name="gathered parameters", nbytes=ceil(nbytes), why=f"whole: {why}",
                    moments=moments)  # fmt: skip

    if not settings.reshard:
        return [held(outer + sum(layers), "all are kept from forward", FORWARD, START, END)]
    ahead = min(1 + settings.prefetch, len(layers))
    in_use = held(outer + largest_run(layers, ahead), f"what is outside the layers, and {ahead} layers", START, END)
    found, again = [held(outer, "what is outside the layers", FORWARD), in_use], settings.gathers_again
    if again < settings.shards:
        second, why = ceil((outer + sum(layers)) / again), f"1/{again}, from forward to backward"
        found.append(Part(category="parameters", name="second shard of parameters", nbytes=second, why=why,
                          moments=(FORWARD, START, END)))  # fmt: skip
    return found


def gathered_bytes(model: Model, own: Model, width: int, settings: Settings) -> list[float]:
    """Return the bytes of each unit as stage 3 gathers it: frozen parameters in their type, matrices perhaps in fp8.

    A bare number does not say what is in matrices: fp8 changes nothing there.
    """
    sizes = [width * size for size in own.sizes] or [width * own.params]
    if settings.fp8 == "gathers" and own.units:
        sizes = [size - (width - 1) * numel([shape for shape in unit if at and len(shape) > 1])
                 for at, (size, unit) in enumerate(zip(sizes, own.units, strict=True))]  # fmt: skip
    return [a + b for a, b in zip(sizes, frozen_bytes(model, settings), strict=True)]


def largest_run(sizes: Sequence[float], length: int) -> float:
    """Return the largest sum of `length` neighbours, or of all if there are fewer."""
    return max((sum(sizes[at : at + length]) for at in range(max(1, len(sizes) - length + 1))), default=0)
