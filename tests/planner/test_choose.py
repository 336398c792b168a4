"""Choosing: the best first, and why the others lose."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from course_lib.planner import HARDWARE, MODELS, choose, duration, fits, how, plan, shortage, size, verdict
from course_lib.planner.choose import _leaving
from course_lib.planner.training.checks import PlanError
from course_lib.planner.ways import LARGEST_BUCKET


def test_a_small_model_needs_no_sharding() -> None:
    best = choose("gpt2", "h100", batch=16).best

    assert best.plan.settings.stage == 0
    assert best.plan.settings.offload == ()


def test_a_large_model_needs_stage_3_with_checkpointing_or_tensor_parallel() -> None:
    """Of equally fast ways, recomputing every second product is simpler than cutting matrices."""
    given = {"world_size": 64, "sequence": 4096, "model_chunks": 1}
    ranked = choose("llama-70b", "h100-infiniband", **given).ranked
    whole, cut = (one.plan.settings for one in ranked[:2])

    assert (whole.stage, whole.tensor_parallel, whole.checkpointing) == (3, 1, "operators")
    assert (cut.stage, cut.tensor_parallel, cut.checkpointing) == (3, 4, "none")
    assert all(one.plan.peak_bytes <= 80e9 for one in ranked[:2])


def test_the_ranking_is_from_good_to_bad_and_what_does_not_fit_comes_last() -> None:
    ranked = choose("llama-7b", "h100", sequence=4096).ranked
    times = [candidate.seconds for candidate in ranked]
    fitting = [seconds for seconds in times if seconds is not None]

    assert fitting == pytest.approx(sorted(fitting), rel=0.05)
    assert times == fitting + [None] * (len(times) - len(fitting))
    assert len(times) > len(fitting) > 1


def test_what_does_not_fit_says_how_much_is_short_and_of_what() -> None:
    choice = choose("llama-7b", "h100", sequence=4096, checkpointing="full", tensor_parallel=1, pipeline_parallel=1)
    stage_0 = next(candidate for candidate in choice.ranked if candidate.plan.settings.stage == 0)
    short = (stage_0.plan.reserved_bytes - 80e9) / 1e9

    assert stage_0.seconds is None
    assert stage_0.reason == (
        f"does not fit: {short:.3g} GB short on rank 0, optimizer step, "
        "mostly states of adam (53.9 GB), fp32 master parameters (27 GB), gradients cast to fp32 (27 GB); "
        f"torch reserves {size(stage_0.plan.reserved_bytes)} for a peak of {size(stage_0.plan.peak_bytes)}."
    )


def test_what_does_not_fit_names_the_moment_that_needs_most() -> None:
    """At the peak it would fit: gradients that come after the end of forward do not fit the blocks freed by then."""
    given = {"stage": 3, "sequence": 6912, "checkpointing": "full", "precision": "mixed_fp32_accumulation"}
    one = plan(model="llama3-8b", world_size=8, attention="flash", **given)
    short, where = shortage(one, HARDWARE["a100-40gb"])

    assert one.peak_moment == "end of backward" and 1.18 * one.active_bytes < 40e9
    assert short == one.reserved_bytes - 40 * 10**9 > 0
    assert where.startswith("end of forward, mostly ")


def test_the_hosts_memory_can_be_short_too() -> None:
    choice = choose("llama-70b", "rtx-4090", checkpointing="full", stage=3, offload=["optimizer", "parameters"])

    assert "in the host's memory, of which a rank has 64 GB" in choice.ranked[0].reason


def test_losers_say_where_their_time_goes() -> None:
    choice = choose("llama-7b", "h100", sequence=4096, tensor_parallel=1, pipeline_parallel=1)
    reasons = {
        (c.plan.settings.stage, c.plan.settings.checkpointing, c.plan.settings.offload): c.reason for c in choice.ranked
    }

    assert "more of computing" in reasons[3, "full", ()]
    assert "more of work on the host that nothing hides" in reasons[3, "none", ("optimizer",)]


def test_losers_say_how_much_slower_they_are() -> None:
    choice = choose("llama-7b", "h100", sequence=4096, checkpointing="none")
    slower = [c for c in choice.ranked[1:] if c.seconds and " slower: " in c.reason]

    assert slower
    for candidate in slower:
        assert candidate.reason.startswith(f"{duration(candidate.seconds - choice.best.seconds)} slower: ")


def test_nothing_fits() -> None:
    choice = choose("llama-405b", "rtx-4090")

    with pytest.raises(ValueError, match=r"nothing fits on 4x RTX 4090, PCIe\. The nearest is .* short on rank 0"):
        _ = choice.best
    given = {"offload": (), "tensor_parallel": 1, "pipeline_parallel": 1, "checkpointing": "full"}
    for hardware, other, suggested in (
        ("rtx-4090", {}, "hardware with a network or a shorter sequence"),
        ("rtx-4090", {"world_size": 2, "batch": 2}, "more ranks, a shorter sequence or a smaller batch"),
        ("h100-infiniband", {"sequence": 1}, "more ranks"),
    ):
        with pytest.raises(ValueError, match=rf" Take {suggested}\.$"):
            _ = choose("llama-405b", hardware, **given | other).best


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [16384, 32768, 65536])
def test_nothing_fits_only_if_no_plan_does(sequence: int) -> None:
    """Compare with all cuts, stages and offloads. Only cuts together with offload leave room for the first two."""
    usual = {"model": "llama3-8b", "world_size": 4, "attention": "flash", "implementation": "for-loop"}
    room = False
    for tensor, context, stages, stage, checkpointing, offload in product(
        (1, 2, 4), (1, 2, 4), (1, 2, 4), range(4), ("none", "operators", "full"),
        ((), ("optimizer",), ("optimizer", "parameters")),
    ):  # fmt: skip
        cut = {"tensor_parallel": tensor, "context_parallel": context, "pipeline_parallel": stages}
        with suppress(PlanError):
            one = plan(**usual, **cut, sequence=sequence, stage=stage, checkpointing=checkpointing, offload=offload,
                       micro_batches=prod(cut.values()))  # fmt: skip
            room |= fits(one, "rtx-5090")
    best = choose("llama3-8b", "rtx-5090", sequence=sequence).ranked[0]

    assert (best.seconds is not None) == room == (sequence < 65536)
    if room:
        assert best.plan.settings.offload and best.plan.settings.data_parallel < 4


@pytest.mark.parametrize(("model", "hardware", "ranks", "sequence"), [
    ("llama3-70b", "h100", 8, 32768), ("llama-405b", "h100-infiniband", 64, 8192),
])  # fmt: skip
def test_cuts_are_tried_with_offload_if_nothing_else_fits(
    model: str, hardware: str, ranks: int, sequence: int
) -> None:  # fmt: skip
    best = choose(model, hardware, world_size=ranks, sequence=sequence, stage=3, pipeline_parallel=1).best

    assert best.plan.settings.offload == ("optimizer",) and best.plan.settings.tensor_parallel == 4
    assert fits(best.plan, hardware)


def test_a_single_micro_batch_can_fit_where_smaller_ones_do_not() -> None:
    """With `no_sync`, several micro-batches need sums of whole gradients, 50 GB here, and a single one needs none."""
    given = {"world_size": 24, "sequence": 1024, "precision": "mixed_fp32_accumulation", "no_sync": True}
    best = choose("zero-100b", "a100-40gb", global_batch=192, stage=3, **given).best.plan

    assert (best.settings.micro_batches, best.settings.batch) == (1, 8)
    assert not fits(replace(best, settings=replace(best.settings, micro_batches=8, batch=1)), "a100-40gb")


def test_the_next_way_has_more_than_different_parts_of_a_stage() -> None:
    choice = choose("llama-405b", "h100-infiniband", world_size=16384, sequence=8192, global_batch=2048)
    best = choice.best
    rival = next(c for c in choice.ranked if f"offload, {how(c.plan.settings)}, is " in best.reason)

    assert best.plan.settings.model_chunks > 1
    assert any(one.seconds < rival.seconds for one in choice.ranked if one.seconds and " slower: " in one.reason)
    assert (best.plan.settings.tensor_parallel, best.plan.settings.pipeline_parallel) != (
        rival.plan.settings.tensor_parallel, rival.plan.settings.pipeline_parallel)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "hardware", "given"),
    [("llama-13b", "rtx-4090", {"sequence": 4096}), ("zero-100b", "h100", {"sequence": 1024})],
)
def test_what_fits_as_a_plain_plan_fits(model: str, hardware: str, given: dict[str, int]) -> None:
    """On the host torch's default is the for-loop, which has no temporaries of all parameters at once."""
    way = {"stage": 3, "offload": ("optimizer",), "checkpointing": "full", "attention": "flash"}
    assert fits(plan(model=model, world_size=HARDWARE[hardware].devices, **way, **given), hardware)
    best = choose(model, hardware, tensor_parallel=1, pipeline_parallel=1, **given).best.plan.settings

    assert (best.stage, best.offload, best.implementation) == (3, ("optimizer",), "for-loop")
    with pytest.raises(ValueError, match="nothing fits"):
        _ = choose(model, hardware, implementation="foreach", stage=3, **given).best


