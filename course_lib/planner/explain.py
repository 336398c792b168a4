"""Explanations of a plan, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .fit import holder, shortage, tightest, verdict
from .memory import activations
from .memory.held import gathered_bytes
from .memory.parts import BETWEEN, CATEGORIES, MOMENTS
from .text import aligned, count, duration, size
from .timing.hardware import HARDWARE, RATES_OF_2025, Hardware
from .timing.schedule import COMMUNICATION, COMPUTE, CONTEXT, EXPERT, HOST, PIPELINE, TENSOR
from .timing.work import EQUAL_UNITS
from .training.checks import PlanError
from .training.frozen import trained
from .training.settings import Settings

if TYPE_CHECKING:
    from .plan import Plan


COSTS = ("memory", "step", "tokens/s a GPU", "MFU")


def assumed(settings: Settings) -> dict[str, Any]:
    """Return the settings that matter in any plan, or for what is frozen here, and that have their defaults."""
    usual, names = Settings(), [
        "sequence", "attention", "engine", "precision", "optimizer", "implementation", "batch", "micro_batches",
        "checkpointing", *["frozen"] * settings.partly_frozen, *["adapted"] * (settings.lora_rank > 0),
    ]  # fmt: skip
    return {name: getattr(usual, name) for name in names if getattr(settings, name) == getattr(usual, name)}


def how(settings: Settings) -> str:
    """Return the settings that matter most, in one line: `stage 2 on 64 ranks, mixed, adam`."""
    cuts = {"TP": settings.tensor_parallel, "CP": settings.context_parallel, "EP": settings.expert_parallel,
            "PP": settings.pipeline_parallel, "LoRA": settings.lora_rank}  # fmt: skip
    words = {
        f"stage {settings.stage} on {count(settings.world_size, 'rank')}": True,
        **{f"{name} {ranks}": ranks > (name != "LoRA") for name, ranks in cuts.items()},
        f"{settings.model_chunks} parts a stage": settings.pipeline_parallel > 1 < settings.model_chunks,
        f"{settings.trainable:.3g} of it trained": settings.trainable < 1,
        settings.precision: True, f"fp8 {settings.fp8}": settings.fp8 != "none", settings.optimizer: True,
        f"frozen in {settings.frozen}": settings.partly_frozen and settings.frozen != "bf16",
        f"sharded over {settings.shards}, {settings.replicas} replicas": settings.stage and settings.replicas > 1,
        f"reshard {settings.reshard or 'no'}": settings.stage == 3 and settings.reshard is not True,
        f"{settings.checkpointing} checkpointing": settings.checkpointing != "none",
        f"buckets of {size(settings.bucket_bytes or 0)}": settings.bucket_bytes is not None and settings.stage < 3,
        f"{' and '.join(settings.offload)} on the host": settings.offload,
        f"micro-batches of {settings.batch}": settings.batch > 1,
        "no_sync": settings.no_sync and settings.micro_batches > 1,
    }  # fmt: skip
    return ", ".join(word for word, said in words.items() if said)


def header(plan: Plan) -> Iterator[str]:
    """Yield lines on the model and the settings, on what nobody gave, and on what the plan leaves out."""
    model, known = plan.model, plan.model.transformer
    active = f", {model.params - known.idle:,} for each token" if known and known.idle else ""
    usual = [f"{name}={value}" for name, value in assumed(plan.settings).items()]
    yield f"{model.name}: {model.params:,} parameter{'s' * (model.params != 1)}{active}; {how(plan.settings)}."
    yield f"Assumed, as by default: {', '.join(usual) or 'nothing'}."
    yield from notes(plan)


def notes(plan: Plan) -> Iterator[str]:
    """Yield sentences on settings that change nothing or go beyond the model, and on what the plan leaves out."""
    known, settings = plan.model.transformer, plan.settings
    chunks, stages = settings.model_chunks, settings.pipeline_parallel
    for name, idle, why in (
        ("frozen", settings.frozen != "bf16" and not settings.partly_frozen,
         "all is trained. Give lora_rank=16 or trainable=0.01 as well"),
        ("model_chunks", chunks > 1 == stages, "there is one stage. Give pipeline_parallel as well"),
        ("adapted", settings.adapted != "all" and not settings.partly_frozen,
         "all is trained. Give lora_rank=16 or trainable=0.01 as well"),
        ("no_sync", settings.no_sync and settings.micro_batches == 1, "there is one micro-batch"),
        ("reshard", settings.reshard is not True and settings.stage < 3, "only stage 3 gathers parameters"),
        ("prefetch", settings.prefetch != 1 and settings.stage < 3, "only stage 3 gathers parameters"),
        ("sequence_parallel", not settings.sequence_parallel and settings.tensor_parallel == 1,
         "no rank has a part of the matrices"),
        ("capacity_factor", settings.capacity_factor != 1 and known is not None and known.experts < 2,
         "it has no experts"),
        ("whole_logits", settings.whole_logits and settings.tensor_parallel == 1, "no rank has a part of the logits"),
    ):  # fmt: skip
        if idle:
            yield f"{name}={getattr(settings, name)} changes nothing: {why}."
    if settings.fp8 != "none":
        yield "MFU, the model FLOPs utilization, is of the machine's peak in bf16."
    if settings.lora_rank and (settings.shards > 1 or settings.offload):
        yield ("Published runs of adapters with sharded or offloaded states held 0.7 to 1.9 times the planned memory: "
               "see docs/limits.md.")  # fmt: skip
    elif settings.lora_rank and settings.frozen not in ("fp32", "bf16"):
        yield ("Published runs of adapters on a model in 4 or 8 bits held up to 1.9 times the planned memory: see "
               "docs/limits.md.")  # fmt: skip
    if settings.fp8 == "gathers" and settings.stage == 3 and not plan.model.units:
        yield "All is gathered in 16 bits: a number does not say which parameters are in matrices."
    if chunks > 1 < stages and known and known.layers % (stages * chunks) not in (0, stages * chunks - 2):
        yield (f"{known.layers} layers do not divide into {stages} x {chunks} parts: Megatron-LM needs a "
               "--pipeline-model-parallel-layout for this.")  # fmt: skip
    if chunks > 1 < stages and settings.micro_batches % stages:
        yield (f"micro_batches={settings.micro_batches} is not a multiple of the {stages} stages, which interleaving "
               "needs in Megatron-LM.")  # fmt: skip
    if known and settings.sequence > known.context:
        yield f"{known.name} was made for {known.context} tokens. It needs training to read longer sequences."
    if known is None:
        what, left = ("shapes are", "") if plan.model.units else ("number of parameters is", "buffers, ")
        yield (f"Only the {what} known. The plan leaves out {left}activations, and the time of attention scores and "
               "element-wise work. In it, all parameters compute each token, as without experts.")  # fmt: skip
    if lacks_exchange(plan):
        yield ("The plan also leaves out the activations that ranks exchange: they send more, and a step takes longer. "
               "Give a model to count these.")  # fmt: skip


def lacks_exchange(plan: Plan) -> bool:
    """Return whether ranks exchange activations that are not planned, because nothing is known of the layers."""
    settings = plan.settings
    ways = settings.tensor_parallel * settings.pipeline_parallel * settings.context_parallel
    return plan.model.transformer is None and ways > 1


def sent(plan: Plan) -> str:
    """Return the bytes that one rank sends in a step, as text: the least, if `lacks_exchange`."""
    return f"{'at least ' * lacks_exchange(plan)}{size(plan.sent_bytes)}"


def page(plan: Plan, *machines: Hardware) -> Iterator[str]:
    """Yield paragraphs: what is assumed, the memory by category, and what it costs on each machine; errors as `costs`.

    Without machines it is on all by name that have a place for its ranks.
    """
    yield from header(plan)
    peak, between = plan.moments[plan.peak_moment], plan.moments[BETWEEN]
    held = [(name, size(peak[name]), size(between[name])) for name in CATEGORIES if peak[name] or between[name]]
    held.append(("all", size(plan.peak_bytes), size(sum(between.values()))))
    yield aligned([(f"held by {holder(plan)}", f"at the peak, {plan.peak_moment}", BETWEEN), *held])
    kept = f"With the gaps that torch leaves, it takes {size(plan.reserved_bytes)} on the device."
    host = on_the_host(plan, *machines)
    yield f"{kept}{host}{fuller(plan)} {sender(plan).capitalize()} sends {sent(plan)} in a step."
    rows: list[tuple[str, ...]] = [("on", *COSTS)]
    shown: list[tuple[Plan, Hardware]] = []
    for name, machine in [(one.name, one) for one in machines] or HARDWARE.items():
        try:
            rows.append((name, *costs(plan, machine)))
            shown.append((plan, machine))
        except PlanError:  # the ranks do not fit its nodes
            if machines:
                raise
    ranks = plan.settings.world_size
    yield aligned(rows) if rows[1:] else f"No machine by name has whole nodes for {count(ranks, 'rank')}."
    for machine in machines:
        short, where = shortage(plan, machine)
        if short > 0:
            yield f"It {verdict(plan, machine)}: {size(short)} short on {holder(tightest(plan, machine))}, {where}."
    yield from band(*shown)


def band(*shown: tuple[Plan, Hardware]) -> Iterator[str]:
    """Yield sentences on how far published seconds are from those of these plans, where they are known to be far."""
    published, later = dict[str, None](), list[tuple[float, float]]()
    seconds, steps = "Seconds", "steps"
    for plan, machine in shown:
        known, flops = plan.model.transformer, machine.fast_flops
        on_b200 = plan.settings.engine == "torch" and flops == HARDWARE["b200"].fast_flops
        far = {
            "runs with experts took 0.5 to 10 times": ("validation", known and known.experts),
            "steps with offload took 0.4 to 5 times": ("limits", plan.settings.offload),
            "runs of PyTorch on B200 took 1.7 times": ("validation", on_b200),
            "runs on RTX 4090 took 0.57 to 0.87 times": ("validation", flops == HARDWARE["rtx-4090"].fast_flops),
        }
        said = [f"Published {text} the planned seconds: see docs/{page}.md." for text, (page, so) in far.items() if so]
        published |= dict.fromkeys(said)
        new_gpu = machine.switch and machine.achievable == HARDWARE["h100"].achievable
        if new_gpu and said:
            seconds, steps = "Other seconds", "these steps"
        elif new_gpu:
            later.append((plan.step_seconds(replace(machine, **RATES_OF_2025)), plan.step_seconds(machine)))
    yield from published
    if later and len(shown) == 1:
        new, old = map(duration, later[0])
        takes = "takes as long" if new == old else f"may take {new}"
        yield f"Its seconds are those of software of 2023. With that of 2025 and full power, a step {takes}."
    elif later:
        shares = sorted(f"{new / old:.2f}" for new, old in later)
        taken = " to ".join(dict.fromkeys((shares[0], shares[-1])))
        yield (f"{seconds} on H100 and newer GPUs are those of software of 2023. With that of 2025 and full power, "
               f"{steps} may take {taken} times as long.")  # fmt: skip


def costs(plan: Plan, machine: Hardware) -> tuple[str, ...]:
    """Return what `COSTS` names, on this machine; errors as `Plan.timeline`."""
    seconds, short = plan.step_seconds(machine), shortage(plan, machine)[0]
    known = "" if plan.model.transformer else " without activations"
    room = f"{verdict(plan, machine)}, {size(short)} short" if short > 0 else f"fits{known}, {size(-short)} free"
    return room, duration(seconds), f"{plan.settings.tokens_per_rank / seconds:,.0f}", f"{plan.mfu(machine):.1%}"


def units(plan: Plan) -> Iterator[str]:
    """Yield lines on the units, which stage 3 gathers one by one, and on what a layer keeps for backward."""
    piece, settings, known = plan.piece, plan.settings, plan.model.transformer
    if not piece.units:
        return
    found = gathered_bytes(piece, trained(piece, settings), settings.policy.parameter, settings)
    outer, layer, whole = map(size, (found[0], found[-1], sum(found)))
    gathered = f"a part at a time: a layer, {layer}, or what is outside the layers, {outer}"
    all_of_it = "the whole model" if piece is plan.model else "this rank's piece of the model"
    yield f"\nStage 3 gathers {gathered}. If {all_of_it} were one part, it would gather all {whole} at once."
    if known:
        kept = size(settings.tokens * activations.kept(known, settings))
        yield f"A layer keeps {kept} of a micro-batch's activations for backward. Without recomputation it makes:"
        made = activations.layer(known, settings).items()
        yield from (f"  {size(settings.tokens * nbytes):>10}  {name}" for name, nbytes in made if nbytes)


def on_the_host(plan: Plan, *machines: Hardware) -> str:
    """Return a sentence on what a rank holds on the host; empty if nothing.

    With one machine, it adds the bytes of all ranks that share a host, unless they may be different pipeline stages.
    """
    if not plan.host_bytes:
        return ""
    alike = len(machines) == 1 and plan.settings.pipeline_parallel == 1
    ranks = machines[0].sharing(plan.settings.world_size) if alike else 1
    all_ranks = f", {size(ranks * plan.host_bytes)} for the {ranks} ranks that share it" if ranks > 1 else ""
    return f" {sender(plan).capitalize()} holds {size(plan.host_bytes)} on the host{all_ranks}."


def fuller(plan: Plan) -> str:
    """Return a sentence on the stage of a pipeline that holds more than this one; nothing if none does."""
    most = size(plan.fullest.peak_bytes)
    return "" if most == size(plan.peak_bytes) else f" {holder(plan.fullest).capitalize()} holds more: at most {most}."


def sender(plan: Plan) -> str:
    """Return who sends what the plan says: stages of a pipeline differ."""
    return "each rank" if plan.settings.pipeline_parallel == 1 else holder(plan)


def memory(plan: Plan) -> Iterator[str]:
    """Yield lines on what the rank holds, part by part, and the most at once."""
    alone = plan.settings.pipeline_parallel == 1
    yield f"\nHeld by {holder(plan)}" + ("; no rank holds more:" if alone else f".{fuller(plan)}")
    for part in plan.parts:
        where = "host" if part.host else part.category
        first_and_last = dict.fromkeys((part.moments[0], part.moments[-1]))
        when = "" if part.moments == MOMENTS else f" ({' to '.join(first_and_last)})"
        yield f"  {size(part.nbytes):>10}  {where:<13}  {part.name}: {part.why}{when}"
    between = sum(plan.moments["between steps"].values())
    yield f"  Most at once on the device: {size(plan.peak_bytes)}, {plan.peak_moment}; {size(between)} between steps."
    yield "  What lives for less than a layer's time is not planned. A dry run measures it."


def traffic(plan: Plan) -> Iterator[str]:
    """Yield lines on what the rank sends, collective by collective."""
    yield f"\nSent by {sender(plan)} in a step: {sent(plan)}"
    for call in plan.collectives:
        when = call.when if call.when.startswith("after") else f"in {call.when}"
        yield f"  {size(float(call.sent)):>10}  {call.op:<14}  {call.what} {when}, among {call.ranks} ranks"


def time(plan: Plan, hardware: Hardware) -> Iterator[str]:
    """Yield lines on the time of a step, and on what is hidden behind computing."""
    timeline, tokens = plan.timeline(hardware), plan.settings.tokens_per_rank
    yield f"\nA step of {count(f'{tokens:.10g}', 'token')} a rank on {hardware.name}: {duration(timeline.seconds)}"
    for label in ("earlier micro-batches", "forward", "backward", "optimizer step"):
        spent = sum(s.seconds for s in timeline.spans if s.stream == COMPUTE and s.name.startswith(label))
        if spent:
            yield f"  {duration(spent):>10}  compute          {label}"
    for stream in (COMMUNICATION, TENSOR, EXPERT, CONTEXT, PIPELINE, HOST):
        if busy := timeline.busy(stream):
            exposed = timeline.exposed(stream, COMPUTE)
            yield f"  {duration(busy):>10}  {stream:<15}  {duration(exposed)} of it while nothing is computed"
    if timeline.busy(COMMUNICATION) + timeline.busy(HOST) > 0:
        yield "  On a GPU, communication slows the computing that it overlaps with. The plan does not count this."
    speed, used = plan.tokens_per_second(hardware), plan.mfu(hardware)
    yield f"  {speed:,.0f} tokens a second on each GPU; model FLOPs utilization {used:.1%}."
    if not plan.model.units:
        yield f"  Timed as {EQUAL_UNITS} equal units, since nothing is known of the layers."
