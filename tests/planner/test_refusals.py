"""Bad questions are refused with what was asked, why it is refused, and what to ask instead."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from course_lib.planner import MODELS, choose, hardware, plan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"world_size": 0}, "world_size=0: it has to be a whole number, 1 or more. Try world_size=1."),
        ({"world_size": 2.5}, "world_size=2.5: it has to be a whole number, 1 or more. Try world_size=2."),
        ({"world_size": True}, "world_size=True: it has to be a whole number, 1 or more."),
        ({"world_size": "8"}, "world_size='8': it has to be a whole number, 1 or more."),
        ({"stage": 4}, "stage=4: it has to be a whole number, from 0 to 3. Try stage=3."),
        (
            {"precision": "fp8"},
            "precision='fp8': there is no such precision. "
            "Choose one of 'fp32', 'mixed', 'mixed_fp32_accumulation', 'bf16', 'bf16_fp32_reduction', "
            "'autocast'.",
        ),
        (
            {"optimizer": "adamv"},
            "optimizer='adamv': there is no such optimizer. Choose one of 'sgd', 'momentum', 'adam', ",
        ),
        (
            {"wolrd_size": 8},
            "setting='wolrd_size': there is no such setting. Did you mean 'world_size'?",
        ),
        (
            {"shard_size": 3, "world_size": 8, "stage": 3},
            "shard_size=3 with world_size=8, tensor_parallel=1 and pipeline_parallel=1: 8 data-parallel ranks do not "
            "fall into groups of 3, as hybrid sharding needs. Choose a divisor of 8.",
        ),
        (
            {"shard_size": 2, "world_size": 8},
            "shard_size=2 with stage=0: data parallel shards nothing. Choose stage 1, 2 or 3, or leave shard_size out.",
        ),
        (
            {"offload": "optimizer", "stage": 3},
            "offload='optimizer': it is a collection of names, not one. Write offload=['optimizer'], say.",
        ),
        (
            {"offload": ["parameters"], "stage": 2},
            "offload=['parameters'] with stage=2: a rank moves its own shard to the host, and before stage 3 there is "
            "no shard of the parameters. Choose stage 3 or more, or offload less.",
        ),
        (
            {"engine": "torch", "stage": 2},
            "engine='torch' with stage=2: torch has nothing that shards gradients and keeps whole parameters. "
            "Choose stage 1, or 3, with reshard=False as in FSDP's SHARD_GRAD_OP, or another engine.",
        ),
        (
            {"engine": "torch", "stage": 1, "precision": "fp32", "world_size": 8, "shard_size": 4},
            "engine='torch' with stage=1 and shard_size=4: ZeroRedundancyOptimizer shards over all ranks. "
            "Choose shard_size=None, or another engine.",
        ),
        (
            {"engine": "torch", "stage": 0, "precision": "mixed"},
            "engine='torch' with precision='mixed' and stage=0: DistributedDataParallel keeps no fp32 "
            "masters. Choose precision='autocast', 'fp32', stage=3, or another engine.",
        ),
        (
            {"engine": "zero", "precision": "bf16"},
            "engine='zero' with precision='bf16': this course's engines keep fp32 masters. "
            "Choose precision='mixed', or another engine.",
        ),
        (
            {"engine": "zero", "stage": 3, "reshard": False},
            "engine='zero' with reshard=False: this course's stage 3 frees each unit after forward. "
            "Choose reshard=True, or another engine.",
        ),
        ({"stage": 3, "reshard": 1}, "reshard=1: a rank keeps a shard among others. Choose True for all ranks"),
        ({"engine": "zero", "precision": "bf16_fp32_reduction"}, "engine='zero' with precision='bf16_fp32_reduction'"),
        ({"compiled": "no"}, "compiled='no': there is no such compiled. Choose one of True, False."),
        ({"precision": "fp32", "fp8": "matrices"}, "fp8='matrices' with precision='fp32': fp8 takes the place"),
        ({"bucket_bytes": 0}, "bucket_bytes=0: it has to be a whole number, 1 or more."),
    ],
)
def test_settings_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        plan(params=1e9, **given)


@pytest.mark.parametrize("params", ["7B", [], [[1.5]], [None], object()])
def test_what_is_neither_a_number_nor_shapes_is_refused(params: object) -> None:
    with pytest.raises(ValueError, match="neither a number, nor shapes, nor units made of shapes"):
        plan(params=params)


def test_the_name_of_a_model_as_params_is_sent_to_model() -> None:
    with pytest.raises(ValueError, match=r"A model's name goes in model='llama3-8b'\.$"):
        plan("llama3-8b")


@pytest.mark.parametrize("params", [0, -1, 7.5, float("inf"), float("nan"), True, 10**400])
def test_impossible_numbers_of_parameters_are_refused(params: float) -> None:
    with pytest.raises(ValueError, match="it has to be a whole number, from 1 to 1000000000000000"):
        plan(params=params)


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="size=-3"):
        plan(params=[(2, -3)])


@pytest.mark.parametrize("given", [{}, {"params": 1e9, "model": "gpt2"}])
def test_a_plan_is_for_params_or_for_a_model(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give one of the two, such as params=7\.5e9"):
        plan(**given)


def test_an_unknown_model_has_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"model='LLAMA7B': .* Did you mean 'llama-7b'"):
        plan(model="LLAMA7B")
    with pytest.raises(ValueError, match=r"model=\{'layers': 3\}: there is no such model"):
        plan(model={"layers": 3})  # type: ignore[arg-type]


def test_a_sequence_longer_than_learned_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence=2048 with GPT-2: it has learned positions for 1024 tokens"):
        plan(model="gpt2", sequence=2048)
    assert "was made for 131072 tokens. It needs training" in repr(plan(model="llama3-8b", sequence=2**18))


def test_unknown_hardware_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hardware='v100': .* Choose one of 'laptop', 'rtx-4090',"):
        hardware("v100")


@pytest.mark.parametrize(
    ("given", "machine", "message"),
    [
        ({"world_size": 64}, "h100", "that is one node with 8 devices. Choose fewer ranks, or hardware "),
        ({"world_size": 12}, "h100-infiniband", "they fill no whole number of nodes of 8 devices"),
        ({"world_size": 24, "stage": 3, "shard_size": 3}, "h100-infiniband", "do not fall evenly onto nodes"),
        ({"world_size": 24, "tensor_parallel": 3}, "h100-infiniband", "8 groups of 3 neighbouring ranks"),
    ],
)
def test_ranks_must_fit_the_hardware(given: dict[str, int], machine: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(params=1e9, **given).step_seconds(machine)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: plan(params=[(0,), (3, 0)]), "these shapes have no elements"),
        (lambda: replace(MODELS["gpt2"], heads=5), "hidden=768, heads=5, kv_heads=12: each head has hidden / heads"),
        (lambda: replace(MODELS["gpt2"], layers=0), "layers=0: it has to be a whole number, 1 or more"),
        (lambda: choose("gpt2", "h100", world_size=0), "world_size=0: it has to be a whole number, 1 or more"),
        (
            lambda: choose("gpt2", "h100", tensor_parallel=0),
            "tensor_parallel=0: it has to be a whole number, 1 or more",
        ),
        (lambda: choose("gpt2", "h100", batch=0, global_batch=8), "batch=0: it has to be a whole number, 1 or more"),
        (lambda: choose("gpt2", "h100", sequence="4096"), "sequence='4096': it has to be a whole number, 1 or more"),
        (
            lambda: choose("gpt2", "h100", micro_batches="8"),
            "micro_batches='8': it has to be a whole number, 1 or more",
        ),
        (
            lambda: replace(hardware("h100"), fast_flops=-1),
            "fast_flops=-1 of 8x H100 80GB, NVLink: it has to be a number",
        ),
        (
            lambda: replace(hardware("h100"), memory_bandwidth=0),
            "memory_bandwidth=0 of 8x H100 80GB, NVLink: it has to",
        ),
    ],
)
def test_other_impossible_questions(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ask()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"world_size": 8, "tensor_parallel": 3}, "the ranks do not fall into groups of 3. Choose a multiple of it"),
        (
            {"pipeline_parallel": 2, "world_size": 2, "pipeline_stage": 2},
            "pipeline_stage=2 with pipeline_parallel=2: the last stage is 1, because the first is 0. Choose at most 1",
        ),
        (
            {"world_size": 8, "tensor_parallel": 2, "stage": 3, "shard_size": 8},
            "tensor_parallel=2 and pipeline_parallel=1: 4 data-parallel ranks do not fall into groups of 8",
        ),
        ({"stage": 3, "context_parallel": 2}, "a single rank does not fall into groups of 2"),
        ({"world_size": 8, "tensor_parallel": 8}, "it has 12 heads of keys and values, and a rank needs whole heads"),
        (
            {"model": "llama3-8b", "world_size": 16, "tensor_parallel": 16},
            "it has 8 heads of keys and values, and a rank needs whole heads. Choose a divisor of that.",
        ),
        (
            {"world_size": 16, "pipeline_parallel": 16},
            "with GPT-2: its 12 layers do not fill 16 parts. Choose",
        ),
        (
            {"world_size": 4, "pipeline_parallel": 4, "model_chunks": 4},
            "with GPT-2: its 12 layers do not fill 16 parts. Choose fewer stages or fewer model_chunks.",
        ),
        ({"engine": "nanotron", "stage": 2}, "nanotron shards the optimizer's states and no more"),
        ({"loss": "mean"}, "loss='mean': there is no such loss"),
    ],
)
def test_parallel_settings_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        plan(**{"model": "gpt2"} | given)


def test_shapes_do_not_say_how_matrices_are_cut() -> None:
    with pytest.raises(ValueError, match="they do not say how matrices are cut"):
        plan(params=[(4, 4)], world_size=2, tensor_parallel=2)


@pytest.mark.parametrize("kind", [float, np.int64, np.int32, np.float64])
def test_whole_numbers_may_be_of_any_type(kind: Callable[[int], Any]) -> None:
    given = {
        "world_size": 8, "stage": 3, "batch": 2, "micro_batches": 2, "shard_size": 4, "reshard": 2, "prefetch": 2,
        "lora_rank": 4, "bucket_bytes": 10**6, "pipeline_stage": 0,
    }  # fmt: skip
    expected = plan(model="llama3-8b", **given)
    planned = plan(model="llama3-8b", **{name: kind(number) for name, number in given.items()})

    assert planned == expected and planned.sent_bytes == expected.sent_bytes
    assert planned.explain("h100") == expected.explain("h100")
    assert {type(getattr(planned.settings, name)) for name in given} == {int}


def test_shapes_and_models_may_have_numbers_of_any_type() -> None:
    shapes = plan(params=[[], [(np.int64(3), np.int32(4))]])

    assert plan(params=np.int64(7_000_000_000)) == plan(params=np.float32(7e9)) == plan(params=7_000_000_000)
    assert plan(params=7e9, trainable=np.int64(70_000_000)) == plan(params=7e9, trainable=0.01)
    assert shapes == plan(params=[[], [(3, 4)]])
    assert plan(model=replace(MODELS["gpt2"], layers=12.0, vocab=np.int64(50257))) == plan(model="gpt2")


@pytest.mark.parametrize("number", [np.float64(8.5), np.int64(0), True, np.bool_(True), "8"])
def test_other_numbers_of_ranks_are_refused(number: object) -> None:
    with pytest.raises(ValueError, match="it has to be a whole number, 1 or more"):
        plan(params=1e9, world_size=number)