@pytest.mark.parametrize(
    ("model", "hardware", "sequence"),
    [("gpt2-medium", "rtx-5090", 1024), ("gpt2", "rtx-4090", 1024), ("gpt2", "laptop", 128)],
)
def test_a_small_model_is_not_slower_than_a_plain_plan(model: str, hardware: str, sequence: int) -> None:
    """A bucket is about an eighth of the gradients, so that most are reduced while backward computes the others."""
    given = {"stage": 1, "sequence": sequence, "checkpointing": "none"}
    choice = choose(model, hardware, tensor_parallel=1, pipeline_parallel=1, offload=(), **given)
    plain = plan(model=model, world_size=HARDWARE[hardware].devices, attention="flash", **given)

    assert choice.best.seconds is not None
    assert choice.best.seconds <= 1.02 * plain.step_seconds(hardware)
    whole = choose("llama-7b", "h100", sequence=1024, stage=1, tensor_parallel=1, pipeline_parallel=1).best.plan
    assert whole.settings.bucket_bytes == LARGEST_BUCKET


def test_hybrid_sharding_is_tried_on_several_nodes_only() -> None:
    one, many = (choose("gpt2", "h100-infiniband", world_size=ranks).ranked for ranks in (8, 16))

    assert {candidate.plan.settings.shard_size for candidate in one} == {None}
    assert {candidate.plan.settings.shard_size for candidate in many} == {None, 8}


