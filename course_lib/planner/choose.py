"""Find the fastest way to train on given hardware, and explain why the others lose."""

from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import Any

from .explain import how, sent
from .fit import fits, holder, less, shortage, tightest, verdict
from .plan import Plan
from .text import duration, size
from .timing.cost import crossing
from .timing.hardware import Hardware
from .timing.hardware import hardware as named
from .timing.places import groups
from .timing.schedule import COMMUNICATION, COMPUTE, CONTEXT, EXPERT, HOST, PIPELINE, TENSOR, Timeline
from .training.checks import PlanError
from .ways import CUTS, ways

_WAITS = {
    "of communication": COMMUNICATION, "of tensor-parallel exchange": TENSOR, "of context-parallel exchange": CONTEXT,
    "of exchange between experts": EXPERT, "of waiting in the pipeline": PIPELINE, "of work on the host": HOST,
}  # fmt: skip
_EQUAL = 0.05  # steps that differ by less count as equal: the estimate of seconds is not more exact
Timed = tuple[Plan, Timeline]
Lacking = tuple[int, str, Plan]  # the bytes that are missing, where, and the plan


@dataclass(frozen=True, kw_only=True, repr=False)
class Candidate:
    """One way of training.

    Attributes:
        plan: its cost.
        seconds: of a step; None if it does not fit.
        reason: why it wins, loses or does not fit.
    """

    plan: Plan
    seconds: float | None
    reason: str

    def __repr__(self) -> str:
        time = "       -" if self.seconds is None else f"{duration(self.seconds):>8}"
        return f"{time}  {size(self.plan.peak_bytes):>8}  {how(self.plan.settings)}: {self.reason}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Choice:
    """All candidates: those that fit from fastest to slowest, then the others from nearly fitting to far from it."""

    hardware: Hardware
    ranked: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The best that fits. Raises ValueError if none does, and names the nearest."""
        if self.ranked[0].seconds is None:
            raise PlanError(
                f"nothing fits on {self.hardware.name}. The nearest is {how(self.ranked[0].plan.settings)}: it "
                f"{self.ranked[0].reason} Take {less(self.ranked[0].plan, self.hardware)}."
            )
        return self.ranked[0]

    def __repr__(self) -> str:
        return "\n".join([f"    step      peak  on {self.hardware.name}", *map(repr, self.ranked)])


def choose(
    model: Any, hardware: str | Hardware, *, world_size: int | None = None, global_batch: int | None = None,
    **given: Any,
) -> Choice:  # fmt: skip
    """Rank stages, checkpointing, offload, hybrid sharding, and the ways to cut `model` over ranks.

    All train on the same tokens in a step: where ranks share a sequence, a step has as many times the micro-batches,
    and with `global_batch` each way has the fastest micro-batch that fits. Experts stay on each rank, or are spread
    over one node or four. Of those within 5 % of the fastest, what cuts the model least comes first, then what leaves
    least to the host, then the lowest stage: it is the simplest to run. Left out is what rarely wins: matrices cut
    across nodes, whose bytes every layer waits for; context parallelism with fewer than `LONG` tokens on a rank; stages
    2 and 3 of a pipeline, which reduce or gather for each micro-batch; a cut together with offload or hybrid sharding.
    If nothing fits, all is tried again, with cuts and offload together and context parallelism of any sequence. A
    pipeline is interleaved in up to 8 parts, of equally many layers, embedding and head counting as two or as none, if
    its micro-batches are a multiple of its stages, as Megatron-LM asks. A single rank's stages are alike without
    offload: only 0 is tried.

    Args:
        model: a name from `MODELS`, a `Transformer`, a number of parameters, or shapes as for `plan`.
        hardware: a name from `HARDWARE`, or a `Hardware`.
        world_size: ranks; by default one node's devices.
        global_batch: sequences of a step, of all ranks together, instead of `micro_batches`.
        given: any of `Settings`: batch, sequence, precision, ... A setting that would be varied, such as stage=3, is
            fixed if it is given. By default attention is "flash", the optimizer's step is torch's default, "foreach" on
            GPUs and "for-loop" on the host, and a bucket is an eighth of the rank's gradients, from 25 to 256 MiB.

    Raises:
        ValueError: as `plan`, or the ranks do not fit the hardware.
    """
    machine = named(hardware)
    ranks = machine.devices if world_size is None else world_size
    fixed = {"attention": "flash", "world_size": ranks} | given
    timed, lacking = _tried(ways(model, machine, fixed, global_batch), machine)
    if not timed:
        timed, lacking = _tried(ways(model, machine, fixed, global_batch, slow=True), machine)
    lacking.sort(key=lambda lack: lack[0])
    equal = min((timeline.seconds for _, timeline in timed), default=0.0) * (1 + _EQUAL)
    timed.sort(key=lambda one: (max(one[1].seconds, equal), _effort(one[0]), one[1].seconds))
    reasons = [_why(timed, lacking, machine), *(_reason(*one, *timed[0]) for one in timed[1:])] if timed else []
    ranked = [Candidate(plan=p, seconds=t.seconds, reason=r) for (p, t), r in zip(timed, reasons, strict=True)]
    for short, where, p in lacking:
        reason = f"{verdict(p, machine)}: {size(short)} short on {holder(tightest(p, machine))}, {where}."
        ranked.append(Candidate(plan=p, seconds=None, reason=reason))
    return Choice(hardware=machine, ranked=tuple(ranked))


def _tried(ways: list[list[Plan]], machine: Hardware) -> tuple[list[Timed], list[Lacking]]:
    """Return the ways that fit, each with its fastest micro-batch, and those that do not."""
    timed, lacking = list[Timed](), list[Lacking]()
    for batches in ways:
        room, last = [*takewhile(lambda one: fits(one, machine), batches)], batches[-1]
        if batches[0].settings.whole_gradients and not last.settings.whole_gradients and fits(last, machine):
            room.append(last)  # a single micro-batch needs no sums of whole gradients
        if room:
            timed.append(min(((one, one.timeline(machine)) for one in room), key=lambda one: one[1].seconds))
        else:
            lacking.append((*shortage(batches[0], machine), batches[0]))
    return timed, lacking


def _effort(plan: Plan) -> tuple[int, ...]:
    """Return how much there is to run: ranks that share a sequence, stages before matrices, the host, ZeRO's stage."""
    settings = plan.settings
    cut = [getattr(settings, name) for name in (*reversed(CUTS), "expert_parallel")]
    return (prod(cut), *cut, settings.model_chunks, len(settings.offload), settings.stage)


