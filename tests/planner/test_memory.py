"""Bytes: exact for states, padding included; activations as Korthikanti et al. count them."""

import pytest

from course_lib.planner import MODELS, Settings, Transformer, plan
from course_lib.planner.memory.activations import kept, layer
from course_lib.planner.memory.layout import flat, greedy, rows

LAYERS = [[], [(7, 5), (7,)], [(3, 7), (3,)]]  # 42 and 24 elements, and nothing outside of layers
PSI = 66


def states(**given: object) -> dict[str, int]:
    held = plan(params=LAYERS, precision="fp32", optimizer="sgd", **given).moments["optimizer step"]
    return {category: held[category] for category in ("parameters", "gradients", "optimizer")}


# Partition


def test_flat_pads_each_unit_and_rows_each_tensor() -> None:
    assert flat(LAYERS, 4) == [0, 11, 6]
    assert rows(LAYERS, 4) == [2 * 5, 2, 7, 1]
    assert rows([[(), (0, 3)]], 4) == [1, 0]  # a scalar is one row; what is empty stays so


def test_greedy_gives_the_largest_first_to_whoever_has_least() -> None:
    assert greedy([[(2,), (9,)], [(8,), (3,)]], 2) == [[9, 2], [8, 3]]


def test_more_ranks_than_elements() -> None:
    assert flat([[(3,)]], 8) == [1]
    assert plan(params=[(3,)], world_size=8, stage=3, precision="fp32").moments["between steps"]["parameters"] == 4


# What torch reserves


@pytest.mark.parametrize(("given", "tokens"), [
    ({"stage": 3, "checkpointing": "full", "precision": "mixed_fp32_accumulation"}, 6912),
    ({"stage": 2, "precision": "mixed", "engine": "zero"}, 1216),
    ({"stage": 3, "checkpointing": "operators", "engine": "torch"}, 2496),
])  # fmt: skip
def test_what_torch_reserves_does_not_jump_where_the_peak_moves(given: dict[str, object], tokens: int) -> None:
    """Gradients that come later need blocks of their own, also if the peak is after them."""
    usual = {"model": "llama3-8b", "world_size": 8, "attention": "flash"}
    few, more = (plan(**usual, **given, sequence=sequence) for sequence in (tokens, tokens + 64))

    assert few.peak_moment == "end of backward" and more.peak_moment == "end of forward"
    assert few.reserved_bytes < more.reserved_bytes < 1.015 * few.reserved_bytes


# States


def test_nothing_is_padded_in_data_parallel() -> None:
    assert states(world_size=4, stage=0) == {"parameters": 4 * PSI, "gradients": 4 * PSI, "optimizer": 0}


def test_padding_is_counted() -> None:
    planned = plan(params=LAYERS, world_size=4, stage=3, precision="fp32", optimizer="momentum")

    assert states(world_size=4, stage=3)["parameters"] == 4 * (11 + 6)
    assert planned.bytes["optimizer"] == 4 * (11 + 6)


def test_zero_redundancy_optimizer_pads_nothing() -> None:
    planned = plan(params=LAYERS, world_size=4, stage=1, precision="fp32", optimizer="momentum", engine="torch")

    assert planned.bytes["optimizer"] == 4 * 35  # the largest tensor, on a rank of its own


def test_hybrid_sharding_divides_by_the_shards_and_not_by_the_ranks() -> None:
    assert plan(params=64e6, world_size=64, stage=3, shard_size=8).bytes == (
        plan(params=64e6, world_size=8, stage=3).bytes
    )  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "each"), [("sgd", 0), ("momentum", 4), ("adam", 8), ("adamw", 8), ("adam8bit", 2 + 2 * 4 / 256)]
)
def test_what_optimizers_keep(optimizer: str, each: float) -> None:
    tables = 2 * 4 * 256 if optimizer == "adam8bit" else 0

    assert plan(params=2**20, precision="fp32", optimizer=optimizer).bytes["optimizer"] == each * 2**20 + tables


def test_small_tensors_keep_32_bits_in_an_8_bit_optimizer() -> None:
    assert plan(params=[(4095,)], precision="fp32", optimizer="adam8bit").bytes["optimizer"] == 8 * 4095
    blocks = 17  # 4097 elements in blocks of 256
    assert plan(params=[(4097,)], precision="fp32", optimizer="adam8bit").bytes["optimizer"] == (
        2 * (4097 + 4 * blocks + 4 * 256)
    )