# Cutting the model


def test_matrices_are_cut_inside_a_node_and_a_pipeline_has_no_stage_above_1() -> None:
    choice = choose("llama-70b", "h100-infiniband", world_size=64, checkpointing="full")
    tried = [c.plan.settings for c in choice.ranked]
    cut = [s for s in tried if s.data_parallel < 64]

    assert {s.tensor_parallel for s in tried} == {1, 2, 4, 8}
    assert {s.pipeline_parallel for s in tried} == {1, 2, 4, 8, 16}
    assert {s.stage for s in tried if s.pipeline_parallel > 1} == {0, 1}
    assert {s.stage for s in tried if s.pipeline_parallel == 1 < s.tensor_parallel} == {0, 1, 2, 3}
    assert {(s.offload, s.shard_size) for s in cut} == {((), None)}
    assert {s.tensor_parallel for s in (c.plan.settings for c in choose("llama-7b", "rtx-4090").ranked)} == {1, 2, 4}


def test_long_sequences_are_cut_too() -> None:
    """At least 8,192 tokens are left to a rank."""
    short, long, longer = (
        {
            c.plan.settings.context_parallel
            for c in choose("llama3-8b", "h100-infiniband", world_size=64, **given).ranked
        }
        for given in (
            {"sequence": 8192, "checkpointing": "full"},
            {"sequence": 32768, "model_chunks": 1, "stage": 1},
            {"sequence": 131072, "pipeline_parallel": 1, "checkpointing": "full"},
        )
    )
    assert (short, long, longer) == ({1}, {1, 2, 4}, {1, 2, 4, 8, 16})


