"""Optimizers, a second shard, accumulation without reduction, whole logits, fp8, machines: numbers from paper."""

from dataclasses import replace

import pytest

from course_lib.planner import HARDWARE, Timeline, Transformer, fits, hardware, plan, shortage, verdict

SMALL = Transformer(
    name="small", layers=2, hidden=100, heads=10, kv_heads=5, ffn=300, vocab=1000, positions=0, context=1024,
    gated=True, dropout=False, tied=False, source="this test",
)  # fmt: skip
MATRICES = 2 * 100 * 100 + 2 * 50 * 100 + 3 * 300 * 100
LAYER = MATRICES + 2 * 100
OUTER = 2 * 1000 * 100 + 100
GIVEN = {"model": SMALL, "sequence": 10, "attention": "flash"}


def parts(**given: object) -> dict[str, int]:
    return {part.name: part.nbytes for part in plan(**GIVEN | given).parts}


# The loss


def test_the_published_peak_of_nanochat() -> None:
    """nanochat d20 reports a peak of 75,422 MiB on each of 8 H100 80 GB."""
    nanochat = Transformer(
        name="nanochat d20", layers=20, hidden=1280, heads=10, kv_heads=10, ffn=5120, vocab=65536, gated=False,
        positions=0, context=2048, dropout=False, tied=False, source="karpathy/nanochat",
    )  # fmt: skip
    given = {
        "model": nanochat, "world_size": 8, "stage": 1, "engine": "torch", "precision": "autocast", "batch": 32,
        "sequence": 2048, "attention": "flash", "optimizer": "muon", "implementation": "fused",
    }  # fmt: skip
    layers, whole = (plan(**given, compiled=True, loss=loss) for loss in ("torch", "fused"))

    assert whole.peak_bytes / (75422 * 2**20) == pytest.approx(1.06, abs=0.005)
    assert layers.peak_bytes / (75422 * 2**20) == pytest.approx(1.50, abs=0.005)
    assert [verdict(one, HARDWARE["h100"]) for one in (layers, whole)] == ["does not fit", "may fit"]


@pytest.mark.parametrize(("precision", "loss", "measured"), [("autocast", "half", 6), ("fp32", "torch", 12)])
def test_the_losses_for_a_compiled_model_that_returns_its_logits_are_enough(
    precision: str, loss: str, measured: int
) -> None:
    """Such a model, nanoGPT's for example, held so many bytes a logit: see docs/validation.md. No note advises less."""
    given = {
        "model": "gpt2", "engine": "torch", "precision": precision, "batch": 34, "attention": "flash", "compiled": True,
    }  # fmt: skip
    held, chunked = (sum(plan(**given, loss=loss).moments["end of forward"].values()) for loss in (loss, "chunked"))

    assert held - chunked >= measured * 34 * 1024 * 50257
    assert "loss=fused" not in repr(plan(**given))


# Optimizers


def test_lion_keeps_one_moment() -> None:
    assert plan(params=7e9, optimizer="lion").bytes["optimizer"] == (4 + 4) * 7e9


def test_muon_keeps_one_moment_of_a_layers_matrices_and_two_of_the_rest() -> None:
    assert parts(optimizer="muon")["states of muon"] == 4 * (2 * MATRICES + 2 * (2 * 200 + OUTER))


def test_adafactor_keeps_rows_and_columns() -> None:
    """Keys: 50 x 100, 150 states; a norm: 100; the embedding: 1000 + 100."""
    layer = 2 * 200 + 2 * 150 + 3 * 400 + 2 * 100

    assert parts(optimizer="adafactor")["states of adafactor"] == pytest.approx(4 * (2 * layer + 2 * 1100 + 100), abs=2)


def test_adafactor_keeps_them_for_each_expert() -> None:
    model = replace(SMALL, experts=8, chosen=2)
    dense, experts = (parts(model=one, optimizer="adafactor")["states of adafactor"] for one in (SMALL, model))

    assert experts - dense == pytest.approx(4 * 2 * (7 * 3 * 400 + 108), abs=4)