def test_adam_counts_the_steps_of_each_tensor() -> None:
    planned = plan(params=LAYERS, precision="fp32", optimizer="adam")

    assert planned.bytes["optimizer"] == 8 * PSI + 4 * 4


@pytest.mark.parametrize(("implementation", "nbytes"), [("for-loop", 2 * 4 * 35), ("foreach", 4 * PSI), ("fused", 0)])
def test_what_adams_step_needs_for_a_moment(implementation: str, nbytes: int) -> None:
    planned = plan(params=LAYERS, precision="fp32", optimizer="adam", implementation=implementation)

    assert planned.bytes["other"] == nbytes


# Offload


def test_offload_moves_bytes_to_the_host_and_loses_none() -> None:
    given = {"params": 64e6, "world_size": 8, "stage": 3}
    device = sum(plan(**given).bytes.values())

    for offload in (["optimizer"], ["optimizer", "parameters"], ["parameters"]):
        planned = plan(**given, offload=offload)
        assert sum(planned.bytes.values()) + planned.host_bytes == device
    assert sum(plan(**given, offload=["optimizer", "parameters"]).bytes.values()) == 0


@pytest.mark.parametrize("engine", ["paper", "torch", "zero"])
def test_the_host_holds_each_byte_once(engine: str) -> None:
    """At the most: the shard, its gradients and two moments of Llama 3 70B, and what the step needs for a moment.

    In bf16 a parameter has 2 + 2 + 4 bytes: 564 GB on 8 ranks. In this course's engine it has 4 + 4 + 8.
    """
    precision, each = ("mixed", 16) if engine == "zero" else ("bf16", 8)
    planned = plan(
        model="llama3-70b", world_size=8, stage=3, precision=precision, engine=engine, implementation="fused",
        offload=["optimizer", "parameters"],
    )  # fmt: skip

    assert 8 * planned.host_bytes == pytest.approx(each * 70_553_706_496, rel=1e-3)


def test_zero_offload_leaves_the_parameters_on_the_device() -> None:
    """Ren et al. (arXiv 2101.06840): 2Ψ stay, whatever the number of GPUs; 2 + 12 bytes go."""
    planned = plan(params=64e6, world_size=8, stage=2, offload=["optimizer"])

    assert sum(planned.bytes.values()) == 2 * 64e6
    assert planned.host_bytes == 14 * 64e6 / 8


# Buffers


def test_buckets_come_on_top_but_never_exceed_the_gradients() -> None:
    given = {"params": [(1000, 1000)], "world_size": 2, "stage": 2, "precision": "fp32"}
    small, large = (plan(**given, bucket_bytes=size) for size in (1000, 10**9))

    assert small.bytes["communication"] == 2 * 1000
    assert large.bytes["communication"] == 4 * 10**6


@pytest.mark.parametrize(("prefetch", "gathered"), [(0, 42), (1, PSI), (5, PSI)])
def test_stage_3_gathers_a_unit_and_those_ahead(prefetch: int, gathered: int) -> None:
    planned = plan(params=LAYERS, world_size=2, stage=3, precision="fp32", prefetch=prefetch)

    assert planned.bytes["parameters"] == planned.moments["between steps"]["parameters"] + 4 * gathered
    assert planned.bytes["communication"] == 4 * PSI  # the gradients of two layers


def test_without_resharding_all_parameters_stay() -> None:
    planned = plan(params=LAYERS, world_size=2, stage=3, precision="fp32", prefetch=0, reshard=False)

    assert planned.bytes["parameters"] == planned.moments["between steps"]["parameters"] + 4 * PSI
    assert planned.bytes["communication"] == 4 * PSI  # the gradients of two layers


def test_one_rank_needs_no_buffers() -> None:
    assert plan(model="gpt2", world_size=1, stage=3).bytes["communication"] == 0


# Activations

GPT3 = Transformer(
    name="GPT-3", layers=96, hidden=12288, heads=96, kv_heads=96, ffn=4 * 12288, vocab=51200, positions=2048,
    context=2048, gated=False, dropout=True, tied=True, source="arXiv 2205.05198, table 3",
)  # fmt: skip


