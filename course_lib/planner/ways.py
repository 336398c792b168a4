"""The ways to train a model on given hardware, as plans. `choose` says what is tried, and what is left out."""

import re
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from .memory.layout import BUCKET_BYTES, engine_policy
from .plan import Plan, plan
from .timing.hardware import Hardware
from .timing.places import groups
from .training.checks import PlanError, whole
from .training.frozen import trained
from .training.settings import CHOICES
from .training.shapes import Model, Transformer

CUTS = {
    "tensor_parallel": (1, 2, 4, 8),
    "context_parallel": (1, 2, 4, 8, 16),
    "pipeline_parallel": (1, 2, 4, 8, 16),
}
"""How many ranks may share a model's matrices, its sequences, and its layers."""
LONG = 8192
"""Tokens of a sequence that each context-parallel rank has at least: with fewer, it waits for keys and values."""
CHECKPOINTING = ("none", "operators", "full")
"""What is tried with attention that keeps no scores: without them, "selective" is hardly different from "none"."""
LARGEST_BUCKET = 256 * 2**20
"""The most gradients that are reduced at a time: so many that latency does not hide what stages cost. Of a small model
it is an eighth, so that most are reduced while backward computes the others, or the default `BUCKET_BYTES`."""
_CHUNKS = (1, 2, 4, 8)
_TOKENS = ("sequence", "batch", "micro_batches")
_OFFLOADS: tuple[tuple[str, ...], ...] = ((), ("optimizer",), ("optimizer", "parameters"))


def cuts(machine: Hardware, fixed: dict[str, Any], least: int = LONG) -> Iterator[dict[str, int]]:
    """Yield the ways to cut a model over ranks: `CUTS`, or what is fixed, as far as they can win; see `choose`.

    A context-parallel rank has at least `least` tokens of a sequence.
    """
    longest = fixed.get("sequence", 0) // least
    most = CUTS | {
        "tensor_parallel": [ranks for ranks in CUTS["tensor_parallel"] if ranks <= machine.devices],
        "context_parallel": [ranks for ranks in CUTS["context_parallel"] if ranks in (1, min(ranks, longest))],
    }
    for values in product(*([fixed[name]] if name in fixed else tried for name, tried in most.items())):
        yield dict(zip(CUTS, values, strict=True))


def ways(
    model: Any, machine: Hardware, fixed: dict[str, Any], global_batch: int | None, *, slow: bool = False
) -> list[list[Plan]]:
    """Return the plans of each valid combination of settings that are not fixed: a micro-batch of one sequence first.

    With `slow` also those that save memory and hardly win: a cut together with offload, and context parallelism of
    short sequences.

    Raises:
        ValueError: no combination is valid.
    """
    ranks = machine.shard_group(fixed["world_size"]).ranks
    fixed |= {name: whole(name, fixed[name]) for name in (*CUTS, *_TOKENS) if name in fixed}
    alone = ranks == 1 and fixed.get("engine", "paper") == "paper"  # other engines' stages differ there, too
    what = {"model" if isinstance(model, str | Transformer | Model) else "params": model}
    if "params" in what:  # nothing says where to cut, or what activations there are
        fixed = dict.fromkeys(CUTS, 1) | {"checkpointing": "none"} | fixed
    share, batch = (fixed.get("micro_batches", 1), prod(fixed.get(name, 1) for name in CUTS)), fixed.get("batch", 1)
    at_once = max(1, batch * ranks // share[1])
    uneven = (f"global_batch={global_batch} with batch={batch}: a micro-batch on all ranks has {at_once} sequences. "
              f"Choose a multiple of {at_once} as global_batch{', or a smaller batch' * (batch > 1)}.")  # fmt: skip
    if global_batch is not None:
        if "micro_batches" in fixed:
            raise PlanError(f"global_batch={global_batch} and micro_batches={share[0]}: give one, the other follows.")
        share = whole("global_batch", global_batch), batch * ranks
    known = plan(**what, sequence=1).model.transformer
    varied: dict[str, Sequence[Any]] = {
        "stage": range(4),
        "checkpointing": [*CHOICES["checkpointing"]] if fixed["attention"] == "math" else CHECKPOINTING,
        "offload": _OFFLOADS,
        "shard_size": [None, machine.devices] if ranks > machine.devices else [None],
        "expert_parallel": [1, machine.devices, 4 * machine.devices] if known and known.experts else [1],
        "model_chunks": _CHUNKS,
    }
    open_names = [name for name in varied if name not in fixed]
    plans, refusals = [], []
    for cut, *values in product(cuts(machine, fixed, 1 if slow else LONG), *(varied[name] for name in open_names)):
        chosen, ways = dict(zip(open_names, values, strict=True)), prod(cut.values())
        pipelined = cut["pipeline_parallel"] > 1 and chosen.get("stage", 0) > 1
        as_stage_0 = alone and chosen.get("stage") and not (fixed | chosen).get("offload")
        slower = chosen.get("shard_size") or (chosen.get("offload") and not slow)
        if as_stage_0 or pipelined or (ways > 1 and slower):
            continue
        stages, chunks = cut["pipeline_parallel"], chosen.get("model_chunks", 1)
        if chunks > 1 and not (known and stages > 1 and known.layers % (stages * chunks) in (0, stages * chunks - 2)):
            continue
        of = stages if chunks > 1 else 1
        try:
            chosen["micro_batches"] = max(1, share[0] * ways // share[1])
            if chosen["micro_batches"] % of:
                continue
            one = plan(**what, **fixed | cut | chosen)
            if share[0] * ways % share[1]:
                raise PlanError(uneven)
            usual = {name: value for name, value in _usual(one).items() if name not in fixed}
            batches = [plan(**what, **fixed | cut | chosen | usual)]
            groups(batches[0].settings, machine)  # raises if they do not fit its nodes
            while global_batch and "batch" not in fixed and chosen["micro_batches"] % (of * 2 ** len(batches)) == 0:
                larger = {"batch": 2 ** len(batches), "micro_batches": chosen["micro_batches"] // 2 ** len(batches)}
                batches.append(plan(**what, **fixed | cut | chosen | usual | larger))
            plans.append(batches)
        except PlanError as refusal:  # these settings do not go together, such as stage 0 and offload
            refusals.append(refusal)
    if not plans:  # what is given says more than what is varied with it
        raise next((one for one in refusals if _settings_of(one) <= fixed.keys()), refusals[0])
    return plans


def _settings_of(refusal: PlanError) -> set[str]:
    """Return the settings whose values a refusal begins with."""
    return {*re.findall(r"(\w+)=", str(refusal).partition(": ")[0])}


def _usual(one: Plan) -> dict[str, Any]:
    """Return what is usual for this way, as `choose` says."""
    gradients = engine_policy(one.settings).reduced * trained(one.piece, one.settings).params
    implementation = "for-loop" if "optimizer" in one.settings.offload else "foreach"
    bucket_bytes = max(BUCKET_BYTES, min(LARGEST_BUCKET, gradients // 8))
    return {"implementation": implementation, "bucket_bytes": bucket_bytes}
