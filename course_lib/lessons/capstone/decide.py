"""Decide how to train on a brief: every valid decision passes. The check recomputes its three numbers."""

import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields
from math import isclose
from numbers import Real
from typing import Any

from ... import planner
from ...exercises import Case, Exercise, Finding, Trial
from ...planner import plan

BRIEF: dict[str, Any] = {
    "settings": {"model": "llama-70b", "sequence": 4096, "world_size": 64, "attention": "flash",
                 "implementation": "foreach", "expandable": True},  # PYTORCH_ALLOC_CONF=expandable_segments:True
    "sequences": 1024,
    "tokens": 100e9,
    "clusters": {"ethernet": ("h100-ethernet", 1.90), "infiniband": ("h100-infiniband", 3.20)},
    "days": 30,
    "dollars": 90_000,
}  # fmt: skip
"""The same as in the lesson's cell. The prices are made up."""

CHOICE = ("stage", "shard_size", "checkpointing", "batch", "offload")
NUMBERS = ("peak_bytes", "days", "dollars")

ADVICE = {
    "peak_bytes": "A rank's peak is `planned.peak_bytes`.",
    "days": "The number of steps is all tokens divided by the tokens of a step. Multiply it by a step's seconds.",
    "dollars": "The price is for one GPU and one hour, and the one of the cluster that you chose.",
    "memory": "Which state is whole at this stage, and which activations stay? Shard, recompute or offload more.",
    "deadline": "What does a step wait for? A larger micro-batch means fewer micro-batches, and fewer gathers.",
    "budget": "Days times 24, times GPUs, times the price: compute it for the cheaper cluster too.",
    "refused": "Change what the planner refuses, and plan again.",
    "form": "Return a dict with cluster, stage, shard_size, checkpointing, batch, offload, and the three numbers.",
}


