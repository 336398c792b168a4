"""The communication of a rank in one step: the collectives, their bytes and their purpose.

Counted by meaning, as rings send it and as the meter counts: an all-reduce of B bytes among N ranks is 2 (N-1)/N B,
a reduce-scatter, all-gather or broadcast (N-1)/N B. In elements that is about 2Ψ for data parallel and for stages 1
and 2, and 3Ψ for stage 3 (Rajbhandari et al., arXiv 1910.02054, section 7).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from ..memory.held import gathered_bytes
from ..memory.layout import engine_policy, layout, padded_rows
from ..training.frozen import trained
from ..training.settings import Settings
from ..training.shapes import Model, numel
from .cost import PASSES

AGAIN: dict[str, tuple[str, ...]] = {
    "none": (), "selective": (), "operators": ("all_gather",), "full": ("all_gather", "reduce_scatter", "all_reduce")
}  # fmt: skip
"""Which of tensor parallelism's collectives in forward backward makes again, by checkpointing."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One kind of collective in a step.

    Attributes:
        op: one of `PASSES`, or "send" between the stages of a pipeline.
        group: "shard", the ranks that share one copy of the states, "replica", those with the same shard, "tensor",
            those that share matrices, "stage", two neighbours in the pipeline, "context", those that share sequences,
            "expert", those that share experts; "expert shard", ...: of those with the same experts; "second shard".
        ranks: the number of ranks in the group.
        total_bytes: of the whole, padding included, over the step.
        what: "gradients", "parameters" or "activations".
        when: "forward", "backward" or "after the step".
        micro_batches: how many micro-batches make the call.
        copies: of each token in an all-to-all, of which one crosses to a node; 1 if each crosses by itself.
    """

    op: str
    group: str
    ranks: int
    total_bytes: int
    what: str
    when: str
    micro_batches: int = 1
    copies: int = 1

    @property
    def sent(self) -> Fraction:
        """Bytes that one rank sends."""
        if self.op == "send":
            return Fraction(self.total_bytes)
        return Fraction(PASSES[self.op] * (self.ranks - 1) * self.total_bytes, self.ranks)


def collectives(model: Model, settings: Settings) -> tuple[Collective, ...]:
    """Return the collectives of a step of one rank with its piece of the model, in order; none for a single rank."""
    calls = (*_states(model, settings), *_activations(model, settings))
    return tuple(call for call in calls if call.ranks > 1 and call.total_bytes)


def _states(model: Model, settings: Settings) -> Iterator[Collective]:
    """Yield what moves states; those of experts go only among ranks of a group that have the same experts."""
    own, ranks = trained(model, settings), settings.expert_parallel
    padded, whole = sum(layout(own, settings).shard) * settings.shards, padded_rows(model, settings)
    if ranks == 1:
        yield from _moved(whole, own, padded, settings)
        return
    apart = _only(own, experts=True)
    yield from _moved(_only(whole, experts=False), _only(own, experts=False), padded - ranks * apart.params, settings)
    for call in _moved(_only(model, experts=True), apart, apart.params, settings):
        of_shards = settings.stage and call.group == "replica"  # so many times larger among so many fewer ranks
        yield replace(call, group=f"expert {call.group}", what=f"expert {call.what}",
                      ranks=call.ranks // (1 if of_shards else ranks),
                      total_bytes=call.total_bytes * (ranks if of_shards else 1))  # fmt: skip


def _only(model: Model, *, experts: bool) -> Model:
    """Return the model's experts, or all but them."""
    units = tuple(tuple(shape for shape in unit if (len(shape) == 3) == experts) for unit in model.units)
    return replace(model, units=units, params=sum(map(numel, units)))