def test_ways_whose_stages_fill_no_whole_nodes_are_tried() -> None:
    """192 GPUs in racks of 64: two stages of 96 ranks."""
    ranked = choose("llama3-8b", "gb200-nvl72", world_size=192, checkpointing="none", context_parallel=1).ranked
    ways = {(c.plan.settings.tensor_parallel, c.plan.settings.pipeline_parallel) for c in ranked}

    assert {(1, 1), (1, 2), (4, 8)} <= ways


def test_what_is_given_is_tried_although_it_hardly_wins() -> None:
    ranked = choose(
        "llama-70b", "h100-infiniband", world_size=64, tensor_parallel=8, pipeline_parallel=4, stage=3
    ).ranked

    assert {(s.tensor_parallel, s.pipeline_parallel, s.stage) for s in (c.plan.settings for c in ranked)} == {(8, 4, 3)}


@pytest.mark.parametrize("given", [{}, {"batch": 2, "micro_batches": 3}, {"tensor_parallel": 4, "micro_batches": 8}])
def test_all_steps_have_the_same_tokens(given: dict[str, int]) -> None:
    ranked = choose("llama-70b", "h100-infiniband", world_size=64, checkpointing="full", **given).ranked
    tokens = 1024 * given.get("batch", 1) * given.get("micro_batches", 1) / given.get("tensor_parallel", 1)

    assert {c.plan.settings.tokens_per_rank for c in ranked} == {tokens}
    assert len({c.plan.settings.pipeline_parallel for c in ranked}) == 5


def test_a_global_batch_is_shared_by_all_ranks() -> None:
    """16 sequences on 64 ranks: at least 4 ranks share one. A pipeline is interleaved if enough micro-batches come."""
    given = {"world_size": 64, "checkpointing": "full"}
    tried = [c.plan.settings for c in choose("llama-70b", "h100-infiniband", **given, global_batch=16).ranked]
    interleaved = [s for s in tried if s.model_chunks > 1]

    assert {s.model_chunks for s in interleaved} == {2, 4, 8}
    assert {s.micro_batches % s.pipeline_parallel for s in interleaved} == {0}
    assert {80 % (s.pipeline_parallel * s.model_chunks) for s in interleaved} <= {0, 2}
    assert {s.data_parallel * s.batch * s.micro_batches for s in tried} == {16}
    assert max(s.data_parallel for s in tried) == 16
    with pytest.raises(ValueError, match="global_batch=16 and micro_batches=2: give one"):
        choose("llama-70b", "h100-infiniband", world_size=64, global_batch=16, micro_batches=2)


def test_shapes_and_numbers_are_not_cut() -> None:
    ranked = [*choose(7.5e9, "h100").ranked, *choose([(4096, 4096)], "h100").ranked]
    assert {c.plan.settings.data_parallel for c in ranked} == {8}


def test_a_single_rank_tries_stages_only_with_offload() -> None:
    """Without a second rank nothing is sharded, and nothing is sent."""
    ranked = choose("llama-13b", "rtx-5090", world_size=1, sequence=1024, lora_rank=8).ranked
    settings = [candidate.plan.settings for candidate in ranked]

    assert {(s.stage, s.offload) for s in settings} == {
        (0, ()), *((stage, ("optimizer",)) for stage in (1, 2, 3)), (3, ("optimizer", "parameters"))
    }  # fmt: skip
    assert not any("A rank sends" in candidate.reason for candidate in ranked)
    for given in ({"stage": 3}, {"stage": 1, "offload": ()}):
        assert {c.plan.settings.stage for c in choose("gpt2", "h100", world_size=1, **given).ranked} == {given["stage"]}
    offloaded = choose("gpt2", "h100", world_size=1, offload=("optimizer",)).ranked
    assert {candidate.plan.settings.stage for candidate in offloaded} == {1, 2, 3}
    torchs = choose("gpt2", "h100", world_size=1, engine="torch", offload=()).ranked  # no fp32 masters below stage 3
    assert {candidate.plan.settings.stage for candidate in torchs} == {3}


