"""The communication of a rank in one step: the collectives, their bytes and their purpose.

Counted by meaning, as rings send it and as the meter counts: an all-reduce of B bytes among N ranks is 2 (N-1)/N B,
a reduce-scatter, all-gather or broadcast (N-1)/N B. In elements that is about 2Ψ for data parallel and for stages 1
and 2, and 3Ψ for stage 3 (Rajbhandari et al., arXiv 1910.02054, section 7).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..memory.layout import layout
from ..training.settings import Settings
from ..training.shapes import Model
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
            those that share matrices, or "stage", two neighbours in the pipeline.
        ranks: the number of ranks in the group.
        total_bytes: of the whole, padding included, over the step.
        what: "gradients", "parameters" or "activations".
        when: "forward", "backward" or "after the step".
        micro_batches: how many micro-batches make the call.
    """

    op: str
    group: str
    ranks: int
    total_bytes: int
    what: str
    when: str
    micro_batches: int = 1

    @property
    def sent(self) -> Fraction:
        """Bytes that one rank sends."""
        if self.op == "send":
            return Fraction(self.total_bytes)
        return Fraction(PASSES[self.op] * (self.ranks - 1) * self.total_bytes, self.ranks)


def collectives(model: Model, settings: Settings) -> tuple[Collective, ...]:
    """Return the collectives of a step of one rank with its piece of the model, in order; none for a single rank."""
    calls = (*_states(model, settings), *_activations(model, settings))
    return tuple(call for call in calls if call.ranks > 1)


def _states(model: Model, settings: Settings) -> Iterator[Collective]:
    engine, stage, shards, replicas = layout(model, settings), settings.stage, settings.shards, settings.replicas
    mine = sum(engine.shard)
    padded = mine * shards
    again = settings.micro_batches

    def call(op: str, what: str, numel: int, when: str, group: str = "shard", times: int = 1) -> Collective:
        size = engine.policy.reduced if what == "gradients" else engine.policy.parameter
        ranks = shards if group == "shard" else replicas
        return Collective(op=op, group=group, ranks=ranks, total_bytes=size * numel * times, what=what, when=when,
                          micro_batches=times)  # fmt: skip

    if stage == 0:  # one shard, and as many replicas as ranks
        yield call("all_reduce", "gradients", model.params, "backward", "replica")
    elif stage < 3 and settings.engine == "torch":
        yield call("all_reduce", "gradients", model.params, "backward")
        yield call("broadcast", "parameters", model.params, "after the step")
    else:
        gathers = again if settings.reshard else 1
        if stage == 3:
            yield call("all_gather", "parameters", padded, "forward", times=gathers)
        if stage == 3 and settings.reshard:
            yield call("all_gather", "parameters", padded, "backward", times=again)
        reduces = again if stage == 3 and settings.reshard else 1
        yield call("reduce_scatter", "gradients", padded, "backward", times=reduces)
        yield call("all_reduce", "gradients", mine, "backward", "replica")
        if stage < 3:
            yield call("all_gather", "parameters", padded, "after the step")


def _activations(model: Model, settings: Settings) -> Iterator[Collective]:
    """Yield what tensor and pipeline parallelism send: Korthikanti et al., section 4.2; Narayanan et al., section 4.1.

    Around each of a layer's two blocks, whole tokens are all-reduced, or gathered and scattered with sequence
    parallelism, which gathers them once more for the gradients of weights. What backward computes again, it also
    exchanges again; torchtitan's "operators" keeps what was reduced.
    """
    if model.transformer is None:
        return
    tensor, again = settings.tensor_parallel, settings.micro_batches
    tokens = settings.tokens * model.transformer.hidden * settings.policy.activation * again
    layers = 2 * (len(model.units) - 1)
    for when in ("forward", "backward"):
        ops = {"all_reduce": 1}
        if settings.sequence_parallel:
            ops = {"all_gather": 1 if when == "forward" else 2, "reduce_scatter": 1}
        if when == "backward":
            ops = {op: count + (op in AGAIN[settings.checkpointing]) for op, count in ops.items()}
        for op, count in ops.items():
            yield Collective(op=op, group="tensor", ranks=tensor, total_bytes=tokens * layers * count,
                             what="activations", when=when, micro_batches=again)  # fmt: skip
        if sends := _sends(settings, when):
            yield Collective(op="send", group="stage", ranks=2, total_bytes=sends * tokens // tensor,
                             what="activations", when=when, micro_batches=again)  # fmt: skip


def _sends(settings: Settings, when: str) -> int:
    """Return how often a stage sends each micro-batch. Interleaved, a stage has several pieces, one after the other.

    The pipeline's last piece sends nothing in forward, its first nothing in backward.
    """
    if settings.pipeline_parallel == 1:
        return 0
    end = settings.last_stage if when == "forward" else settings.pipeline_stage == 0
    return settings.model_chunks - end