@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
def test_a_part_of_matrices_keeps_that_part_of_their_states(optimizer: str) -> None:
    name = f"states of {optimizer}"
    half, whole = (parts(optimizer=optimizer, trainable=share)[name] for share in (0.5, 1))

    assert half == pytest.approx(whole / 2, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
def test_ranks_that_share_experts_share_their_states(optimizer: str) -> None:
    given = {"model": replace(SMALL, experts=8, chosen=2), "optimizer": optimizer, "world_size": 8, "stage": 1}
    alone, shared = (parts(**given, expert_parallel=ranks)[f"states of {optimizer}"] for ranks in (1, 8))

    assert shared == pytest.approx(alone, rel=1e-3)


def test_8_bit_adam_has_a_scale_for_each_256_and_two_tables() -> None:
    """One tensor of 2,560 x 100: two states of a byte, two scales of 4 bytes for 256, two tables of 256 x 4 bytes."""
    held = plan(params=[(2560, 100)], optimizer="adam8bit").parts
    states = next(part.nbytes for part in held if part.name == "states of adam8bit")

    assert states == 2 * (256_000 + 4 * 1000 + 1024)


# Stage 3


def test_a_second_shard_is_gathered_in_backward() -> None:
    """ZeRO++, hpZ: of 16 ranks, 8 keep a shard of 1/8 from forward on, and gather among them."""
    given = {"world_size": 16, "stage": 3}
    found = {(c.op, c.when): c for c in plan(**GIVEN, **given, reshard=8).collectives}

    assert found["all_gather", "forward"].ranks == 16
    again = found["all_gather", "backward"]
    assert (again.group, again.ranks) == ("second shard", 8)
    assert again.total_bytes == found["all_gather", "forward"].total_bytes
    assert parts(**given, reshard=8)["second shard of parameters"] == -(-2 * (2 * LAYER + OUTER) // 8)
    assert "second shard of parameters" not in parts(**given)


def test_a_second_shard_stays_in_the_node() -> None:
    """16 ranks on two nodes: forward's gathers cross the network, backward's do not."""
    given = {**GIVEN, "world_size": 16, "stage": 3}
    quick = replace(HARDWARE["h100-infiniband"], network=replace(HARDWARE["h100-infiniband"].network, bandwidth=1e6))

    assert plan(**given, reshard=8).step_seconds(quick) == pytest.approx(
        plan(**given).step_seconds(quick) * 2 / 3, rel=0.05
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_accumulation_without_reduction_keeps_whole_gradients(stage: int) -> None:
    given = {"world_size": 4, "stage": stage, "micro_batches": 8}
    whole = 2 * (2 * LAYER + OUTER)

    plans = [plan(**GIVEN, **given, no_sync=no_sync) for no_sync in (False, True)]
    reduced = [next(c.total_bytes for c in one.collectives if c.op == "reduce_scatter") for one in plans]
    assert reduced[0] == 8 * reduced[1] == pytest.approx(8 * whole, rel=1e-3)
    assert parts(**given, no_sync=True)["sums of whole gradients"] == whole
    assert "sums of whole gradients" not in parts(**given)
    fp32 = parts(**given, no_sync=True, precision="mixed_fp32_accumulation")["sums of whole gradients"]
    assert fp32 == 2 * whole


def test_reductions_take_their_time_for_each_micro_batch() -> None:
    given = {**GIVEN, "world_size": 4, "stage": 3, "reshard": False, "micro_batches": 8}
    slow = replace(HARDWARE["h100"], inside=replace(HARDWARE["h100"].inside, bandwidth=1e6, small_alpha=None))
    each, once = (plan(**given, no_sync=no_sync).step_seconds(slow) for no_sync in (False, True))

    assert each - once == pytest.approx(7 * 3 / 4 * 2 * (2 * LAYER + OUTER) / 1e6, rel=0.02)


# Logits


def test_gathered_logits_are_whole() -> None:
    """10 tokens of 1000 logits on 2 ranks: each holds 4 bytes of a half, or of all, and 8 for the loss."""
    given = {"world_size": 2, "tensor_parallel": 2, "model": replace(SMALL, kv_heads=10)}
    cut, whole = (parts(**given, whole_logits=whole) for whole in (False, True))

    assert (cut["logits"], whole["logits"]) == (4 * 5000, 4 * 10_000)
    assert (cut["gradients of the logits"], whole["gradients of the logits"]) == (8 * 5000, 8 * 10_000)
    sent = [c.total_bytes for c in plan(**GIVEN | given, whole_logits=True).collectives if c.what == "logits"]
    assert sent == [2 * 10_000]
    slow = replace(HARDWARE["h100"], inside=replace(HARDWARE["h100"].inside, bandwidth=1e6), launch=0.0, switch=None)
    seconds = [plan(**GIVEN | given, whole_logits=whole).step_seconds(slow) for whole in (False, True)]
    assert seconds[1] - seconds[0] == pytest.approx(20_000 / 2 / 1e6, rel=0.05)


# fp8


def test_fp8_speeds_up_the_layers_matrices() -> None:
    """Half of a data sheet's gain: with twice the FLOPs, 1.5 times as fast. The head stays in 16 bits."""
    machine = replace(HARDWARE["h100"], memory_bandwidth=1e30, attention=1e30)
    times = [
        {span.name: span.seconds for span in plan(**GIVEN, fp8=fp8).timeline(machine).spans}
        for fp8 in ("none", "matrices")
    ]

    assert times[0]["forward layer 0"] == pytest.approx(1.5 * times[1]["forward layer 0"])
    assert times[0]["forward head"] == times[1]["forward head"]


def test_fp8_gathers_a_byte_for_each_element_of_a_matrix() -> None:
    given = {**GIVEN, "world_size": 4, "stage": 3}
    bf16, fp8 = (
        next(c.total_bytes for c in plan(**given, fp8=fp8).collectives if c.op == "all_gather")
        for fp8 in ("matrices", "gathers")
    )

    assert bf16 - fp8 == 2 * MATRICES
    held = [max(part.nbytes for part in plan(**given, fp8=fp8).parts if part.name == "gathered parameters")
            for fp8 in ("matrices", "gathers")]  # fmt: skip
    assert held[0] - held[1] == 2 * MATRICES


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("given", [{}, {"trainable": 0.1}])
def test_a_bare_number_is_gathered_in_16_bits(stage: int, given: dict[str, float]) -> None:
    bf16, fp8 = (plan(params=7e9, world_size=8, stage=stage, fp8=fp8, **given) for fp8 in ("none", "gathers"))

    assert fp8.parts == bf16.parts
    assert fp8.collectives == bf16.collectives
    assert fp8.step_seconds("h100") < bf16.step_seconds("h100")
    assert ("All is gathered in 16 bits" in repr(fp8)) == (stage == 3)


def test_what_has_no_units_for_8_bits_refuses_fp8() -> None:
    with pytest.raises(ValueError, match="fp8 on 8x A100 80GB, NVLink: it has no matrix units for 8 bits"):
        plan(**GIVEN, fp8="matrices").step_seconds("a100")


# Machines


@pytest.mark.parametrize(
    ("name", "of_all", "memory", "bandwidth", "bf16"),
    [
        ("b200", 8, 1440e9, 64e12, 18e15), ("gb200-nvl72", 72, 13.4e12, 576e12, 180e15),
        ("mi300x", 8, 1.536e12, 42.4e12, 10.46e15), ("mi355x", 8, 2.304e12, 64e12, 20.13e15),
        ("rtx-5090", 1, 32e9, 1.792e12, 3352e12 / 16),
    ],
)  # fmt: skip
def test_machines_add_up_to_their_data_sheets(
    name: str, of_all: int, memory: float, bandwidth: float, bf16: float
) -> None:
    machine = hardware(name)

    assert of_all * machine.memory_bytes == pytest.approx(memory, rel=1e-2)
    assert of_all * machine.memory_bandwidth == pytest.approx(bandwidth)
    assert of_all * machine.fast_flops == pytest.approx(bf16, rel=1e-3)


def test_a_rack_has_64_gpus_that_train() -> None:
    """Tensor parallelism of 32 stays in the rack; 128 ranks are two racks."""
    machine = hardware("gb200-nvl72")

    assert machine.shard_group(32).nodes == 1
    assert machine.replica_group(32, 4).nodes == 2
    with pytest.raises(ValueError, match="they fill no whole number of nodes of 64 devices"):
        machine.shard_group(80)


def test_a_rack_has_a_host_for_every_4_gpus() -> None:
    """GB200 NVL72: 17 TB at 14 TB/s on 36 CPUs, two in a tray with 4 GPUs, which no other tray can use."""
    machine = hardware("gb200-nvl72")
    adam = {"model": "llama-7b", "attention": "flash", "checkpointing": "full", "stage": 3, "offload": ["optimizer"]}
    four, rack = (plan(**adam, world_size=ranks).timeline(machine) for ranks in (4, 64))

    assert [machine.sharing(ranks) for ranks in (1, 2, 4, 64)] == [1, 2, 4, 4]
    assert 18 * machine.host_bytes == pytest.approx(17e12, rel=1e-3)
    assert 18 * machine.host_bandwidth == pytest.approx(14e12, rel=1e-3)
    assert updating(four) == pytest.approx(16 * updating(rack), rel=1e-3)
    assert [one.name for one in HARDWARE.values() if one.host_devices] == [machine.name]
    assert replace(HARDWARE["rtx-4090"], devices=8).sharing(64) == 8

    given = {"attention": "flash", "checkpointing": "full", "stage": 3, "offload": ["optimizer", "parameters"]}
    short, where = shortage(plan(model="llama-405b", world_size=1, **given), machine)
    assert short > 7e12 and where == "in the host's memory, of which a rank has 944 GB"
    assert not fits(plan(model="llama3-70b", world_size=4, **given), machine)
    assert fits(plan(model="llama3-70b", world_size=8, **given), machine)


def updating(line: Timeline) -> float:
    return sum(span.seconds for span in line.spans if span.name == "optimizer step on the host")


def test_stage_2_reduces_each_micro_batch() -> None:
    """Its shards hold no whole sums: the 3 earlier micro-batches last as long as their reductions, at 1 MB/s."""
    slow = replace(HARDWARE["h100"], inside=replace(HARDWARE["h100"].inside, bandwidth=1e6, small_alpha=None))
    line = plan(**GIVEN, world_size=4, stage=2, micro_batches=4).timeline(slow)
    earlier = sum(span.seconds for span in line.spans if span.name == "earlier micro-batches")

    assert earlier == pytest.approx(3 * 3 / 4 * 2 * (2 * LAYER + OUTER) / 1e6, rel=0.02)


def test_stage_2_adds_a_shard_to_its_sums() -> None:
    """In fp32 4 bytes are read, 4 read and 4 written: each of 4 ranks for a quarter of a layer, or for all of it."""
    machine = replace(HARDWARE["h100"], memory_bandwidth=1e9, fp32_flops=1e30)
    given = {**GIVEN, "world_size": 4, "engine": "zero", "precision": "fp32", "micro_batches": 2}
    layers = [
        next(span.seconds for span in plan(**given, stage=stage).timeline(machine).spans
             if span.name == "backward layer 0")
        for stage in (1, 2)
    ]  # fmt: skip

    assert layers[0] - layers[1] == pytest.approx(3 / 4 * 12 * LAYER / 1e9)