def planned_for(brief: Mapping[str, Any], answer: Mapping[str, Any]) -> planner.Plan:
    """Return the plan of a decision. Raises ValueError if its settings do not go together."""
    planner.known("cluster", answer["cluster"], brief["clusters"])
    ranks, batch = brief["settings"]["world_size"], planner.whole("batch", answer["batch"])
    if brief["sequences"] % (ranks * batch):
        raise ValueError(
            f"batch={batch}: {ranks} ranks cannot cut {brief['sequences']} sequences into micro-batches of {batch}. "
            f"Choose a divisor of {brief['sequences'] // ranks}."
        )
    choice = {name: answer[name] for name in CHOICE}
    return plan(**brief["settings"], **choice, micro_batches=brief["sequences"] // (ranks * batch))


def cost(brief: Mapping[str, Any], answer: Mapping[str, Any], planned: planner.Plan) -> dict[str, float]:
    """Return the three numbers of a decision."""
    hardware, price = brief["clusters"][answer["cluster"]]
    steps = brief["tokens"] / (brief["sequences"] * planned.settings.sequence)
    days = steps * planned.step_seconds(hardware) / 86_400
    return {"peak_bytes": planned.peak_bytes, "days": days, "dollars": days * 24 * planned.settings.world_size * price}


def faults(answer: Any, brief: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a decision: a key of `ADVICE`, and a sentence."""
    if answer is None:
        yield "form", "Your function returned None."
        return
    absent = [name for name in ("cluster", *CHOICE, *NUMBERS) if not isinstance(answer, dict) or name not in answer]
    if absent:
        yield "form", f"Your answer does not contain {', '.join(absent)}."
        return
    settings = {field.name for field in fields(planner.Settings)} - {*CHOICE, *brief["settings"], "micro_batches"}
    if more := sorted(settings & answer.keys()):
        yield "form", f"The brief leaves no choice of {', '.join(more)}: the customer's program is data parallel."
        return
    try:
        planned = planned_for(brief, answer)
        right = cost(brief, answer, planned)
        choice = {name: answer[name] for name in CHOICE}
        of_one = cost(brief, answer, plan(**brief["settings"], **choice, micro_batches=1))
    except (TypeError, ValueError) as refusal:
        yield "refused", f"The planner refuses this choice: {refusal}"
        return
    for name in NUMBERS:
        if not isinstance(answer[name], Real):
            yield name, f"{name} is {answer[name]!r}, which is no number."
        elif not isclose(answer[name], right[name], rel_tol=0.01):
            one = isclose(answer[name], of_one[name], rel_tol=0.001)
            yield name, (
                f"{name} is wrong: yours is {answer[name] / right[name]:.4g} times the planner's number."
                + f" It is that of a plan with one micro-batch; a step has {planned.settings.micro_batches}." * one
            )
    yield from broken_limits(answer, brief, planned, right)


def broken_limits(
    answer: Mapping[str, Any], brief: Mapping[str, Any], planned: planner.Plan, right: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield each limit that a decision breaks: memory, deadline, budget."""
    machine = planner.HARDWARE[brief["clusters"][answer["cluster"]][0]]
    chosen = f"{planner.how(planned.settings)}, on {machine.name}"
    short, where = planner.shortage(planned, machine)
    if short > 0:
        yield "memory", f"{chosen}: it does not fit. {planner.size(short)} are missing: {where}."
    if right["days"] > brief["days"]:
        yield "deadline", f"{chosen}: it takes {right['days']:.1f} days, and {brief['days']} are allowed."
    if right["dollars"] > brief["dollars"]:
        yield "budget", f"{chosen}: it costs {right['dollars']:,.0f} dollars, and {brief['dollars']:,} are allowed."


def faults_only(solution: Callable[[dict[str, Any]], Any], brief: dict[str, Any]) -> Any:
    """Return None for a decision that holds, so that every such decision passes; else what is wrong with it."""
    return list(faults(solution(brief), brief)) or None


def judged(trial: Trial) -> Iterator[Finding]:
    """Report each wrong number and each broken limit."""
    for about, sentence in trial.yours.values[0] or ():
        yield Finding(observed=sentence, action=ADVICE[about])


def draw(rng: random.Random, number: int) -> Case:
    return Case(world_size=0, args=lambda rank: (deepcopy(BRIEF),), what="the brief")


exercise = Exercise("capstone.decide", title="Decide, with three numbers", draw=draw, case_count=1, trial=faults_only,
    rules=(judged,), task="""
    Choose how to train on the brief, and return one dict. Its choice: `"cluster"`, and the planner's settings
    `"stage"`, `"shard_size"` (how many ranks share one copy), `"checkpointing"`, `"batch"` (the sequences of a
    micro-batch) and `"offload"`. Its three numbers: `"peak_bytes"` of a rank, the `"days"` of the whole training, and
    its cost in `"dollars"`. Compute them with `plan`. Every choice passes that fits the memory, the deadline and the
    budget, if its numbers are within 1 % of the planner's.""", hints="""
    Which of the three limits does each cluster make hard to keep?

    Begin with memory: which stages can hold the model at all? Then look at what a step waits for. On a slow network,
    each micro-batch gathers all parameters, so fewer and larger micro-batches help. They need memory for activations.

    `plan(**brief["settings"], **choice, micro_batches=...)` has `peak_bytes` and `step_seconds(hardware)`. The number
    of micro-batches is `brief["sequences"] // (64 * choice["batch"])`.

    ```python
    choice = {"stage": 3, "shard_size": ..., "checkpointing": ..., "batch": ..., "offload": [...]}
    hardware, price = brief["clusters"][...]
    planned = plan(**brief["settings"], **choice, micro_batches=...)
    days = steps * planned.step_seconds(hardware) / 86_400
    dollars = days * ...
    ```
    """, explanation="""
    A model paragraph: *We rent the Ethernet cluster and train by stage 3 over all 64 ranks, with full checkpointing,
    micro-batches of 8 sequences, and the optimizer on the host. A rank peaks at 67.6 of 80 GB. The training takes 23.9
    of 30 days and costs 69,674 of 90,000 dollars. Your program cuts no matrices, so stages 1 and 2 cannot fit: the
    parameters alone are 138 GB. On InfiniBand, micro-batches of 4 need no offload, and the training is 1.9 days
    shorter, but every choice of the brief that fits breaks the budget. On Ethernet, the gathers are the danger: with
    micro-batches of 4, each step waits for them, and the training takes 39 days. Checkpointing and offload make the
    room for micro-batches of 8. The plan's bytes are mostly within 10 %. Its seconds are less exact, most of all those
    of the optimizer on the host, so we first rent one day and measure ten steps. Only if you need the model two days
    sooner, and InfiniBand costs less than 2.66 dollars, we take it.*

    Compare your paragraph with the rubric of the lesson. Other choices keep the limits too. Over a slow network,
    lesson 09 shards within a node. Here, micro-batches of 8 then need 82.7 GB, which is too much. With the parameters
    on the host as well, they fit, but take 28.9 days, because each host updates eight times as many parameters.""")


@exercise
def decide(brief: dict[str, Any]) -> dict[str, Any]:
    """Return your choice for the brief, and its three numbers.

    The choice: "cluster", "stage", "shard_size", "checkpointing", "batch" (sequences of a micro-batch)
    and "offload". The numbers: "peak_bytes" of a rank; "days" and "dollars" of the whole training.
    """
    choice: dict[str, Any] = {
        "stage": 3, "shard_size": 64, "checkpointing": "full", "batch": 8, "offload": ["optimizer"]
    }  # fmt: skip
    cluster = "ethernet"
    hardware, price = brief["clusters"][cluster]
    planned = plan(**brief["settings"], **choice, micro_batches=brief["sequences"] // (64 * choice["batch"]))
    steps = brief["tokens"] / (brief["sequences"] * brief["settings"]["sequence"])
    days = steps * planned.step_seconds(hardware) / 86_400
    dollars = days * 24 * 64 * price
    return choice | {"cluster": cluster, "peak_bytes": planned.peak_bytes, "days": days, "dollars": dollars}


exercise.edit("stage-2-with-offload", {'"stage": 3': '"stage": 2'}, """
    You choose stage 2 with the optimizer on the host. Stage 2 keeps all parameters whole on each rank: 138 GB.
    Next: shard the parameters too.""")

exercise.edit("nothing-recomputed", {'"full"': '"none"', '"batch": 8': '"batch": 1'}, """
    You keep all activations for backward. With 80 layers and 4,096 tokens, they fill the memory even with a single
    sequence. Next: let backward recompute them: look at the settings of checkpointing.""")

exercise.edit("small-micro-batches", {'"batch": 8': '"batch": 1'}, """
    Your micro-batches have one sequence, so a step has 16 of them, and each gathers all parameters.
    Next: choose larger micro-batches, and look at the peak.""")

exercise.edit("fast-network", {'"ethernet"': '"infiniband"'}, """
    You rent the fast network. The training ends in time, and costs more than the budget allows.
    Next: find out what makes the slow network slow, and gather less often.""")

exercise.edit("one-micro-batch", {'micro_batches=brief["sequences"] // (64 * choice["batch"])': "micro_batches=1"}, """
    You plan a step with one micro-batch. 64 ranks with micro-batches of 8 read only 512 of the 1,024 sequences.
    Next: set `micro_batches` so that a step reads all sequences.""")

exercise.edit("one-gpu", {"24 * 64 *": "24 *"}, """
    You compute the cost of one GPU, and the customer rents 64. Next: multiply by the number of GPUs.""")

exercise.edit("price-of-a-day", {"24 * 64": "64"}, """
    You multiply days by a price for an hour. Next: multiply by the 24 hours of a day.""")

exercise.edit("sum-of-largest", {"planned.peak_bytes": "sum(planned.bytes.values())"}, """
    You add up `planned.bytes`, in which each category has its largest size. They are not largest at the same moment.
    Next: use `planned.peak_bytes`.""")

exercise.edit("one-sequence-a-step", {'(brief["sequences"] * brief["settings"]["sequence"])':
    'brief["settings"]["sequence"]'}, """
    You count a step for each sequence. A step reads 1,024 of them. Next: divide the tokens by the tokens of a step.""")


exercise.variant_edit("in-a-node", {'"shard_size": 64': '"shard_size": 8', '["optimizer"]':
    '["optimizer", "parameters"]'})


@exercise.variant
def shards_on_two_nodes(brief: dict[str, Any]) -> dict[str, Any]:
    choice = {"stage": 3, "shard_size": 16, "checkpointing": "full", "batch": 8, "offload": ("optimizer",)}
    return {"cluster": "ethernet", **choice, "peak_bytes": 74_100_000_000, "days": 26.2, "dollars": 76_500}