def test_the_winner_says_that_memory_decides() -> None:
    """With the optimizer on the host, stage 2 is as fast as stage 3, and has no room."""
    given = {"tensor_parallel": 1, "pipeline_parallel": 1, "checkpointing": "none", "offload": ("optimizer",)}
    choice = choose("llama-13b", "a100-40gb", **given)
    best, nearest = choice.best, next(c for c in choice.ranked if c.plan.settings.stage == 2)
    short = size(nearest.plan.reserved_bytes - 40 * 10**9)

    assert (best.plan.settings.stage, nearest.seconds) == (3, None)
    assert nearest.plan.step_seconds(choice.hardware) <= 1.05 * best.seconds
    assert best.reason == f"the best that fits. Memory decides: {how(nearest.plan.settings)} is {short} short."


def test_offload_does_not_win_where_plain_zero_is_as_fast() -> None:
    """In a step of 128 micro-batches, stage 1 with the optimizer on the host loses less than 5 % to plain stage 2."""
    given = {"global_batch": 1024, "batch": 1, "sequence": 4096, "checkpointing": "none"}
    choice = choose("llama3-8b", "h100", tensor_parallel=1, pipeline_parallel=1, **given)
    limit = 1.05 * min(c.seconds for c in choice.ranked if c.seconds)
    equal = {(len(s.offload), s.stage) for s, seconds in ((c.plan.settings, c.seconds) for c in choice.ranked)
             if seconds and seconds <= limit}  # fmt: skip
    best = choice.best.plan.settings

    assert {(0, 2), (0, 3), (1, 1)} <= equal
    assert (len(best.offload), best.stage) == min(equal) == (0, 2)


def test_memory_does_not_decide_against_a_way_that_would_lose() -> None:
    """Stage 0 does not fit, and is slower with any memory: its optimizer updates all parameters on each rank."""
    given = {"checkpointing": "none", "tensor_parallel": 1, "pipeline_parallel": 1}
    small = choose("llama-7b", "h100", **given)
    large = choose("llama-7b", replace(HARDWARE["h100"], memory_bytes=10**12), **given)

    assert small.best.plan == large.best.plan
    assert any(c.seconds is None and c.plan.settings.stage == 0 for c in small.ranked)
    assert "Memory decides" not in small.best.reason


def test_the_winner_says_what_crosses_the_network() -> None:
    """Stage 3 over 64 ranks, eight in each node; with TP 4 over 16, two in each node, and four such groups."""
    given = {"world_size": 64, "sequence": 4096, "stage": 3, "pipeline_parallel": 1, "offload": (), "shard_size": None}
    choice = choose("llama-70b", "h100-infiniband", **given)
    best = choice.best
    rival = next(c for c in choice.ranked[1:] if " slower" in c.reason)
    states = sum(call.sent for call in best.plan.collectives if call.group == "shard")
    apart = sum(call.sent for call in rival.plan.collectives if call.group == "shard")

    assert (best.plan.settings.tensor_parallel, rival.plan.settings.tensor_parallel) == (1, 4)
    assert best.reason == (
        f"the best that fits. The next slower way of a different stage, cut or offload, {how(rival.plan.settings)}, is "
        f"{rival.reason.partition('. A rank sends')[0]}. "
        f"A node sends {size(float(states))} over the network in a step, there {size(float(4 * apart))}."
    )


def test_the_ends_of_a_pipeline_cross_the_network_only_between_nodes() -> None:
    """TP 4 and no data parallelism: every second stage ends with its node, so half of what is sent leaves a node."""
    choice = choose("llama-70b", "h100-ethernet", world_size=64, pipeline_parallel=16)
    sends = sum(call.sent for call in choice.best.plan.collectives if call.op == "send")

    assert (choice.best.plan.settings.tensor_parallel, choice.best.plan.settings.pipeline_parallel) == (4, 16)
    assert f"A node sends {size(float(sends) * 4)} over the network in a step" in choice.best.reason


