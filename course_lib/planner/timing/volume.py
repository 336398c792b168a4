"""The communication of a rank in one step: the collectives, their bytes and their purpose.

Counted by meaning, as rings send it and as the meter counts: an all-reduce of B bytes among N ranks is 2 (N-1)/N B,
a reduce-scatter, all-gather or broadcast (N-1)/N B. In elements that is about 2Ψ for data parallel and for stages 1
and 2, and 3Ψ for stage 3 (Rajbhandari et al., arXiv 1910.02054, section 7).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..memory.engines import layout
from ..training.settings import Settings
from ..training.shapes import Model

PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1}
"""How many times a ring of N carries (N-1)/N of the whole from each member to the next."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One kind of collective in a step.

    Attributes:
        op: one of `PASSES`.
        group: "shard", the ranks that share one copy of the states, or "replica", those with the same shard.
        ranks: the number of ranks in the group.
        total_bytes: of the whole, padding included, over the step.
        what: "gradients" or "parameters".
        when: "forward", "backward" or "after the step".
    """

    op: str
    group: str
    ranks: int
    total_bytes: int
    what: str
    when: str

    @property
    def sent(self) -> Fraction:
        """Bytes that one rank sends."""
        return Fraction(PASSES[self.op] * (self.ranks - 1) * self.total_bytes, self.ranks)


def collectives(model: Model, settings: Settings) -> tuple[Collective, ...]:
    """Return the collectives of a step, in order; none for a single rank."""
    return tuple(call for call in _calls(model, settings) if call.ranks > 1)


def _calls(model: Model, settings: Settings) -> Iterator[Collective]:
    engine, stage, shards, replicas = layout(model, settings), settings.stage, settings.shards, settings.replicas
    mine = sum(engine.shard)
    padded = mine * shards

    def call(op: str, what: str, numel: int, when: str, group: str = "shard") -> Collective:
        size = engine.policy.reduced if what == "gradients" else engine.policy.parameter
        ranks = shards if group == "shard" else replicas
        return Collective(op=op, group=group, ranks=ranks, total_bytes=size * numel, what=what, when=when)

    if stage == 0:  # one shard, and as many replicas as ranks
        yield call("all_reduce", "gradients", model.params, "backward", "replica")
    elif stage < 3 and settings.engine == "torch":
        yield call("all_reduce", "gradients", model.params, "backward")
        yield call("broadcast", "parameters", model.params, "after the step")
    else:
        if stage == 3:
            yield call("all_gather", "parameters", padded, "forward")
        if stage == 3 and settings.reshard:
            yield call("all_gather", "parameters", padded, "backward")
        yield call("reduce_scatter", "gradients", padded, "backward")
        yield call("all_reduce", "gradients", mine, "backward", "replica")
        if stage < 3:
            yield call("all_gather", "parameters", padded, "after the step")