def _moved(model: Model, own: Model, padded: int, settings: Settings) -> Iterator[Collective]:
    """Yield what moves the gradients of what is trained, and parameters, of which stage 3 gathers frozen ones too."""
    stage, shards, replicas, again = settings.stage, settings.shards, settings.replicas, settings.micro_batches
    policy, torch = engine_policy(settings), settings.engine == "torch"
    beside = sum(gathered_bytes(model, own, policy.parameter, settings)) - policy.parameter * own.params

    def call(op: str, what: str, nbytes: float, when: str, group: str = "shard", times: int = 1) -> Collective:
        ranks = {"shard": shards, "replica": replicas}.get(group, settings.gathers_again)
        return Collective(op=op, group=group, ranks=ranks, total_bytes=ceil(nbytes) * times, what=what, when=when,
                          micro_batches=times)  # fmt: skip

    gathered, reduced = policy.parameter * padded + beside, policy.reduced * padded
    if stage == 0:  # one shard, and as many replicas as ranks
        yield call("all_reduce", "gradients", policy.reduced * own.params, "backward", "replica", settings.reductions)
    elif stage < 3 and torch:
        yield call("all_reduce", "gradients", policy.reduced * own.params, "backward", times=settings.reductions)
        yield call("broadcast", "parameters", policy.parameter * own.params, "after the step")
    else:
        if stage == 3:
            stays = not settings.reshard and settings.pipeline_parallel > 1  # from one micro-batch to the next
            yield call("all_gather", "parameters", gathered, "forward", times=1 if stays else again)
        if among := settings.gathers_again if settings.trainable else 0:
            group = "shard" if among == shards else "second shard"
            yield call("all_gather", "parameters", gathered, "backward", group, times=again)
        yield call("reduce_scatter", "gradients", reduced, "backward", times=settings.reductions)
        yield call("all_reduce", "gradients", reduced / shards, "backward", "replica", settings.reductions)
        if stage < 3:
            yield call("all_gather", "parameters", policy.parameter * padded, "after the step")


def _activations(model: Model, settings: Settings) -> Iterator[Collective]:
    """Yield what ranks send that share layers or sequences. What backward computes again, it also exchanges again.

    Around each of a layer's two blocks, tensor-parallel ranks all-reduce whole tokens, or gather and scatter them with
    sequence parallelism, and gather them once more for the gradients of weights (Korthikanti et al., section 4.2),
    unless they keep them, as in torch and here.
    Stages of a pipeline: Narayanan et al., section 4.1. Keys and values reach all context-parallel ranks, and in
    backward again, when their gradients return: a ring passes as much as a gather and a reduce-scatter. `chosen`
    copies of each token go to their experts and return, in two all-to-alls (GShard, arXiv 2006.16668, section 3.2).
    """
    known = model.transformer
    if known is None:
        return
    tensor, again, width = settings.tensor_parallel, settings.micro_batches, settings.policy.activation
    layers, full = len(model.units) - 1, settings.checkpointing == "full"
    sparse = sum(any(len(shape) == 3 for shape in unit) for unit in model.units[1:])  # layers with experts
    tokens = settings.tokens * known.hidden * width * again
    keys = 2 * settings.tokens * known.kv_hidden * width * again * settings.context_parallel // tensor
    routed = round(tokens * known.chosen * settings.capacity_factor / settings.between)
    logits = settings.tokens * known.vocab * width * again if settings.whole_logits and settings.last_stage else 0

    def call(op: str, group: str, ranks: int, nbytes: int, when: str) -> Collective:
        what = "activations" if group in ("tensor", "stage") else f"{group} activations"
        return Collective(op=op, group=group, ranks=ranks, total_bytes=nbytes, what=what, when=when,
                          micro_batches=again)  # fmt: skip

    for when in ("forward", "backward") if settings.trainable else ("forward",):
        back = when == "backward"
        ops = {"all_reduce": 1}
        if settings.sequence_parallel:
            ops = {"all_gather": 1 + (back and not settings.keeps_gathered), "reduce_scatter": 1}
        if back:
            ops = {op: count + (op in AGAIN[settings.checkpointing]) for op, count in ops.items()}
        for op, count in ops.items():
            yield call(op, "tensor", tensor, 2 * tokens * layers * count, when)
        if not back:
            yield replace(call("all_gather", "tensor", tensor, logits, when), what="logits")
        yield call("all_gather", "context", settings.context_parallel, keys * layers * (1 + (back and full)), when)
        if back:
            yield call("reduce_scatter", "context", settings.context_parallel, keys * layers, when)
        times = 2 * sparse * (1 + (back and full))
        moved = call("all_to_all", "expert", settings.expert_parallel, routed * times, when)
        yield moved if settings.engine == "torch" else replace(moved, copies=max(1, known.chosen))
        if settings.pipeline_parallel > 1:  # each of its parts, except that the pipeline's first or last sends nothing
            sends = settings.model_chunks - (settings.pipeline_stage == 0 if back else settings.last_stage)
            yield call("send", "stage", 2, sends * tokens // tensor, when)
