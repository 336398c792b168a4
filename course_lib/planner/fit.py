"""Whether a plan fits its hardware, what it lacks, and what would need less."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .text import size
from .timing.hardware import Hardware
from .timing.hardware import hardware as named

if TYPE_CHECKING:
    from .plan import Plan

MARGIN = 0.15
"""A peak this far above the device's memory may still fit: a plan has an error, and an 80 GB H100 really has 79.1 GiB,
6 % more. docs/validation.md has the evidence."""


def fits(plan: Plan, machine: str | Hardware) -> bool:
    """Return whether what the plan reserves on the device, and holds on the host, is not larger than the memory."""
    return shortage(plan, named(machine))[0] <= 0


def tightest(plan: Plan, hardware: Hardware) -> Plan:
    """Return the plan of the stage of a pipeline that lacks most bytes, on the device or the host."""
    host = _of_host(plan, hardware)
    return max(
        plan.stages,
        key=lambda stage: max(stage.reserved_bytes - hardware.memory_bytes, stage.host_bytes - host),
    )


def shortage(plan: Plan, hardware: Hardware) -> tuple[int, str]:
    """Return how many bytes are missing on the device or the host, whichever is worse, and where.

    The plan fits if the number is not above 0. On the device, everything that torch reserves has to fit, so the moment
    is the one for which torch reserves most. Of a pipeline, the `tightest` stage has to fit.
    """
    plan = tightest(plan, hardware)
    moment = max(plan.needed, key=lambda at: plan.needed[at])
    there = [part for part in plan.parts if moment in part.moments and not part.host]
    largest = sorted(there, key=lambda part: -part.nbytes)[:3]
    held = ", ".join(f"{part.name} ({size(part.nbytes)})" for part in largest)
    reserved = f"torch reserves {size(plan.reserved_bytes)} for a peak of {size(plan.peak_bytes)}"
    host = _of_host(plan, hardware)
    return max(
        (plan.reserved_bytes - hardware.memory_bytes, f"{moment}, mostly {held}; {reserved}"),
        (plan.host_bytes - host, f"in the host's memory, of which a rank has {size(host)}"),
    )


def verdict(plan: Plan, hardware: Hardware) -> str:
    """Return "fits", "may fit", which a dry run and a trial on the device decide, or "does not fit"."""
    if shortage(plan, hardware)[0] <= 0:
        return "fits"
    host = max(stage.host_bytes for stage in plan.stages) - _of_host(plan, hardware)
    missing = max(plan.fullest.peak_bytes - hardware.memory_bytes, host)
    return "may fit" if missing <= MARGIN * hardware.memory_bytes else "does not fit"


def _of_host(plan: Plan, hardware: Hardware) -> int:
    return hardware.host_bytes // hardware.sharing(plan.settings.world_size)


def holder(plan: Plan) -> str:
    """Return who holds what the plan says: rank 0, or a stage of a pipeline other than the first."""
    stage = plan.settings.pipeline_stage
    return "rank 0" if stage == 0 else "the last stage" if plan.settings.last_stage else f"pipeline stage {stage}"


def more_ranks(machine: Hardware, ranks: int) -> str:
    """Return what gives more than so many ranks, to be suggested."""
    return "more ranks" if machine.network or ranks < machine.devices else "hardware with a network"


def less(plan: Plan, machine: Hardware) -> str:
    """Return what makes a plan need less memory on each rank, to be suggested."""
    known, settings = plan.model.transformer, plan.settings
    smaller = {"a shorter sequence": settings.sequence, "a smaller batch": settings.batch} if known else {}
    ways = [more_ranks(machine, settings.world_size), *(what for what, value in smaller.items() if value > 1)]
    return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
