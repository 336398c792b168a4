"""Find the fastest way to train on given hardware, and explain why the others lose."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from .explain import duration, how, shortage, size, verdict
from .plan import Plan, plan
from .timing.hardware import Hardware
from .timing.hardware import hardware as named
from .timing.schedule import COMMUNICATION, COMPUTE, HOST, Timeline
from .training.checks import PlanError
from .training.settings import CHECKPOINTING
from .training.shapes import Model, Transformer

_OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("optimizer",), ("optimizer", "parameters"))
_EQUAL = 0.05  # steps that differ by less count as equal: the estimate of seconds is not more exact


@dataclass(frozen=True, kw_only=True)
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

    def __str__(self) -> str:
        time = "       -" if self.seconds is None else f"{duration(self.seconds):>8}"
        return f"{time}  {size(self.plan.peak_bytes):>8}  {how(self.plan.settings)}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
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
                f"{self.ranked[0].reason} Take more ranks, a shorter sequence or a smaller batch."
            )
        return self.ranked[0]

    def __str__(self) -> str:
        return "\n".join([f"    step      peak  on {self.hardware.name}", *map(str, self.ranked)])


def choose(model: Any, hardware: str | Hardware, *, world_size: int | None = None, **given: Any) -> Choice:
    """Rank stages, checkpointing, offload and hybrid sharding for `model` on this hardware.

    Of those within 5 % of the fastest, the lowest stage comes first: it is the simplest to run.

    Args:
        model: a name from `MODELS`, a `Transformer`, a number of parameters, or shapes as for `plan`.
        hardware: a name from `HARDWARE`, or a `Hardware`.
        world_size: ranks; by default one node's devices.
        given: any of `Settings`: batch, sequence, precision, ... A setting that would be varied, such as stage=3, is
            fixed if it is given. By default attention is "flash", the optimizer's step is torch's default on GPUs,
            "foreach", and gradients go in buckets of 256 MiB, so that latency does not hide what stages cost.

    Raises:
        ValueError: as `plan`, or the ranks do not fit the hardware.
    """
    machine = named(hardware)
    ranks = machine.devices if world_size is None else world_size
    usual = {"attention": "flash", "implementation": "foreach", "bucket_bytes": 256 * 2**20}
    fixed = usual | {"world_size": ranks} | given
    plans = _plans({"model" if isinstance(model, str | Transformer | Model) else "params": model}, machine, fixed)
    shortages = [shortage(candidate, machine) for candidate in plans]
    timed = [(p, p.timeline(machine)) for p, (short, _) in zip(plans, shortages, strict=True) if short <= 0]
    fastest = min((timeline.seconds for _, timeline in timed), default=0.0)
    timed.sort(key=lambda pair: (max(pair[1].seconds, fastest * (1 + _EQUAL)), pair[0].settings.stage, pair[1].seconds))
    ranked = [Candidate(plan=p, seconds=t.seconds, reason=_reason(p, t, *timed[0])) for p, t in timed]
    lacking = [(short, where, p) for p, (short, where) in zip(plans, shortages, strict=True) if short > 0]
    for short, where, p in sorted(lacking, key=lambda it: it[0]):
        reason = f"{verdict(p, machine)}: {size(short)} short on rank 0, {where}."
        ranked.append(Candidate(plan=p, seconds=None, reason=reason))
    return Choice(hardware=machine, ranked=tuple(ranked))


def _plans(what: dict[str, Any], machine: Hardware, fixed: dict[str, Any]) -> list[Plan]:
    """Return a plan for each valid combination of settings that are not fixed. Raises ValueError if there is none."""
    machine.shard_group(fixed["world_size"])
    varied: dict[str, Any] = {
        "stage": range(4),
        "checkpointing": _checkpointing("model" in what, fixed["attention"]),
        "offload": _OFFLOADS,
        "shard_size": [None, machine.devices] if fixed["world_size"] > machine.devices else [None],
    }
    open_names = [name for name in varied if name not in fixed]
    plans, refusals = [], []
    for values in product(*(varied[name] for name in open_names)):
        try:
            plans.append(plan(**what, **dict(zip(open_names, values, strict=True)), **fixed))
        except PlanError as refusal:  # these settings do not go together, such as stage 0 and offload
            refusals.append(refusal)
    if not plans:
        raise refusals[0]
    return plans


def _checkpointing(with_tensors: bool, attention: str) -> tuple[str, ...]:
    """Return the checkpointing that saves memory: none without known activations, no "selective" with "flash"."""
    if not with_tensors:
        return ("none",)
    return CHECKPOINTING if attention == "math" else ("none", "full")


def _reason(candidate: Plan, mine: Timeline, best: Plan, fastest: Timeline) -> str:
    """Return where `candidate` loses time compared with the best, whose timeline is `fastest`."""
    if candidate is best:
        return "the best that fits."
    slower = mine.seconds - fastest.seconds
    notable = _EQUAL * fastest.seconds
    if slower <= notable:
        more = candidate.peak_bytes - best.peak_bytes
        return (
            f"as fast as the best, within 5 %; at its peak it holds {size(abs(more))} {'more' if more > 0 else 'less'}."
        )
    extras = {"of computing": mine.busy(COMPUTE) - fastest.busy(COMPUTE)}
    for what, stream in (("of communication", COMMUNICATION), ("of work on the host", HOST)):
        extras[f"{what} that nothing hides"] = mine.exposed(stream, COMPUTE) - fastest.exposed(stream, COMPUTE)
    most = max(extras.values())
    causes = [f"{duration(extra)} more {what}" for what, extra in extras.items() if extra > notable or extra == most]
    return f"{duration(slower)} slower: {', '.join(causes)}. It sends {size(candidate.sent_bytes)}."
