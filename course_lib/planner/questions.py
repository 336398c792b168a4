"""Seventeen questions about the memory of sharded training, answered from a plan: `plan.explain(hardware, question)`.

They are the questions that torch's memory tracker was made for (pytorch pull request 125323).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from .explain import MARGIN, shortage, size
from .memory import activations
from .timing.hardware import Hardware, hardware
from .training.checks import PlanError, largest, pick
from .training.shapes import Transformer, numel

if TYPE_CHECKING:
    from .plan import Plan

NO_ACTIVATIONS = "Only a transformer's activations are planned. A dry run measures them for any model."
Answer = Callable[["Plan", Hardware], str]


def answer(plan: Plan, question: str, machine: Hardware) -> str:
    """Return the answer to one of `QUESTIONS`. Raises ValueError if there is no such question."""
    _, reply = pick("question", question, QUESTIONS)
    if plan.model.transformer is None and reply in (_batch, _sequence, _checkpointing, _per_unit, _module, _frees):
        return NO_ACTIVATIONS
    return reply(plan, machine)


def fits(plan: Plan, machine: str | Hardware) -> bool:
    """Return whether what the plan reserves on the device, and holds on the host, is not larger than the memory."""
    return shortage(plan, hardware(machine))[0] <= 0


def most_that_fits(plan: Plan, machine: str | Hardware, name: str) -> int:
    """Return the largest "batch" or "sequence" that fits, 0 if none does. A sequence is not longer than the context.

    Raises:
        ValueError: nothing says what activations take.
    """
    known = plan.model.transformer
    if known is None:
        raise PlanError(f"the largest {name} for {plan.model.name}: {NO_ACTIVATIONS} Give model=..., a transformer.")
    most = known.context if name == "sequence" else 2**20
    return largest(lambda value: fits(_with(plan, **{name: value}), machine), most)


def _with(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, settings=replace(plan.settings, **changes))


def _room(plan: Plan, machine: Hardware) -> str:
    short = shortage(plan, machine)[0]
    return f"{size(-short)} stay free" if short <= 0 else f"{size(short)} are missing"


def _difference(plan: Plan, machine: Hardware, **changes: Any) -> str:
    """Return what peak and step become with other settings."""
    other = _with(plan, **changes)
    before, after = plan.step_seconds(machine), other.step_seconds(machine)
    step = f"the step {1e3 * before:.4g} -> {1e3 * after:.4g} ms"
    return f"the peak {size(plan.peak_bytes)} -> {size(other.peak_bytes)}, {step}"


def _peak(plan: Plan, machine: Hardware) -> str:
    return (
        f"{size(plan.peak_bytes)} at {plan.peak_moment}; torch will report about {size(plan.active_bytes)} active and "
        f"{size(plan.reserved_bytes)} reserved. On {machine.name}, {_room(plan, machine)} (a plan is within "
        f"{MARGIN:.0%})."
    )


def _wrapping(plan: Plan, machine: Hardware) -> str:
    units = plan.piece.units
    if len(units) < 2 or plan.settings.stage < 3:
        return "Units matter in stage 3, and where tensors are known: elsewhere nothing is gathered."
    alone = _with(
        plan, world_size=plan.settings.data_parallel, tensor_parallel=1, pipeline_parallel=1, pipeline_stage=0
    )
    bare = replace(alone, model=replace(plan.piece, transformer=None))
    whole = replace(bare, model=replace(bare.model, units=((), tuple(s for unit in units for s in unit)), behind=0))
    layer, model = (size(one.bytes["parameters"] + one.bytes["communication"]) for one in (bare, whole))
    return f"Parameters and buffers take {layer} with a unit for each layer, and {model} with one unit for the model."


def _batch(plan: Plan, machine: Hardware) -> str:
    most = most_that_fits(plan, machine, "batch")
    return f"At most {most} sequences of {plan.settings.sequence} tokens fit in a micro-batch on {machine.name}."


def _sequence(plan: Plan, machine: Hardware) -> str:
    most = most_that_fits(plan, machine, "sequence")
    return f"At most {most} tokens fit in each of {plan.settings.batch} sequences on {machine.name}."


def _ranks(plan: Plan, machine: Hardware) -> str:
    ranks = plan.settings.tensor_parallel * plan.settings.pipeline_parallel
    while ranks <= 2**20:
        one = _with(plan, world_size=ranks, shard_size=None)
        if fits(one, machine):
            return f"From {ranks} ranks on it fits {machine.name}: {size(one.peak_bytes)} at the peak."
        ranks *= 2
    return f"With no number of ranks: {size(one.peak_bytes)} stay whole on each of them."


def _offload(plan: Plan, machine: Hardware) -> str:
    if not plan.settings.stage:
        return "Stage 0 has no shard to move to the host. Choose stage 1, 2 or 3."
    return f"With the optimizer on the host, {_difference(plan, machine, offload=('optimizer',))}."


def _checkpointing(plan: Plan, machine: Hardware) -> str:
    plans = {how: _with(plan, checkpointing=how) for how in ("none", "selective", "operators", "full")}
    ways = [f"{how}: {size(one.peak_bytes)}, {1e3 * one.step_seconds(machine):.4g} ms" for how, one in plans.items()]
    fitting = [how for how, one in plans.items() if fits(one, machine)]
    chosen = f"{fitting[0]!r} is the first that fits" if fitting else "nothing fits"
    return f"{'; '.join(ways)}; {chosen}."


def _per_unit(plan: Plan, machine: Hardware) -> str:
    known, width = cast(Transformer, plan.model.transformer), plan.settings.policy.parameter
    outer, layer = (size(width * numel(unit)) for unit in (plan.piece.units[0], plan.piece.units[-1]))
    kept = size(plan.settings.tokens * activations.kept(known, plan.settings))
    return (
        f"The outer unit has {outer} of parameters, a layer {layer} of parameters and {kept} of activations for each "
        "micro-batch."
    )


def _reduction(plan: Plan, machine: Hardware) -> str:
    changed = _difference(plan, machine, precision="mixed_fp32_accumulation")
    return f"With gradients summed and reduced in fp32, {changed}."


def _mixed(plan: Plan, machine: Hardware) -> str:
    other = "fp32" if plan.settings.precision != "fp32" else "mixed"
    return f"In {other} instead of {plan.settings.precision}, {_difference(plan, machine, precision=other)}."


def _hybrid(plan: Plan, machine: Hardware) -> str:
    settings = plan.settings
    node = machine.devices // settings.tensor_parallel
    if settings.stage < 3 or not node or settings.data_parallel <= node or settings.data_parallel % node:
        return "Hybrid sharding needs stage 3 and several whole nodes."
    hybrid = _difference(_with(plan, shard_size=None), machine, shard_size=node)
    return f"With shards in each node and replicas across nodes, {hybrid}: worth it if the step is shorter and it fits."


def _smaller_mesh(plan: Plan, machine: Hardware) -> str:
    half = plan.settings.data_parallel // 2
    if plan.settings.stage < 3 or half < 1:
        return "Resharding to a smaller mesh needs stage 3 and two ranks or more."
    kept = plan.piece.params * plan.settings.policy.parameter // half
    return f"If forward leaves each rank 1/{half} of the parameters, {size(kept)} stay until backward."


def _no_reshard(plan: Plan, machine: Hardware) -> str:
    if plan.settings.stage < 3:
        return "Up to stage 2, parameters are whole anyway."
    other = _with(plan, reshard=False)
    return f"With parameters kept from forward, {_difference(plan, machine, reshard=False)}; {_room(other, machine)}."


def _module(plan: Plan, machine: Hardware) -> str:
    items = activations.layer(cast(Transformer, plan.model.transformer), plan.settings)
    most = max(items, key=lambda name: items[name])
    part, whole = (size(plan.settings.tokens * nbytes) for nbytes in (items[most], sum(items.values())))
    return f"In each layer the {most}: {part} of {whole}."


def _unsharded(plan: Plan, machine: Hardware) -> str:
    sizes = [numel(unit) for unit in plan.piece.units]
    if plan.settings.stage < 3 or not sizes:
        return f"Every unit: {size(plan.settings.policy.parameter * plan.piece.params)} of parameters stay whole."
    largest = max(range(len(sizes)), key=lambda at: sizes[at])
    name = f"layer {largest - 1}" if largest else "the outer unit, with embedding and head,"
    return f"Gathered, {name} holds most: {size(plan.settings.policy.parameter * sizes[largest])}."


def _frees(plan: Plan, machine: Hardware) -> str:
    none, full = (_with(plan, checkpointing=how) for how in ("none", "full"))
    freed = none.peak_bytes - full.peak_bytes
    return f"Full checkpointing lowers the peak by {size(freed)}, {freed / none.peak_bytes:.0%}."


def _speed(plan: Plan, machine: Hardware) -> str:
    return f"{plan.tokens_per_second(machine):,.0f} tokens a second on each GPU, {plan.mfu(machine):.1%} of the peak."


QUESTIONS: dict[str, tuple[str, Answer]] = {
    "peak": ("What is the peak now?", _peak),
    "wrapping": ("What if units are wrapped differently?", _wrapping),
    "batch": ("Which micro-batch is the largest that fits?", _batch),
    "sequence": ("Which sequence is the longest that fits?", _sequence),
    "world_size": ("From how many ranks on does it fit?", _ranks),
    "offload": ("What does the optimizer on the CPU change?", _offload),
    "checkpointing": ("Which checkpointing is needed?", _checkpointing),
    "units": ("What does each unit hold?", _per_unit),
    "fp32_reduction": ("What does a reduction in fp32 cost?", _reduction),
    "mixed_precision": ("What does mixed precision cost or save?", _mixed),
    "hybrid": ("When is hybrid sharding worth it?", _hybrid),
    "smaller_mesh": ("What does resharding to a smaller mesh hold?", _smaller_mesh),
    "no_reshard": ("Can parameters stay whole after forward?", _no_reshard),
    "module": ("Which module makes the activations?", _module),
    "unsharded": ("Which unit holds the most unsharded memory?", _unsharded),
    "checkpointing_frees": ("Does checkpointing lower the peak?", _frees),
    "speed": ("How fast is it?", _speed),
}
"""Each question in words, and the function that answers it."""
