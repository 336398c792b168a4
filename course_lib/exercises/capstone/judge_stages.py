"""What becomes of each stage on given hardware: it does not fit, it loses, or it is chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ... import planner
from ...planner import HARDWARE, Hardware, Plan, plan
from ..form.declare import Case, Exercise, Mistake
from . import stubs

EQUAL = 1.05


def judge_stages(plans: list[planner.Plan], machine: planner.Hardware) -> list[str]:
    """Return for each plan "does not fit", "slower", "as fast" or "chosen"."""
    fitting = [candidate for candidate in plans if candidate.peak_bytes <= machine.memory_bytes]
    fastest = min((candidate.step_seconds(machine) for candidate in fitting), default=0.0)
    judgements: list[str] = []
    for candidate in plans:
        if candidate.peak_bytes > machine.memory_bytes:
            judgements.append("does not fit")
        elif candidate.step_seconds(machine) > 1.05 * fastest:
            judgements.append("slower")
        else:
            judgements.append("as fast" if "chosen" in judgements else "chosen")
    return judgements


def judged(
    plans: Sequence[Plan], machine: Hardware, *, memory: float | None = None,
    held: Callable[[Plan], float] = lambda plan: plan.peak_bytes, cost: Callable[[Plan], float] | None = None,
    equal: float = EQUAL, among_all: bool = False, last: bool = False,
) -> list[str]:  # fmt: skip
    """As `judge_stages`, with what a mistake does otherwise: the memory that is there, what a plan holds and costs,
    what counts as equal, whether what does not fit is compared with, and whether the last is chosen."""
    memory = machine.memory_bytes if memory is None else memory
    costs = [plan.step_seconds(machine) if cost is None else cost(plan) for plan in plans]
    fits = [held(plan) <= memory for plan in plans]
    fastest = min((spent for spent, fit in zip(costs, fits, strict=True) if fit or among_all), default=0.0)
    equals = [fit and spent <= equal * fastest for spent, fit in zip(costs, fits, strict=True)]
    order = range(len(plans) - 1, -1, -1) if last else range(len(plans))
    chosen = next((number for number in order if equals[number]), None)
    words = ["as fast" if same else "slower" if fit else "does not fit" for same, fit in zip(equals, fits, strict=True)]
    return ["chosen" if number == chosen else word for number, word in enumerate(words)]


def sum_of_largest(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, held=lambda plan: sum(plan.bytes.values()))


def states_alone(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, held=lambda plan: sum(plan.moments["between steps"].values()))


def activations_forgotten(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, held=lambda plan: sum(plan.bytes.values()) - plan.bytes["activations"])


def all_devices(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, memory=machine.memory_bytes * machine.devices)


def the_hosts_memory(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, memory=machine.host_bytes)


def not_to_the_last_byte(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, memory=machine.memory_bytes - 1)


def in_gib(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, memory=machine.memory_bytes / 10**9 * 2**30)


def all_fit(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, memory=float("inf"))


def fastest_alone(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, equal=1.0)


def beside_all(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, among_all=True)


def highest_stage(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, last=True)


def first_that_fits(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, cost=lambda plan: 1.0)


def least_memory(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, cost=lambda plan: plan.peak_bytes)


def fewest_bytes_sent(plans: list[Plan], machine: Hardware) -> list[str]:
    return judged(plans, machine, cost=lambda plan: plan.sent_bytes)


def all_chosen(plans: list[Plan], machine: Hardware) -> list[str]:
    return [word.replace("as fast", "chosen") for word in judged(plans, machine)]


def fastest_is_chosen(plans: list[Plan], machine: Hardware) -> list[str]:
    words = [word.replace("chosen", "as fast") for word in judged(plans, machine)]
    fitting = [number for number, word in enumerate(words) if word != "does not fit"]
    if fitting:
        words[min(fitting, key=lambda number: plans[number].step_seconds(machine))] = "chosen"
    return words


def in_two_passes(plans: list[Plan], machine: Hardware) -> list[str]:
    seconds = {i: p.step_seconds(machine) for i, p in enumerate(plans) if p.peak_bytes <= machine.memory_bytes}
    words = ["does not fit"] * len(plans)
    for number, spent in seconds.items():
        words[number] = "as fast" if spent / min(seconds.values()) <= 1.05 else "slower"
    if "as fast" in words:
        words[words.index("as fast")] = "chosen"
    return words


def one_by_one(plans: list[Plan], machine: Hardware) -> list[str]:
    free = [machine.memory_bytes - plan.peak_bytes for plan in plans]
    seconds = [plan.timeline(machine).seconds for plan in plans]
    limit = 1.05 * min([s for s, left in zip(seconds, free, strict=True) if left >= 0] or [0])
    words, chosen = [], False
    for spent, left in zip(seconds, free, strict=True):
        word = "does not fit" if left < 0 else "slower" if spent > limit else "as fast" if chosen else "chosen"
        chosen |= word == "chosen"
        words.append(word)
    return words


CLUSTERS = (
    ("llama-7b", "a100", 8, 1),
    ("gpt2-xl", "a100", 8, 4),
    ("llama-13b", "a100", 8, 4),
    ("llama-70b", "h100-ethernet", 64, 1),
    ("gpt2-xl", "a100", 8, 16),
    ("llama-13b", "a100", 8, 1),
    ("llama-13b", "rtx-4090", 4, 1),
    ("llama-7b", "h100-ethernet", 16, 1),
    ("gpt2-xl", "rtx-4090", 4, 16),
)
"""Model, hardware, ranks and rows a rank. In two of them nothing fits; in the others each stage has its day."""


@cache
def plans_for(model: str, world_size: int, batch: int) -> list[Plan]:
    """The four stages, with attention and buckets as `planner.choose` has them."""
    usual = {"attention": "flash", "implementation": "foreach", "bucket_bytes": 256 * 2**20}
    return [plan(model=model, world_size=world_size, stage=stage, batch=batch, **usual) for stage in range(4)]


def draw(rng: random.Random, number: int) -> Case:
    """A cluster; after each of them was drawn, one whose memory stage 2 fills to the last byte."""
    model, name, world_size, batch = CLUSTERS[number] if number < len(CLUSTERS) else rng.choice(CLUSTERS)
    plans, machine = plans_for(model, world_size, batch), HARDWARE[name]
    about = f"{model} on {world_size} ranks of {machine.name}, {batch} rows a rank"
    if number == len(CLUSTERS):
        machine = replace(machine, memory_bytes=plans[2].peak_bytes)
        about += f", each with {machine.memory_bytes:,} bytes"
    return Case(world_size=0, args=lambda rank: (list(plans), machine), about=about)


JUDGE_STAGES = Exercise(
    name="capstone.judge_stages",
    title="Choose a stage, with reasons",
    task="`plans` are those of the stages, the simplest first. Return for each what becomes of it on this machine. "
    '"does not fit": at its peak it holds more than a device has. "slower": it fits, and a step takes more than 1.05 '
    'times as long as that of the fastest that fits. Of those that are left, the first is "chosen", and others are '
    '"as fast". A plan knows its `peak_bytes` and its `step_seconds(machine)`; a machine its `memory_bytes`.',
    stub=stubs.judge_stages,
    reference=judge_stages,
    draw=draw,
    case_count=len(CLUSTERS) + 1,
    variants={"two-passes": in_two_passes, "one-by-one": one_by_one},
    mistakes=[
        Mistake(
            id="not-to-the-last-byte",
            solution=not_to_the_last_byte,
            told="A plan that fills the memory to the last byte fits, and you refuse it.",
            action='Only a plan that holds more than the device has "does not fit": compare with `>`, or `<=`.',
        ),
        Mistake(
            id="sum-of-largest",
            solution=sum_of_largest,
            told="You add up `plan.bytes`: each category when it is largest. They are not largest at the same moment.",
            action="Use `plan.peak_bytes`.",
        ),
        Mistake(
            id="states-alone",
            solution=states_alone,
            told="You ask what is held between steps. Activations, gradients and buffers need room as well.",
            action="Use `plan.peak_bytes`.",
        ),
        Mistake(
            id="activations-forgotten",
            solution=activations_forgotten,
            told="You leave out activations, which no stage shards.",
            action="Use `plan.peak_bytes`.",
        ),
        Mistake(
            id="all-devices",
            solution=all_devices,
            told="You compare with the memory of all devices of a node. A plan tells what *one* rank holds.",
            action="Compare with `machine.memory_bytes`, which is one device's.",
        ),
        Mistake(
            id="the-hosts-memory",
            solution=the_hosts_memory,
            told="You compare with the host's memory. Nothing is offloaded here.",
            action="Compare with `machine.memory_bytes`.",
        ),
        Mistake(
            id="in-gib",
            solution=in_gib,
            told="You take the device's GB for GiB, and have 7 % more than there is.",
            action="Compare bytes with bytes.",
        ),
        Mistake(
            id="all-fit",
            solution=all_fit,
            told="Nothing is too large for you: no plan is told not to fit.",
            action="Ask first whether `plan.peak_bytes <= machine.memory_bytes`.",
        ),
        Mistake(
            id="fastest-alone",
            solution=fastest_alone,
            told="Only the very fastest counts as fast. Differences below 5 % are within the error of such estimates.",
            action="Compare with 1.05 times the fastest.",
        ),
        Mistake(
            id="beside-all",
            solution=beside_all,
            told="You compare with plans that do not fit: a step that cannot be made has no speed.",
            action="Take the fastest among those that fit.",
        ),
        Mistake(
            id="highest-stage",
            solution=highest_stage,
            told="Of equally fast stages you choose the last. Each stage is more to run, and more to go wrong.",
            action="Choose the first of them.",
        ),
        Mistake(
            id="first-that-fits",
            solution=first_that_fits,
            told="You take the first stage that fits, whatever a step takes.",
            action="Compare `step_seconds(machine)`.",
        ),
        Mistake(
            id="least-memory",
            solution=least_memory,
            told="You take what holds least. Memory that is free earns nothing.",
            action="Compare `step_seconds(machine)` of those that fit.",
        ),
        Mistake(
            id="fewest-bytes-sent",
            solution=fewest_bytes_sent,
            told="You compare bytes sent. What runs beside computing costs no time, as lesson 08 has shown.",
            action="Compare `step_seconds(machine)`.",
        ),
        Mistake(
            id="all-chosen",
            solution=all_chosen,
            told="Several stages are chosen at once.",
            action='Only the first of the fast ones is "chosen"; the others are "as fast".',
        ),
        Mistake(
            id="fastest-is-chosen",
            solution=fastest_is_chosen,
            told="You choose the fastest, even where a simpler stage is as fast, within 5 %.",
            action="Choose the first of those within 5 %.",
        ),
    ],
    hints=[
        "Two questions, one after the other: what is possible, and what is best among that?",
        "What does not fit is out. Of the rest, find the fastest; it decides who is slower.",
        "`plan.peak_bytes <= machine.memory_bytes`, then `plan.step_seconds(machine) > 1.05 * fastest`.",
        "```python\nfitting = [plan for plan in plans if ...]\nfastest = min((... for plan in fitting), default=0)\n"
        "for plan in plans:\n    if ...:  # does not fit\n    elif ...:  # slower\n"
        '    else:  # "chosen", if none is yet\n```',
    ],
    explanation="First what is possible, then what is best. The 5 % are honesty: the arithmetic of seconds is not more "
    "exact than that, and among equals the simplest is right. `planner.choose` does the same, over more settings.",
)
