"""Parameters, gradients and the buffers of communication that a rank holds, with the moments, by engine.

Buffers are planned only where tensors are known: a bare number of parameters gives only the states, as in the paper's
formulas. Memory that a schedule holds for less than a layer's time is not planned: a dry run measures it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..training.settings import Settings
from ..training.shapes import Model, numel
from .layout import Layout, everything
from .parts import AVERAGING, END, FORWARD, MOMENTS, START, STEP


@dataclass(frozen=True, kw_only=True)
class Held:
    """Tensors of `numels` elements of `width` bytes, when they exist, and the reason for their size."""

    name: str
    numels: Sequence[int]
    width: int
    why: str
    moments: tuple[str, ...] = MOMENTS


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
    policy, whole, kept = engine.policy, everything(model), settings.micro_batches > 1
    averaged = settings.engine == "zero" or (settings.engine == "torch" and settings.stage == 3)
    sharded = settings.stage >= 2 or (averaged and settings.stage == 1)
    cut = settings.shards if sharded else 1
    total = engine.shard if sharded else whole
    layers = [numel(unit) // cut for unit in model.units[1:]]
    late = sum(total) - (layers[0] if layers else 0)  # at the end of backward
    why = f"{policy.gradient} bytes each" + (f", a shard: 1/{cut}" if sharded else "")

    def held(name: str, numels: Sequence[int], *moments: str, width: int = policy.gradient) -> Held:
        return Held(name=name, numels=numels, width=width, why=why, moments=moments)

    sums = []
    if policy.accumulated:  # the sums stay; the 16-bit gradients are there until they are added
        when = MOMENTS if settings.engine == "nanotron" or kept else (START, END, AVERAGING, STEP)
        sums = [held("fp32 sums of gradients", total, *when, width=policy.accumulated)]
    if settings.engine == "nanotron" and sums:
        return [*sums, held("gradients as they come", [late], END)]
    name = "averaged gradients" if averaged else "gradients"
    if averaged and settings.stage == 1:
        own, before = settings.policy.parameter, (FORWARD, START) if kept else ()
        return [held("gradients", whole, *before, END, AVERAGING, STEP, width=own), held(name, total, STEP)]
    if kept:
        return [*sums, held(name, total, FORWARD, START, END, AVERAGING, STEP)]
    if not layers:
        return [*sums, held(name, total, END, AVERAGING, STEP)]
    outer = held(f"{name} of the outer unit", [model.early // cut], START)
    return [*sums, outer, held(f"{name} of all but the first layer", [late], END), held(name, total, AVERAGING, STEP)]


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
    at_once = 2 if settings.overlap and settings.engine == "paper" else 1
    under_way = largest_run(layers, at_once)

    def held(name: str, size: int, width: int, why: str, *moments: str) -> Held:
        return Held(name=name, numels=[size], width=width, why=why, moments=moments)

    found = _gathered(model, policy.parameter, settings)
    when = (START, END) if not torch or under_way > outer else (END,)
    whole = f"whole: {at_once} layers" if under_way > outer else "whole: the outer unit"
    found.append(held("gradients under way", max(under_way, outer), policy.reduced, whole, *when))
    if torch and settings.pipeline_parallel > 1 and settings.micro_batches > 1:
        why = "whole: they are reduced after the last micro-batch"
        found.append(held("sums of gradients", model.params, policy.reduced, why, FORWARD, START, END))
    if settings.engine != "paper":
        came, own = max(layers, default=0) + model.early, settings.policy.parameter
        found.append(held("gradients as they come", came, own, "whole: a layer, head and norm", START, END))
    return found


def _gathered(model: Model, width: int, settings: Settings) -> list[Held]:
    """Return the whole parameters: of all units, if forward keeps them, or of the outer unit and the layers in use."""
    outer, *layers = map(numel, model.units)
    ahead = 1 + settings.prefetch
    some = outer + largest_run(layers, ahead)
    in_use = f"whole: the outer unit and {min(ahead, len(layers))} layers"
    sizes = [(outer, "whole: the outer unit", (FORWARD,)), (some, in_use, (START, END))]
    if not settings.reshard:
        sizes = [(model.params, "whole: all are kept from forward", (FORWARD, START, END))]
    return [
        Held(name="gathered parameters", numels=[size], width=width, why=why, moments=moments)
        for size, why, moments in sizes
    ]


def largest_run(sizes: Sequence[int], length: int) -> int:
    """Return the largest sum of `length` neighbours, or of all if there are fewer."""
    return max((sum(sizes[at : at + length]) for at in range(max(1, len(sizes) - length + 1))), default=0)