def _differ(rival: Plan, best: Plan) -> bool:
    """Return whether two plans have a different stage, cut or offload, and not only different parts of a stage."""
    names = ("stage", "offload", *CUTS, "expert_parallel")
    return any(getattr(rival.settings, name) != getattr(best.settings, name) for name in names)


def _why(timed: list[Timed], lacking: list[Lacking], machine: Hardware) -> str:
    """Return why the first of `timed` wins: a simpler way, as fast, has no room; or the next way is slower."""
    (best, fastest), *others = timed
    equal = min(time.seconds for _, time in timed) * (1 + _EQUAL)
    simpler = ((short, p) for short, _, p in lacking if _effort(p) < _effort(best))
    would_win = ((short, p) for short, p in simpler if p.step_seconds(machine) <= equal)
    if not any(_effort(p) < _effort(best) for p, _ in others) and (found := next(would_win, None)):
        short, nearest = found
        return f"the best that fits. Memory decides: {how(nearest.settings)} is {size(short)} short."
    for rival, time in others:
        if time.seconds > fastest.seconds * (1 + _EQUAL) and _differ(rival, best):
            mine, theirs = (_leaving(p, machine) for p in (best, rival))
            network = f" A node sends {size(mine)} over the network in a step, there {size(theirs)}."
            reason = f"{how(rival.settings)}, is {_slower(time, fastest)}.{network if mine or theirs else ''}"
            return f"the best that fits. The next slower way of a different stage, cut or offload, {reason}"
    return "the best that fits."


def _leaving(plan: Plan, machine: Hardware) -> float:
    """Return the bytes that leave a node in a step. A ring leaves each node once."""
    settings, nbytes, found = plan.settings, 0.0, groups(plan.settings, machine)
    for call in plan.collectives:
        if settings.world_size <= machine.devices:
            continue
        if call.op == "send":  # a stage is a row of ranks, of which some or all have the next one in a different node
            nbytes += float(call.sent) * min(machine.devices, settings.tensor_parallel * settings.data_parallel)
        elif call.op == "all_to_all":
            nbytes += call.total_bytes * crossing(found[call.group], call.copies) * machine.devices
        elif found[call.group].nodes > 1:
            nbytes += float(call.sent) * machine.devices / found[call.group].members
    return nbytes


def _reason(candidate: Plan, mine: Timeline, best: Plan, fastest: Timeline) -> str:
    """Return where `candidate` loses time compared with the best, whose timeline is `fastest`."""
    if mine.seconds > fastest.seconds * (1 + _EQUAL):
        moved = f" A rank sends {sent(candidate)}, the best's {sent(best)}."
        return f"{_slower(mine, fastest)}.{moved if candidate.sent_bytes or best.sent_bytes else ''}"
    more = candidate.peak_bytes - best.peak_bytes
    held = f"{size(abs(more))} {'more' if more > 0 else 'less'}" if more else "as much"
    return f"as fast as the best, within 5 %; at its peak it holds {held}."


def _slower(mine: Timeline, fastest: Timeline) -> str:
    slower, notable = mine.seconds - fastest.seconds, _EQUAL * fastest.seconds
    extras = {"of computing": mine.busy(COMPUTE) - fastest.busy(COMPUTE)}
    waits, least = mine.waits(), fastest.waits()
    for what, stream in _WAITS.items():
        extras[f"{what} that nothing hides"] = waits[stream] - least[stream]
    ordered = sorted(extras.items(), key=lambda cause: -cause[1])
    causes = [f"{duration(abs(extra))} {'more' if extra > 0 else 'less'} {what}"
              for what, extra in ordered if abs(extra) > notable or extra == ordered[0][1]]  # fmt: skip
    return f"{duration(slower)} slower: {', '.join(causes)}"