def held(model: Transformer, **given: object) -> float:
    return kept(model, Settings(sequence=1024, **given))


@pytest.mark.parametrize("model", [GPT3, MODELS["gpt2"], MODELS["zero-8b"]], ids=lambda model: model.name)
def test_activations_are_korthikantis(model: Transformer) -> None:
    s, h, a = 1024, model.hidden, model.heads

    assert held(model) == h * (34 + 5 * a * s / h)
    assert held(model, checkpointing="selective") == 34 * h
    assert held(model, checkpointing="full") == 2 * h


@pytest.mark.parametrize("ranks", [2, 8])
def test_tensor_parallel_activations_are_korthikantis(ranks: int) -> None:
    """Equations 2 and 4: 10 + 24/t + 5as/ht without sequence parallelism, a t-th of all with it."""
    s, h, a = 1024, GPT3.hidden, GPT3.heads
    given = {"tensor_parallel": ranks, "world_size": ranks}

    assert held(GPT3, **given, sequence_parallel=False) == h * (10 + 24 / ranks + 5 * a * s / (h * ranks))
    assert held(GPT3, **given) == h * (34 + 5 * a * s / h) / ranks


def test_selective_checkpointing_saves_70_percent_of_gpt3s_layers() -> None:
    saved = 1 - kept(GPT3, Settings(sequence=2048, checkpointing="selective")) / kept(GPT3, Settings(sequence=2048))

    assert round(100 * saved) == 70


def test_checkpointing_by_operator_keeps_every_second_product() -> None:
    """torchtitan: the layer's input, queries, values, the attention's result, the gate, and the layer's output."""
    llama = MODELS["llama-7b"]

    assert held(llama, checkpointing="operators", attention="flash") == 2 * (5 * 4096 + 11008) + 4 * 32


def test_a_gated_layer_without_dropout_keeps_what_its_products_need() -> None:
    llama = MODELS["llama-70b"]
    items = layer(llama, Settings(sequence=4096, attention="flash"))

    assert items["inside of the feed-forward layer"] == 4 * 28672 * 2
    assert items["queries, keys and values"] == (8192 + 2 * 1024) * 2
    assert items["dropout masks"] == 0
    assert items["attention core"] == 4 * 64
    compiled = layer(llama, Settings(attention="flash", compiled=True))
    assert compiled["inside of the feed-forward layer"] == 3 * 28672 * 2
    plain, frozen = (layer(llama, Settings(engine="torch", stage=3, lora_rank=rank)) for rank in (0, 8))
    assert plain["inputs of the two norms"] == 2 * (4 + 2) * 8192  # in fp32, and normalized for the weight's gradient
    assert frozen["inputs of the two norms"] == 2 * 4 * 8192
    assert compiled["inputs of the two norms"] == items["inputs of the two norms"] == 2 * 2 * 8192


def test_checkpointing_trades_bytes_for_flops() -> None:
    given = {"model": "llama-7b", "world_size": 8, "stage": 3, "sequence": 4096}
    plans = [plan(**given, checkpointing=how) for how in ("none", "selective", "full")]
    peaks = [planned.peak_bytes for planned in plans]
    seconds = [planned.step_seconds("h100") for planned in plans]

    assert peaks == sorted(peaks, reverse=True)
    assert seconds == sorted(seconds)


def test_data_parallel_shards_no_activations() -> None:
    few, many = (plan(model="gpt2", world_size=ranks, stage=3).bytes["activations"] for ranks in (2, 64))

    assert few == many > 0


@pytest.mark.parametrize(("offload", "missing"), [(["parameters"], set()), (["optimizer"], {"gathered parameters"})])
def test_a_rank_without_peers_has_layers_on_the_device(offload: list[str], missing: set[str]) -> None:
    def moving(world_size: int) -> dict[str, int]:
        planned = plan(model="llama-7b", world_size=world_size, stage=3, offload=offload)
        names = ("gathered parameters", "gradients under way")
        return {p.name: p.nbytes for p in planned.parts if p.name in names and "end of backward" in p.moments}

    with_peers = moving(8)
    assert len(with_peers) == 2
    assert moving(1) == {name: nbytes for name, nbytes in with_peers.items() if name not in missing}
