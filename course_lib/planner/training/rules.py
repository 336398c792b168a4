"""The rules that settings keep: the range of each value, and which values go together."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from .checks import PlanError, known, whole

if TYPE_CHECKING:
    from .settings import Settings

COUNTED = ("world_size", "batch", "sequence", "micro_batches", "tensor_parallel", "pipeline_parallel", "model_chunks",
           "context_parallel", "expert_parallel")  # fmt: skip
SWITCHES = ("sequence_parallel", "whole_logits", "compiled", "no_sync", "expandable")
OFFLOADED = {"optimizer": 1, "parameters": 3}
"""The states that can be offloaded, and the first stage that shards each."""


def check(settings: "Settings", choices: Mapping[str, Iterable[str]]) -> None:
    """Raise PlanError for a value out of its range, or for the first rule that is broken, with the settings' values.

    Whole numbers become ints: 8.0 is 8, and so is NumPy's.
    """
    values = vars(settings)
    for name in (*COUNTED, *(name for name in ("bucket_bytes", "shard_size") if values[name] is not None)):
        values[name] = whole(name, values[name])
    for name, most in {"stage": 3, "prefetch": None, "lora_rank": None, "pipeline_stage": None}.items():
        values[name] = whole(name, values[name], least=0, most=most)
    if not isinstance(settings.reshard, bool):
        values["reshard"] = whole("reshard", settings.reshard, least=0)
    for name, table in {**choices, **dict.fromkeys(SWITCHES, (True, False))}.items():
        known(name, values[name], table)
    if broken := next(((names, why) for kept, names, why in _rules(settings) if not kept), None):
        given = {name: f"{name}={value!r}" for name, value in values.items()}
        what = re.sub(r"\w+", lambda name: given.get(name[0], name[0]), broken[0])
        raise PlanError(f"{what}: {broken[1]}.")


# fmt: off
def _rules(settings: "Settings") -> Iterator[tuple[bool, str, str]]:
    """Yield whether a rule is kept, the settings that it is about, and what is wrong, with what to choose."""
    stage, ranks, experts = settings.stage, settings.data_parallel, settings.expert_parallel
    groups = settings.tensor_parallel * settings.pipeline_parallel
    yield (settings.world_size % groups == 0, "world_size with tensor_parallel and pipeline_parallel",
           f"the ranks do not fall into groups of {groups}. Choose a multiple of it as world_size")
    stages = settings.pipeline_parallel
    yield (settings.pipeline_stage < stages, "pipeline_stage with pipeline_parallel",
           f"the last stage is {stages - 1}, because the first is 0. Choose at most {stages - 1}, or more stages as "
           "pipeline_parallel")
    if (size := settings.shard_size) is not None:
        yield (ranks % size == 0, "shard_size with world_size, tensor_parallel and pipeline_parallel",
               f"{ranks} data-parallel ranks do not fall into groups of {size}, as hybrid sharding needs. Choose a "
               f"divisor of {ranks}")
        yield (stage > 0 or size == 1, "shard_size with stage",
               "data parallel shards nothing. Choose stage 1, 2 or 3, or leave shard_size out")
    among, shared = (settings.shards, "share states, and ") if stage else (ranks, "")
    for name, size, sharing in (("context_parallel", settings.context_parallel, ranks),
                                ("expert_parallel", experts, among), ("reshard", settings.gathers_again or 1, among)):
        many = "a single rank does" if sharing == 1 else f"{sharing} ranks {shared}do"
        yield (sharing % size == 0, f"{name} with stage",
               f"{many} not fall into groups of {size}. Choose a divisor of {sharing}")
    yield (settings.reshard is True or settings.reshard != 1, "reshard",
           "a rank keeps a shard among others. Choose True for all ranks, False for whole parameters, or 2 or more")
    yield (experts == 1 or settings.gathers_again in (0, settings.shards), "reshard, expert_parallel",
           "a second shard of experts is not planned. Choose reshard=True, or expert_parallel=1")
    part, room = (value if isinstance(value, int | float) else -1
                  for value in (settings.trainable, settings.capacity_factor))
    yield (0 <= part <= 1 and (part == 1 or not settings.lora_rank), "trainable, lora_rank",
           "a part of the parameters is trained, from 0 to 1, or adapters of a rank. Give one of the two")
    yield (settings.sequence % settings.context_parallel == 0, "sequence, context_parallel",
           f"ranks share a sequence evenly. Choose a multiple of {settings.context_parallel} as sequence")
    yield (1 <= room < inf, "capacity_factor",
           "experts have room for the tokens that come. Choose a capacity_factor of 1 or more")
    yield (isinstance(settings.offload, Collection) and not isinstance(settings.offload, str), "offload",
           "it is a collection of names, not one. Write offload=['optimizer'], say")
    for what in settings.offload:
        known("offload", what, OFFLOADED)
        yield (stage >= OFFLOADED[what], "offload with stage",
               f"a rank moves its own shard to the host, and before stage {OFFLOADED[what]} there is no shard of the "
               f"{what}. Choose stage {OFFLOADED[what]} or more, or offload less")
    yield (settings.fp8 == "none" or settings.policy.fast, "fp8 with precision",
           "fp8 takes the place of bf16. Choose precision='mixed', or fp8='none'")
    alike, other = "it gives all ranks the same tensors. Choose expert_parallel=1", "or another engine"
    if settings.engine == "zero":
        yield (settings.policy.parameter == 4 or settings.policy.master > 0, "engine with precision",
               f"this course's engines keep fp32 masters. Choose precision='mixed', {other}")
        yield (settings.reshard is True, "engine with reshard",
               f"this course's stage 3 frees each unit after forward. Choose reshard=True, {other}")
        yield experts == 1, "engine with expert_parallel", f"{alike}, {other}"
        yield (not settings.partly_frozen, "engine with trainable and lora_rank",
               f"this course's shards hold what is trained. Choose trainable=1, lora_rank=0, {other}")
    if settings.engine == "nanotron":
        yield (stage < 2, "engine with stage",
               f"nanotron shards the optimizer's states and no more. Choose stage 0 or 1, {other}")
    if settings.engine == "torch":
        yield stage != 1 or experts == 1, "engine with expert_parallel", f"{alike}, {other}"
        yield (stage > 1 or not settings.policy.master, "engine with precision and stage",
               f"DistributedDataParallel keeps no fp32 masters. Choose precision='autocast', 'fp32', stage=3, {other}")
        yield (stage != 2, "engine with stage",
               "torch has nothing that shards gradients and keeps whole parameters. Choose stage 1, or 3, with "
               f"reshard=False as in FSDP's SHARD_GRAD_OP, {other}")
        yield (stage != 1 or settings.shards == ranks, "engine with stage and shard_size",
               f"ZeroRedundancyOptimizer shards over all ranks. Choose shard_size=None, {other}")
