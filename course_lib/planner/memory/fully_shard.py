"""The memory layout of torch's `fully_shard`: the states, and the buffers of a step; see fully_shard_replay.py.

Its shards, fp32 in mixed precision, are the masters themselves. Gradients are reduced in the dtype of
`policy.reduced`: `MixedPrecisionPolicy(param_dtype=torch.bfloat16)`, and with `reduce_dtype=torch.float32` where they
are accumulated in fp32.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..training.precision import Precision
from ..training.settings import Settings
from ..training.shapes import Model
from .activations import of_a_layer
from .fully_shard_replay import Backward, Cut, Moment, forward
from .layout import BUCKET_BYTES, Held, Layout, outer_gradients, parameters
from .partition import rows
from .parts import AVERAGING, BEGIN, END, FORWARD, START, STEP


def fully_shard(model: Model, settings: Settings) -> Layout:
    """Return the layout of torch's stage 3."""
    policy, ranks = replace(settings.policy, accumulated=0), settings.shards
    if policy.master:
        policy = replace(policy, kept=4, gradient=4, master=0)
    shard = rows(model.units, ranks) or [-(-model.params // ranks)]
    averaged = Held(
        name="averaged gradients", numels=shard, width=policy.gradient,
        why=f"{policy.gradient} bytes each, a shard: 1/{ranks}", moments=(AVERAGING, STEP),
    )  # fmt: skip
    states = Layout(
        policy=policy, shard=shard, updated=shard, parameters=parameters([], shard, settings, policy),
        gradients=[averaged], bucket_bytes=settings.bucket_bytes or BUCKET_BYTES, buffers=[],
    )  # fmt: skip
    return _with_step(states, model, settings) if model.units else states


def _with_step(states: Layout, model: Model, settings: Settings) -> Layout:
    """Return `states` with the tensors held at the largest moment of each part of a step."""
    gradients, buffers, copies = list(states.gradients), list[Held](), list[Held]()
    activations, left = of_a_layer(model, settings), 0  # of the last part, the end of backward
    for when, moments in _moments(model, settings).items():
        held = [_held(moment, when, states.policy, settings) for moment in moments]
        nbytes = [_nbytes(one) + activations * moment.layers for one, moment in zip(held, moments, strict=True)]
        at = nbytes.index(max(nbytes))
        gradients += held[at]["gradients"]
        buffers += held[at]["buffers"]
        copies += held[at]["copies"]
        left = moments[at].layers
    return replace(states, gradients=gradients, buffers=buffers, copies=copies, layers_left=left)


def _moments(model: Model, settings: Settings) -> dict[str, list[Moment]]:
    """Return the moments that the simulation finds, by part of a step."""
    outer, *layers = (Cut(unit, settings.shards) for unit in model.units)
    layers = [layer for layer in layers if layer.whole]
    gradients = outer_gradients(model)
    *begin, end = forward(outer, layers, settings.reshard)
    backward = [
        *Backward(
            outer, layers, reshard=settings.reshard, prefetch=settings.prefetch, early=gradients.early,
            again=gradients.again, hybrid=settings.replicas > 1, first_waits=not gradients.late,
        ).moments()
    ]  # fmt: skip
    start = [moment for moment in backward if moment.layers == len(layers)] if layers else [end]
    return {BEGIN: begin, FORWARD: [end], START: start, END: [moment for moment in backward if moment not in start]}


def _held(moment: Moment, when: str, policy: Precision, settings: Settings) -> dict[str, list[Held]]:
    """Return `moment` as records of a layout."""
    own, kept, wire = policy.parameter, policy.kept, policy.reduced
    on_cpu = settings.allocator == "exact"

    def of(name: str, numels: Sequence[int], width: int, why: str, there: bool = True) -> Held:
        return Held(name=name, numels=numels if there else (), width=width, why=why, moments=(when,))

    return {
        "gradients": [
            of("averaged gradients", moment.averaged, policy.gradient, f"shards: 1/{settings.shards}"),
            of("gradients as they come", moment.gradients, own, "whole"),
        ],
        "buffers": [
            of("gathered parameters", moment.whole, own, "whole units, padded by rows"),
            of("gathered, to be copied out", moment.flat, own, "whole units, flat"),
            of("shards cast to be gathered", moment.cast, own, "from the fp32 ones", own != kept),
            of("gradients to be reduced", moment.scattered, wire, "a whole unit, flat and padded"),
            of("reduced gradients, to be cast", moment.reduced, wire, "a shard", wire != policy.gradient),
        ],
        "copies": [
            of("gradients padded by rows", moment.padded, own, "torch does so on CPUs", on_cpu),
            of("a gradient cast to be reduced", moment.converted, own, "torch does so on CPUs", on_cpu and own != wire),
        ],
    }


def _nbytes(held: dict[str, list[Held]]) -> int:
    return sum(one.width * sum(one.numels) for kind in held.values() for one in kind)
