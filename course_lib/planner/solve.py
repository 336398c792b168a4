"""The largest or the least that a plan allows: micro-batch, sequence, ranks, and GPU-hours for a number of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, floor, inf, lcm, log2
from typing import Any

from .explain import how
from .fit import fits, more_ranks
from .plan import Plan, plan
from .spelling import SETTINGS
from .text import count, size
from .timing.hardware import Hardware
from .timing.hardware import hardware as named
from .timing.work import token_flops
from .training.checks import PlanError, known, largest, whole
from .training.shapes import Transformer
from .ways import CHECKPOINTING, CUTS, cuts


def largest_batch(plan: Plan, machine: str | Hardware) -> int:
    """Return the most sequences in a micro-batch that fit, 0 if not even one does."""
    return _most_that_fits(plan, machine, "batch", 1, 2**20)


def longest_sequence(plan: Plan, machine: str | Hardware) -> int:
    """Return the most tokens that fit, which ranks can share; 0 if none.

    At most as many as the model was made for, unless the plan has more.
    """
    known, settings = plan.model.transformer, plan.settings
    most = 2**30 if known and settings.sequence > known.context else known.context if known else 0
    return _most_that_fits(plan, machine, "sequence", settings.context_parallel * settings.between, most)


def _most_that_fits(plan: Plan, machine: str | Hardware, name: str, step: int, most: int) -> int:
    if plan.model.transformer is None:
        raise PlanError(
            f"the largest {name} for {plan.model.name}: only a transformer's activations are planned. Give model=..., "
            "a transformer. A dry run measures them for any model."
        )
    return step * largest(lambda count: fits(_with(plan, **{name: step * count}), machine), most // step)


def fewest_ranks(plan: Plan, machine: str | Hardware) -> int:
    """Return the fewest ranks that fit, in whole nodes if they fill more than one; 0 if none do.

    All of them share the states, whatever `shard_size` and a number as `reshard` say.
    The search ends at the first power of two, times the ranks that share a sequence, that fits.
    """
    settings = plan.settings
    group = settings.world_size // settings.data_parallel * lcm(settings.context_parallel, settings.expert_parallel)
    more = {"shard_size": None, "reshard": bool(settings.reshard)}

    def enough(count: int) -> bool:
        return fits(_with(plan, world_size=count, **more), machine)

    most = next((count for count in (group * 2**doubled for doubled in range(20)) if enough(count)), 0)
    devices = named(machine).devices
    step = group if most <= devices else lcm(group, devices)  # whole nodes
    least, most = most // 2 // step * step + step, ceil(most / step) * step
    return next((count for count in range(least, most, step) if enough(count)), most)


def _with(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, settings=replace(plan.settings, **changes))


@dataclass(frozen=True, kw_only=True, repr=False)
class Budget:
    """The cheapest training found: its plan, the GPU-hours and the seconds that it takes for all tokens."""

    plan: Plan
    gpu_hours: float
    seconds: float

    def __repr__(self) -> str:
        settings, days = self.plan.settings, self.seconds / 86400
        hours = f"{self.gpu_hours:,.0f}" if self.gpu_hours >= 1000 else f"{self.gpu_hours:.3g}"
        spent = f"{count(hours, 'GPU-hour')}, {count(f'{days:.3g}', 'day')}"
        how_long = f"With sequences of {count(settings.sequence, 'token')}: {spent}"
        return f"{how_long}, {how(settings)}, at most {size(self.plan.peak_bytes)}"


def cheapest(
    model: str | Transformer, hardware: str | Hardware, *, tokens: float, days: float, most_ranks: int = 16384,
    **given: Any,
) -> Budget:  # fmt: skip
    """Return the plan that trains on `tokens` within `days` in the fewest GPU-hours of those tried.

    The number of ranks doubles, up to `most_ranks`, from about the fewest that could be fast enough, until two
    doublings in a row save nothing. More ranks have more memory, and so recompute less, but wait longer for each other.
    Each number is tried with and without tensor and pipeline parallelism, with `CHECKPOINTING`, and with the largest
    micro-batch that fits: in stage 3, and a pipeline in stage 1, not interleaved, with 8 micro-batches for each of its
    stages. Nothing is offloaded unless `offload` is given. `given` as for `plan`: what is given is not varied.

    Raises:
        ValueError: nothing fits, or nothing is fast enough.
    """
    machine = named(hardware)
    if not all(isinstance(one, int | float) and one > 0 for one in (tokens, days)) or tokens == inf:
        raise PlanError(f"tokens={tokens!r}, days={days!r}: give two numbers above 0, and finite tokens.")
    most_ranks = min(whole("most_ranks", most_ranks), most_ranks if machine.network else machine.devices)
    most_ranks = most_ranks // machine.devices * machine.devices or most_ranks  # whole nodes
    for name in given:
        known("setting", name, SETTINGS)
    given |= {name: whole(name, given[name]) for name in CUTS if name in given}
    least = _about_least(machine, model, tokens / (days * 86400), given)
    first = floor(log2(min(least, most_ranks)))
    found, best = list[Budget](), None
    for ranks in (*(2**power for power in range(first, ceil(log2(most_ranks)))), most_ranks):
        refusals = list[PlanError]()
        ways = [*_ways(machine, tokens, {"model": model, "world_size": ranks} | given, refusals)]
        found += filter(None, ways)
        fast = (one for one in found if one.seconds <= days * 86400)
        best = min(fast, key=lambda one: one.gpu_hours, default=None)
        if best and ranks >= 4 * best.plan.settings.world_size:
            break
        if ranks == most_ranks and not ways and not found:
            raise refusals[0]
    if best:
        return best
    enough = more_ranks(machine, most_ranks)
    reached, more = "nothing fits", ["hardware with more memory", enough]
    if "offload" not in given:
        reached, more = "nothing fits without offload", ["offload", *more]
    more += ["a shorter sequence"] * (given.get("sequence", 2) > 1) + ["a smaller batch"] * (given.get("batch", 1) > 1)
    if found:
        more = ["more days", enough, "fewer tokens"]
        reached = f"the fastest takes {min(one.seconds for one in found) / 86400:,.1f} days"
    raise PlanError(
        f"{tokens:.3g} tokens in {count(f'{days:g}', 'day')} on at most {count(most_ranks, 'rank')} of {machine.name}: "
        f"{reached}. Allow {', '.join(more[:-1])} or {more[-1]}."
    )


def _about_least(machine: Hardware, model: str | Transformer, tokens_per_second: float, given: dict[str, Any]) -> float:
    """Return about how many ranks, 1 or more, are fast enough if nothing but computing takes time."""
    decisive = ("sequence", "precision", "fp8", "trainable", "lora_rank")  # of the FLOPs and of their speed
    one = plan(model=model, **{name: given[name] for name in decisive if name in given})
    faster = machine.fp8_speed() if one.settings.fp8 != "none" else 1
    speed = machine.achievable * faster * machine.peak_flops(one.settings.policy.fast)
    return max(1, tokens_per_second * token_flops(one.model, one.settings) / speed)


def _ways(
    machine: Hardware, tokens: float, given: dict[str, Any], refusals: list[PlanError]
) -> Iterator[Budget | None]:  # fmt: skip
    """Yield the budget of each way, None if it does not fit. Ways that do not go together become `refusals`."""
    usual = {"attention": "flash", "implementation": "fused"}
    for cut, recomputed in product(cuts(machine, given), CHECKPOINTING):
        stages = cut["pipeline_parallel"]
        rest = {"stage": 1, "micro_batches": 8 * stages} if stages > 1 else {"stage": 3}
        try:
            one = plan(**usual | rest | {"checkpointing": recomputed} | given | cut)
            if "batch" not in given:
                one = _with(one, batch=max(1, largest_batch(one, machine)))
            seconds = tokens / (one.tokens_per_second(machine) * one.settings.world_size)
            found = Budget(plan=one, gpu_hours=seconds * one.settings.world_size / 3600, seconds=seconds)
            yield found if fits(one, machine) else None
        except PlanError as refusal:  # these ranks cannot be divided in this way
            refusals.append(refusal)
