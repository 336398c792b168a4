"""The memory of a rank, byte by byte, at each moment of a step; see parts.py for the moments."""

from collections.abc import Iterator

from ..text import count
from ..training.frozen import trained
from ..training.settings import Settings
from ..training.shapes import Model, Transformer, numel
from . import activations
from .held import buffers, frozen, gradients, parameters
from .layout import Layout, layout, optimized
from .parts import END, FORWARD, START, STEP, Part


def parts(model: Model, settings: Settings) -> tuple[Part, ...]:
    """Return everything that rank 0 holds of its piece of the model.

    No rank holds more, except for counts of steps: the shard of another rank may contain more tensors, of 4 bytes each.
    """
    own = trained(model, settings)
    engine = layout(own, settings)
    found = [parameters(own, engine, settings), *frozen(model, settings), *gradients(own, engine, settings),
             *_optimizer(engine, model, settings)]  # fmt: skip
    if model.units:
        found += [*buffers(model, own, engine, settings), *_temporaries(engine, settings)]
    if model.transformer:
        found += [*_activations(model, model.transformer, settings), *_copies(model, own, settings)]
    return tuple(part for part in found if part.nbytes)


def _optimizer(engine: Layout, model: Model, settings: Settings) -> Iterator[Part]:
    policy, elements, tensors = engine.policy, sum(engine.updated), len(engine.updated)
    cut = f", a shard: 1/{settings.shards}" if settings.stage else ""
    states = settings.kept.state_bytes(engine.updated, policy.state, optimized(model, settings))
    counts = 4 * tensors if settings.kept.counts_steps and model.units and elements else 0
    for name, nbytes, why in (
        ("fp32 master parameters", policy.master * sum(engine.shard), f"{policy.master} bytes each{cut}"),
        (f"states of {settings.optimizer}", states, f"{states / max(1, elements):.4g} bytes each{cut}"),
        ("step counts", counts, f"4 bytes for each of {tensors} tensors"),
    ):
        yield Part(category="optimizer", name=name, nbytes=nbytes, why=why, host="optimizer" in settings.offload)


def _temporaries(engine: Layout, settings: Settings) -> Iterator[Part]:
    """Yield what lives only during the optimizer's step; on the host, if the step runs there."""
    policy, away = engine.policy, "optimizer" in settings.offload
    in_16_bits = policy.master and policy.gradient < policy.state and not policy.accumulated
    cast = policy.state * sum(engine.shard) if in_16_bits else 0
    needed = policy.state * settings.kept.temporaries(engine.updated, settings.implementation)
    for name, nbytes, why in (
        ("gradients cast to fp32", cast, "the fp32 masters need them so"),
        ("temporaries of the step", needed, f"{settings.optimizer}, {settings.implementation}"),
    ):
        yield Part(category="other", name=name, nbytes=nbytes, why=why, moments=(STEP,), host=away)


def _activations(model: Model, transformer: Transformer, settings: Settings) -> Iterator[Part]:
    """Yield what forward keeps for backward, and what backward adds; without a backward, only the logits."""
    tokens, layers = settings.tokens, len(model.units) - 1
    if settings.last_stage:
        for name, nbytes in activations.ends(transformer, settings).items():
            yield _activation(name, tokens * nbytes, count(tokens, "token"), FORWARD)
    if not settings.trainable:
        return
    one, everything = activations.kept(transformer, settings), sum(activations.layer(transformer, settings).values())
    what = {"none": "everything", "selective": "all but the attention core", "full": "the input",
            "operators": "the attention's result and every second product"}[settings.checkpointing]  # fmt: skip
    flights = f", {settings.in_flight:g} micro-batches" if settings.in_flight > 1 else ""
    held = tokens * layers * one * settings.in_flight
    name = f"{count(tokens, 'token')}{flights}, {what} of each layer"
    yield _activation("activations of the layers", held, name, FORWARD, START)
    left = tokens * one * (layers * (settings.in_flight - 1) + 1)
    yield _activation("activations of the last layer left", left, f"{count(tokens, 'token')}{flights}", END)
    yield _activation("activations computed again", tokens * (everything - one), "one layer at a time", START, END)
    by_moment: list[tuple[str, float, tuple[str, ...]]] = [
        ("gradients of activations", activations.gradients_at_work(transformer, settings), (START, END)),
        ("whole tokens of a tensor-parallel layer", activations.gathered(transformer, settings), (START, END)),
        ("keys and values of other ranks", activations.going_around(transformer, settings), (START, END)),
        ("gradients of the logits", activations.loss_gradients(transformer, settings), (FORWARD,)),
    ]
    for name, nbytes, moments in by_moment if settings.last_stage else by_moment[:-1]:
        why = count(tokens, "token")
        yield Part(category="other", name=name, nbytes=round(tokens * nbytes), why=why, moments=moments)


def _copies(model: Model, own: Model, settings: Settings) -> Iterator[Part]:
    """Yield autocast's copies of fp32 matrices: until their backward or, where a layer is computed again, of one layer.

    autocast caches those of trained matrices until the end of forward, those of frozen ones not (`cached_cast`).
    """
    if not settings.policy.copied:
        return
    again, part, lora = settings.checkpointing in ("operators", "full"), settings.trainable, settings.lora_rank > 0
    frozen = (settings.frozen == "fp32" and part > 0) * (1 if lora else 1 - part)
    for what, matrices, share, cached in (
        ("trained", own if lora else model, part, True), ("frozen", model, frozen, not again)
    ):  # fmt: skip
        behind, *layers = (
            numel([shape for shape in unit if len(shape) > 1])
            for unit in (matrices.units[0][len(matrices.units[0]) - matrices.behind :], *matrices.units[1:])
        )
        one, every, ends = max(layers, default=0), sum(layers), behind + matrices.tied
        for elements, moment in ((ends + cached * every, FORWARD), (one if again else every, START), (one, END)):
            nbytes, why = round(settings.policy.copied * share * elements), f"{settings.policy.copied} bytes each"
            name = f"autocast's copies of {what} matrices"
            yield Part(category="activations", name=name, nbytes=nbytes, why=why, moments=(moment,))


def _activation(name: str, nbytes: float, why: str, *moments: str) -> Part:
    return Part(category="activations", name=name, nbytes=round(nbytes), why=why, moments=moments)