def test_of_what_is_exchanged_all_to_all_a_ring_does_not_save_the_network() -> None:
    """16 ranks with experts in 2 nodes: of 2 copies of a token, half leave the node, some together."""
    experts = replace(MODELS["llama3-8b"], experts=16, chosen=2, ffn=1024)
    alone = plan(model=experts, world_size=16, expert_parallel=16)
    sent = {call.op: float(call.sent) for call in alone.collectives if call.group == "expert"}
    whole = sum(call.total_bytes for call in alone.collectives if call.op == "all_to_all")
    rings = sum(float(call.sent) for call in alone.collectives if call.op != "all_to_all")

    assert set(sent) == {"all_to_all"}
    assert _leaving(alone, HARDWARE["h100-infiniband"]) == pytest.approx(8 * whole * 3 / 8 + rings)
    for cut in ({}, {"pipeline_parallel": 4}):
        assert _leaving(plan(model="gpt2", world_size=8, **cut), HARDWARE["h100-infiniband"]) == 0


def test_a_global_batch_leaves_the_micro_batch_open() -> None:
    """GPT-2 on 8 GPUs, 128 sequences: 16 for each, in micro-batches of a power of two; the fastest that fits."""
    choice = choose("gpt2", "h100", global_batch=128, stage=1, checkpointing="none", tensor_parallel=1, offload=())
    alone = next(c for c in choice.ranked if c.plan.settings.pipeline_parallel == 1)
    given = {"world_size": 8, "stage": 1, "attention": "flash", "bucket_bytes": alone.plan.settings.bucket_bytes}
    speeds = {batch: plan(model="gpt2", **given, batch=batch, micro_batches=16 // batch).step_seconds("h100")
              for batch in (1, 2, 4, 8, 16)}  # fmt: skip

    assert alone.seconds == min(speeds.values()) < speeds[1]
    assert alone.plan.settings.batch * alone.plan.settings.micro_batches == 16
    assert f"micro-batches of {alone.plan.settings.batch}" in str(choice)
    kept = choose("gpt2", "h100", global_batch=128, batch=2).ranked
    assert {c.plan.settings.batch for c in kept} == {2}


def test_experts_are_spread_over_a_node_or_four() -> None:
    tried = {c.plan.settings.expert_parallel for c in choose("mixtral-8x7b", "h100", stage=3).ranked}

    assert tried == {1, 8}  # 32 is more than there are ranks
    assert {c.plan.settings.expert_parallel for c in choose("gpt2", "h100").ranked} == {1}
    assert {c.plan.settings.expert_parallel for c in choose("mixtral-8x7b", "h100", expert_parallel=2).ranked} == {2}


def test_16384_gpus_are_a_few_hundred_plans() -> None:
    """A plan takes milliseconds: their number is the time."""
    given = {"world_size": 16384, "checkpointing": "full"}
    assert len(choose("llama-405b", "h100-infiniband", sequence=8192, **given).ranked) < 160
    assert len(choose("llama-405b", "h100-infiniband", sequence=131072, model_chunks=1, **given).ranked) < 300


def test_what_is_given_is_not_varied() -> None:
    ranked = choose("gpt2", "h100", stage=2, checkpointing="full", precision="fp32").ranked

    assert {(c.plan.settings.stage, c.plan.settings.checkpointing) for c in ranked} == {(2, "full")}
    assert {c.plan.settings.offload for c in ranked} == {(), ("optimizer",)}


def test_with_attention_that_keeps_its_scores_selective_checkpointing_is_tried() -> None:
    ranked = choose("gpt2", "h100", attention="math").ranked

    assert "selective" in {candidate.plan.settings.checkpointing for candidate in ranked}


def test_a_number_of_parameters_can_be_chosen_for() -> None:
    ranked = choose(7.5e9, "h100").ranked

    assert {candidate.plan.settings.checkpointing for candidate in ranked} == {"none"}
    assert ranked[0].plan.settings.stage > 0  # 120 GB of states do not fit 80


def test_shapes_can_be_chosen_for() -> None:
    assert choose([(4096, 4096)], "h100").best.plan.model.params == 4096**2


def test_settings_that_never_go_together_are_refused_as_by_plan() -> None:
    with pytest.raises(ValueError, match="stage=0: a rank moves its own shard"):
        choose("gpt2", "h100", stage=0, offload=["optimizer"])


def test_ranks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="16 ranks on 8x H100 80GB, NVLink: that is one node"):
        choose("gpt2", "h100", world_size=16)


