"""The largest or the least that a plan allows: micro-batch, sequence, stage, and GPU-hours for a number of tokens."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

from .explain import how, shortage, size
from .plan import Plan, plan
from .timing.hardware import Hardware
from .timing.hardware import hardware as named
from .timing.work import token_flops
from .training.checks import PlanError, largest, whole
from .training.shapes import Transformer


def fits(plan: Plan, machine: str | Hardware) -> bool:
    """Return whether what the plan reserves on the device, and holds on the host, is not larger than the memory."""
    return shortage(plan, named(machine))[0] <= 0


def largest_batch(hardware: str | Hardware, **given: Any) -> int:
    """Return the most sequences in a micro-batch that fit, 0 if not even one does; `given` as for `plan`."""
    return _most_that_fits(plan(**given), hardware, "batch")


def longest_sequence(hardware: str | Hardware, **given: Any) -> int:
    """Return the most tokens in a sequence that fit, at most the model's context, 0 if none do; `given` as for `plan`.

    Memory for one more token may be there; what a model was not made for is not tried.
    """
    return _most_that_fits(plan(**{"sequence": 1} | given), hardware, "sequence")


def first_stage(hardware: str | Hardware, **given: Any) -> int | None:
    """Return the first stage of ZeRO that fits, or None; `given` as for `plan`."""
    return next((stage for stage in range(4) if fits(plan(**given | {"stage": stage}), hardware)), None)


def _most_that_fits(plan: Plan, machine: str | Hardware, name: str) -> int:
    """Return the largest "batch" or "sequence" that fits, 0 if none does. A sequence is not longer than the context."""
    known = plan.model.transformer
    if known is None:
        raise PlanError(
            f"the largest {name} for {plan.model.name}: only a transformer's activations are planned. Give model=..., "
            "a transformer. A dry run measures them for any model."
        )

    def fitting(value: int) -> bool:
        changes: dict[str, Any] = {name: value}
        return fits(replace(plan, settings=replace(plan.settings, **changes)), machine)

    return largest(fitting, known.context if name == "sequence" else 2**20)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The cheapest training found: its plan, the GPU-hours and the seconds that it takes for all tokens."""

    plan: Plan
    gpu_hours: float
    seconds: float

    def __str__(self) -> str:
        days = self.seconds / 86400
        return (
            f"{self.gpu_hours:,.0f} GPU-hours, {days:.3g} days: {how(self.plan.settings)}, micro-batches of "
            f"{self.plan.settings.batch} x {self.plan.settings.sequence} tokens, at most {size(self.plan.peak_bytes)}"
        )


def cheapest(
    model: str | Transformer, hardware: str | Hardware, *, tokens: float, days: float, most_ranks: int = 16384,
    **given: Any,
) -> Budget:  # fmt: skip
    """Return the plan that trains on `tokens` within `days` in the fewest GPU-hours.

    The number of ranks doubles, from the fewest that could be fast enough, until the plan is fast enough, because more
    ranks hardly ever need fewer GPU-hours. Each number is tried in stage 3 with and without tensor parallelism in the
    node, with and without checkpointing, and with the largest micro-batch that fits. `given` as for `plan`.

    Raises:
        ValueError: nothing fits, or nothing is fast enough.
    """
    machine = named(hardware)
    if not (0 < tokens < inf and days > 0):
        raise PlanError(f"tokens={tokens!r}, days={days!r}: both have to be above 0, and tokens finite. Change them.")
    most_ranks = min(whole("most_ranks", most_ranks), most_ranks if machine.network else machine.devices)
    least = plan(model=model, **given)
    useful = machine.achievable * machine.peak_flops(least.settings.policy.fast) * days * 86400
    ranks = 1
    while ranks * useful < tokens * token_flops(least.model, least.settings):
        ranks *= 2
    least_ranks, reached = ranks, f"at least {ranks} are needed at {machine.achievable:.0%} of the peak"
    fastest = 0.0
    while ranks <= most_ranks:
        found = [one for one in _ways(model, machine, tokens, ranks, given) if one is not None]
        fastest = max([fastest, *(1 / one.seconds for one in found)])
        found = [one for one in found if one.seconds <= days * 86400]
        if found:
            return min(found, key=lambda one: one.gpu_hours)
        ranks *= 2
    if least_ranks <= most_ranks:
        reached = f"the fastest takes {1 / fastest / 86400:,.1f} days" if fastest else "nothing fits"
    raise PlanError(
        f"{tokens:.3g} tokens in {days:g} days on at most {most_ranks} ranks of {machine.name}: {reached}. Allow more "
        "days or ranks, or fewer tokens."
    )


def _ways(model: Any, machine: Hardware, tokens: float, ranks: int, given: dict[str, Any]) -> list[Budget | None]:
    node = min(ranks, machine.devices)
    return [
        _way(machine, tokens, {"model": model, "world_size": ranks, "stage": 3, "attention": "flash",
                               "implementation": "fused", "tensor_parallel": tensor, "checkpointing": how} | given)
        for tensor in dict.fromkeys((1, node))
        for how in ("none", "full")
    ]  # fmt: skip


def _way(machine: Hardware, tokens: float, given: dict[str, Any]) -> Budget | None:
    try:
        batch = largest_batch(machine, **given)
        if not batch:
            return None
        planned = plan(**given | {"batch": batch})
        seconds = tokens / (planned.tokens_per_second(machine) * planned.settings.world_size)
    except PlanError:  # these ranks cannot be divided in this way
        return None
    return Budget(plan=planned, gpu_hours=seconds * planned.settings.world_size / 3600, seconds=seconds)
