"""The memory of a rank, byte by byte, at each moment of a step; see parts.py for the moments."""

from collections.abc import Iterator

from ..training.settings import Settings
from ..training.shapes import Model, Transformer
from . import activations
from .allocator import cuda_bytes
from .engines import layout
from .layout import Held, Layout
from .parts import END, FORWARD, START, STEP, Part


def parts(model: Model, settings: Settings) -> tuple[Part, ...]:
    """Return everything that rank 0 holds.

    No rank holds more, except for counts of steps: the shard of another rank may contain more tensors, of 4 bytes each.
    """
    engine = layout(model, settings)
    found = [*_states(engine, model, settings)]
    if model.units:
        found += [_part("communication", held, settings) for held in engine.buffers]
        found += [_part("other", held, settings) for held in engine.copies]
        found += _temporaries(engine, settings)
    if settings.activation_bytes is not None:
        found += [_activation("activations", settings.activation_bytes, "as measured", FORWARD, START)]
        left = engine.layers_left * activations.of_a_layer(model, settings)
        found += [_activation("activations of the layers left", left, "all layers are taken to keep as much", END)]
    elif model.transformer:
        found += _activations(model.transformer, settings, engine.layers_left)
    return tuple(part for part in found if part.nbytes)


def _states(engine: Layout, model: Model, settings: Settings) -> Iterator[Part]:
    away, policy = "optimizer" in settings.offload, engine.policy
    yield _part("parameters", engine.parameters, settings, "parameters" in settings.offload)
    for held in engine.gradients:
        yield _part("gradients", held, settings, away and settings.stage >= 2)
        if policy.accumulated:
            sums = Held(
                name=f"fp32 sums of {held.name}", numels=held.numels, width=policy.accumulated,
                why=held.why.replace(str(held.width), str(policy.accumulated), 1), moments=held.moments,
            )  # fmt: skip
            yield _part("gradients", sums, settings, away and settings.stage >= 2)
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


def _activations(transformer: Transformer, settings: Settings, left: int) -> Iterator[Part]:
    tokens, of = settings.batch * settings.sequence, (settings.sequence, settings.policy.activation, settings.attention)
    one = activations.kept(transformer, *of, settings.checkpointing)
    again = sum(activations.layer(transformer, *of).values()) - one
    what = {"none": "everything", "selective": "all but the attention core", "full": "the input"}
    kept = f"{tokens} tokens, {what[settings.checkpointing]} of each layer"
    yield _activation("activations of the layers", tokens * transformer.layers * one, kept, FORWARD, START)
    for name, nbytes in activations.ends(transformer, settings.policy.activation).items():
        yield _activation(name, tokens * nbytes, f"{tokens} tokens", FORWARD)
    last = "the last layer" if left == 1 else f"{left} layers"
    yield _activation(f"activations of {last} left", tokens * left * one, kept, END)
    yield _activation("activations computed again", tokens * again, "one layer at a time", START, END)
    for name, nbytes, moments in (
        ("gradients of the logits", activations.loss_gradients(transformer), (FORWARD,)),
        ("gradients of activations", activations.gradients_at_work(transformer, *of), (START, END)),
    ):
        yield Part(category="other", name=name, nbytes=tokens * nbytes, why=f"{tokens} tokens", moments=moments)


def _activation(name: str, nbytes: int, why: str, *moments: str) -> Part:
    return Part(category="activations", name=name, nbytes=nbytes, why=why, moments=moments)


def _part(category: str, held: Held, settings: Settings, host: bool = False) -> Part:
    nbytes = _bytes([held.width * numel for numel in held.numels], settings)
    return Part(category=category, name=held.name, nbytes=nbytes, why=held.why, moments=held.moments, host=host)


def _bytes(tensors: list[int], settings: Settings) -> int:
    return sum(map(cuda_bytes, tensors)) if settings.allocator == "cuda" else sum(tensors)