def test_the_text_has_one_line_for_each_candidate() -> None:
    choice = choose("gpt2", "h100", stage=3)

    assert len(repr(choice).splitlines()) == 1 + len(choice.ranked)
    assert ": the best that fits." in repr(choice).splitlines()[1]


# Whether it fits


def test_what_torch_reserves_has_to_fit() -> None:
    """The verdict is "may fit" from where the reserved bytes do not fit to a peak 15 % above the memory."""
    planned, machine = plan(model="llama-7b", world_size=8, stage=3, sequence=4096, batch=2), HARDWARE["h100"]
    peak, reserved = planned.peak_bytes, planned.reserved_bytes

    assert peak < reserved
    for memory, expected in (
        (reserved, "fits"), (reserved - 1, "may fit"), (int(peak / 1.15) + 1, "may fit"),
        (int(peak / 1.15) - 1, "does not fit"),
    ):  # fmt: skip
        assert verdict(planned, replace(machine, memory_bytes=memory)) == expected
        assert fits(planned, replace(machine, memory_bytes=memory)) == (expected == "fits")


def test_the_hosts_memory_has_to_fit() -> None:
    given = {"model": "llama-7b", "world_size": 8, "stage": 3, "offload": ["optimizer"], "sequence": 512}
    planned = plan(**given)

    for host, expected in (
        (planned.host_bytes, "fits"), (planned.host_bytes - 10**9, "may fit"),
        (planned.host_bytes - 13 * 10**9, "does not fit"),
    ):  # fmt: skip
        machine = replace(HARDWARE["h100"], host_bytes=8 * host)
        assert verdict(planned, machine) == expected


# Explaining


def test_an_explanation_accounts_for_every_byte() -> None:
    planned = plan(model="gpt2", world_size=8, stage=3)
    text = planned.explain("h100")

    assert all(part.name in text for part in planned.parts)
    assert "gradients in backward, among 8 ranks" in text
    assert "A step of 1024 tokens a rank on 8x H100 80GB, NVLink" in text


def test_an_explanation_says_that_overlap_is_not_free() -> None:
    sentence = "On a GPU, communication slows the computing that it overlaps with"

    assert sentence in plan(model="gpt2", world_size=8, stage=3).explain("h100")
    assert sentence not in plan(model="gpt2").explain("h100")


def test_a_reason_names_the_width_of_its_own_bytes() -> None:
    given = {"model": "playbook-3b", "world_size": 8, "engine": "nanotron", "precision": "mixed_fp32_accumulation"}
    text = plan(**given, stage=1).explain()

    assert "14.3 GB  gradients      fp32 sums of gradients: 4 bytes each" in text
    assert "gradients as they come: 2 bytes each" in text


def test_an_explanation_without_hardware_has_no_seconds() -> None:
    text = plan(params=7.5e9, world_size=64, stage=2).explain()

    assert "Only the number of parameters is known. The plan leaves out buffers, activations, and the time of" in text
    assert "Most at once on the device: 16.6 GB, end of backward; 16.4 GB between steps." in text
    assert "A step of" not in text


def test_a_rank_that_is_alone_has_the_hosts_whole_memory() -> None:
    given = {"model": "llama-7b", "stage": 3, "offload": ["optimizer", "parameters"], "checkpointing": "full"}
    alone, four = (plan(**given, attention="flash", world_size=ranks) for ranks in (1, 4))
    machine = replace(HARDWARE["rtx-4090"], host_bytes=alone.host_bytes)
    assert alone.host_bytes > machine.host_bytes // machine.devices
    assert fits(alone, machine) and verdict(alone, machine) == "fits"
    assert fits(four, replace(machine, host_bytes=4 * four.host_bytes))
    assert not fits(four, replace(machine, host_bytes=4 * four.host_bytes - 4))


def test_an_explanation_says_what_lives_on_the_host() -> None:
    text = plan(params=[(1000, 1000)], world_size=8, stage=2, offload=["optimizer"]).explain()

    assert "host           states of adam: 8 bytes each, a shard: 1/8" in text
    assert "Only the shapes are known. The plan leaves out activations, and the time of attention scores" in text
