"""The memory of a rank, byte by byte, at each moment of a step; see parts.py for the moments."""

from collections.abc import Iterator

from ..training.settings import Settings
from ..training.shapes import Model, Transformer
from . import activations
from .allocator import cuda_bytes
from .held import Held, buffers, gradients, parameters
from .layout import Layout, layout
from .parts import END, FORWARD, START, STEP, Part


def parts(model: Model, settings: Settings) -> tuple[Part, ...]:
    """Return everything that rank 0 holds of its piece of the model.

    No rank holds more, except for counts of steps: the shard of another rank may contain more tensors, of 4 bytes each.
    """
    engine = layout(model, settings)
    found = [*_states(engine, model, settings)]
    if model.units:
        found += [_part("communication", held, settings) for held in buffers(model, engine, settings)]
        found += _temporaries(engine, settings)
    if settings.activation_bytes is not None:
        layers = max(1, len([unit for unit in model.units[1:] if unit]))
        found += [_activation("activations", settings.activation_bytes, "as measured", FORWARD, START)]
        left = settings.activation_bytes // layers
        found += [_activation("activations of the last layer left", left, "1 layer", END)]
    elif model.transformer:
        found += _activations(model, model.transformer, settings)
    return tuple(part for part in found if part.nbytes)


def _states(engine: Layout, model: Model, settings: Settings) -> Iterator[Part]:
    away, policy = "optimizer" in settings.offload, engine.policy
    yield _part("parameters", parameters(model, engine, settings), settings, "parameters" in settings.offload)
    for held in gradients(model, engine, settings):
        yield _part("gradients", held, settings, away and settings.stage >= 2)
    cut = f", a shard: 1/{settings.shards}" if settings.stage else ""
    masters = Held(name="fp32 master parameters", numels=engine.shard, width=policy.master,
                   why=f"{policy.master} bytes each{cut}")  # fmt: skip
    yield _part("optimizer", masters, settings, away)
    states = settings.kept.state_tensors(engine.updated, policy.state)
    each = sum(states) / sum(engine.updated)
    yield Part(category="optimizer", name=f"states of {settings.optimizer}", nbytes=_bytes(states, settings),
               why=f"{each:.4g} bytes each{cut}", host=away)  # fmt: skip
    if settings.kept.counts_steps and model.units and settings.allocator == "exact":
        why = f"4 bytes for each of {len(engine.updated)} tensors"
        yield Part(category="optimizer", name="step counts", nbytes=4 * len(engine.updated), why=why, host=away)


def _temporaries(engine: Layout, settings: Settings) -> Iterator[Part]:
    """Yield what lives only during the optimizer's step; on the host, if the step runs there."""
    policy, away = engine.policy, "optimizer" in settings.offload
    in_16_bits = policy.master and policy.gradient < policy.state and not policy.accumulated
    cast = [policy.state * numel for numel in engine.shard] if in_16_bits else []
    needed = settings.kept.temporaries(engine.updated, policy.state, settings.implementation)
    for name, tensors, why in (
        ("gradients cast to fp32", cast, "the fp32 masters need them so"),
        ("temporaries of the step", needed, f"{settings.optimizer}, {settings.implementation}"),
    ):
        size = _bytes(tensors, settings)
        yield Part(category="other", name=name, nbytes=size, why=why, moments=(STEP,), host=away)


def _activations(model: Model, transformer: Transformer, settings: Settings) -> Iterator[Part]:
    tokens, layers = settings.tokens, len(model.units) - 1
    one, everything = activations.kept(transformer, settings), sum(activations.layer(transformer, settings).values())
    what = {"none": "everything", "selective": "all but the attention core", "full": "the input",
            "operators": "the attention's result and every second product"}[settings.checkpointing]  # fmt: skip
    flights = f", {settings.in_flight:g} micro-batches" if settings.in_flight > 1 else ""
    held = tokens * layers * one * settings.in_flight
    name = f"{tokens} tokens{flights}, {what} of each layer"
    yield _activation("activations of the layers", held, name, FORWARD, START)
    left = tokens * one * (layers * (settings.in_flight - 1) + 1)
    yield _activation("activations of the last layer left", left, f"{tokens} tokens{flights}", END)
    yield _activation("activations computed again", tokens * (everything - one), "one layer at a time", START, END)
    by_moment: list[tuple[str, float, tuple[str, ...]]] = [
                 ("gradients of activations", activations.gradients_at_work(transformer, settings), (START, END)),
                 ("whole tokens of a tensor-parallel layer", activations.gathered(transformer, settings), (START, END))]
    if settings.last_stage:
        for name, nbytes in activations.ends(transformer, settings).items():
            yield _activation(name, tokens * nbytes, f"{tokens} tokens", FORWARD)
        by_moment.append(("gradients of the logits", activations.loss_gradients(transformer, settings), (FORWARD,)))
    for name, nbytes, moments in by_moment:
        why = f"{tokens} tokens"
        yield Part(category="other", name=name, nbytes=round(tokens * nbytes), why=why, moments=moments)


def _activation(name: str, nbytes: float, why: str, *moments: str) -> Part:
    return Part(category="activations", name=name, nbytes=round(nbytes), why=why, moments=moments)


def _part(category: str, held: Held, settings: Settings, host: bool = False) -> Part:
    nbytes = _bytes([held.width * numel for numel in held.numels], settings)
    return Part(category=category, name=held.name, nbytes=nbytes, why=held.why, moments=held.moments, host=host)


def _bytes(tensors: list[int], settings: Settings) -> int:
    return sum(map(cuda_bytes, tensors)) if settings.allocator == "cuda" else sum(tensors)
