"""Mixture of experts, expert parallelism and context parallelism, with numbers from paper."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from course_lib.planner import HARDWARE, MODELS, Group, Link, Settings, Transformer, plan, seconds
from course_lib.planner.memory.activations import kept, layer
from course_lib.planner.timing.cost import crossing
from course_lib.planner.timing.work import element_wise

SMALL = Transformer(
    name="small", layers=2, hidden=100, heads=10, kv_heads=5, ffn=50, vocab=1000, positions=0, context=1024,
    gated=True, dropout=False, tied=False, source="this test", experts=8, chosen=2, shared_ffn=60,
)  # fmt: skip
EXPERTS = 8 * 3 * 50 * 100
SHARED = 2 * 100 * 100 + 2 * 50 * 100 + 8 * 100 + 3 * 60 * 100 + 2 * 100
"""Attention, the matrix that chooses, the shared expert, two norms."""
OUTER = 2 * 1000 * 100 + 100


def parts(**given: object) -> dict[str, int]:
    found = plan(**{"model": SMALL, "sequence": 10, "attention": "flash"} | given).parts
    return {part.name: part.nbytes for part in found}


def calls(**given: object) -> dict[tuple[str, str, str], tuple[int, int]]:
    found = plan(**{"model": SMALL, "sequence": 10, "attention": "flash"} | given).collectives
    return {(call.what, call.op, call.when): (call.ranks, call.total_bytes) for call in found}


def test_all_experts_are_held_and_the_chosen_compute() -> None:
    assert plan(model=SMALL).model.params == 2 * (EXPERTS + SHARED) + OUTER
    assert SMALL.idle == 2 * EXPERTS * 6 // 8
    matrices, attention = SMALL.layer_flops(10)
    assert matrices == 2 * (EXPERTS // 4 + SHARED - 200)
    assert attention == 4 * 10 * 100


def test_capacity_is_computed_though_it_is_padding() -> None:
    assert SMALL.layer_flops(10, 1.5)[0] - SMALL.layer_flops(10)[0] == 2 * (EXPERTS // 4) / 2


def test_the_first_layers_may_be_dense() -> None:
    model = replace(SMALL, dense_layers=1, dense_ffn=300)
    attention = 2 * 100 * 100 + 2 * 50 * 100 + 200

    assert plan(model=model).model.params == EXPERTS + SHARED + attention + 3 * 300 * 100 + OUTER
    assert model.idle == EXPERTS * 6 // 8


def test_dense_layers_send_no_tokens_to_experts() -> None:
    given = {"world_size": 4, "expert_parallel": 4}
    mixed = calls(model=replace(SMALL, dense_layers=1, dense_ffn=300), **given)
    ranks, nbytes = calls(**given)["expert activations", "all_to_all", "forward"]

    assert mixed["expert activations", "all_to_all", "forward"] == (ranks, nbytes // 2)


def test_a_rank_has_a_part_of_the_experts() -> None:
    rank = plan(model=SMALL, world_size=4, expert_parallel=4).piece

    assert rank.params == 2 * (EXPERTS // 4 + SHARED) + OUTER


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shards_are_as_large_with_and_without_expert_parallelism(stage: int) -> None:
    """A quarter of the experts among two ranks, or all of them among eight."""
    given = {"world_size": 8, "stage": stage}

    for name in ("fp32 master parameters", "states of adam"):
        assert parts(**given, expert_parallel=4)[name] == parts(**given)[name]


@pytest.mark.parametrize(("ranks", "stage", "experts"), [*product((4, 8), (1, 2, 3), (1, 2, 4)), (8, 3, 8)])
def test_trained_experts_are_divided_once(ranks: int, stage: int, experts: int) -> None:
    """A quarter is trained: 12 bytes of optimizer states for each of these, 1/ranks of them on each rank.

    A rank's own experts go in rings among the ranks that have the same ones.
    """
    given = {"model": SMALL, "sequence": 10, "trainable": 0.25, "world_size": ranks, "stage": stage}
    outside, own, same = 2 * SHARED + OUTER, 2 * EXPERTS / experts, ranks // experts
    one = plan(**given, expert_parallel=experts)
    states = sum(part.nbytes for part in one.parts if part.category == "optimizer" and part.name != "step counts")
    assert states == pytest.approx(12 * (2 * EXPERTS + outside) / 4 / ranks, rel=1e-3)

    passes = 1 / 4 + (2 if stage == 3 else 1 / 4)  # gradients, and parameters: 2 bytes of each
    sent = 2 * passes * (outside * (ranks - 1) / ranks + own * (same - 1) / same)
    rings = sum(float(call.sent) for call in one.collectives if call.op != "all_to_all")
    assert rings == pytest.approx(sent, rel=1e-3)


def test_ranks_with_the_same_experts_reduce_them() -> None:
    found = calls(world_size=8, expert_parallel=4)

    assert found["gradients", "all_reduce", "backward"] == (8, 2 * (2 * SHARED + OUTER))
    assert found["expert gradients", "all_reduce", "backward"] == (2, 2 * 2 * EXPERTS // 4)


def test_stage_3_gathers_a_ranks_own_experts() -> None:
    found = calls(world_size=8, expert_parallel=4, stage=3)

    assert found["parameters", "all_gather", "forward"][0] == 8
    assert found["parameters", "all_gather", "forward"][1] == pytest.approx(2 * (2 * SHARED + OUTER), abs=50)
    assert found["expert parameters", "all_gather", "forward"] == (2, 2 * 2 * EXPERTS // 4)
    assert found["expert gradients", "reduce_scatter", "backward"] == (2, 2 * 2 * EXPERTS // 4)
    assert calls(world_size=8, stage=3)["parameters", "all_gather", "forward"][1] == pytest.approx(
        2 * (2 * (SHARED + EXPERTS) + OUTER), abs=50
    )


def test_replicas_of_a_shard_of_experts_reduce_it() -> None:
    """16 ranks, shards among 8 of them: a rank has 1/8 of all experts' gradients, and one other rank has the same."""
    found = calls(world_size=16, stage=3, shard_size=8, expert_parallel=4)

    assert found["expert gradients", "all_reduce", "backward"] == (2, 2 * 2 * EXPERTS // 8)
    assert found["gradients", "all_reduce", "backward"][0] == 2
    assert found["gradients", "all_reduce", "backward"][1] == pytest.approx(2 * (2 * SHARED + OUTER) / 8, abs=8)


def test_tokens_go_to_their_experts_and_return() -> None:
    """10 tokens of 100 elements of 2 bytes, 2 experts each, to them and back, in 2 layers; 3 of 4 leave the rank."""
    once = 2 * 2 * (10 * 100 * 2) * 2
    found = calls(world_size=4, expert_parallel=4)

    assert found["expert activations", "all_to_all", "forward"] == (4, once)
    assert found["expert activations", "all_to_all", "backward"] == (4, once)
    assert calls(world_size=4, expert_parallel=4, capacity_factor=1.5, checkpointing="full")[
        "expert activations", "all_to_all", "backward"
    ] == (4, 3 * once)
    sent = [c.sent for c in plan(model=SMALL, sequence=10, world_size=4, expert_parallel=4).collectives
            if c.op == "all_to_all"]  # fmt: skip
    assert sent == [Fraction(3 * once, 4)] * 2


def test_what_an_expert_keeps() -> None:
    """For each of 2 copies: 100 elements in, 100 out, 4 x 50 inside, of 2 bytes; 4 x 60 inside the shared one."""
    held = layer(SMALL, Settings(attention="flash", engine="torch", stage=3))

    assert held["inputs of experts"] == held["results of experts"] == 2 * 100 * 2
    assert layer(SMALL, Settings(attention="flash"))["results of experts"] == 0  # as in Megatron-Core
    assert held["inside of the feed-forward layer"] == 4 * (2 * 50 + 60) * 2
    padded = layer(SMALL, Settings(attention="flash", capacity_factor=1.5))
    assert padded["inside of the feed-forward layer"] == 4 * (3 * 50 + 60) * 2


@pytest.mark.parametrize(("ranks", "exchanged"), [(1, 0), (4, 2 * 2 * 100 * 2)])
def test_experts_are_computed_again_by_operator(ranks: int, exchanged: int) -> None:
    """torchtitan saves no grouped product: input, result, queries, their attention, values, shared gate, exchange."""
    given = Settings(engine="torch", stage=3, world_size=4, attention="flash", checkpointing="operators")
    products = 2 * (2 * 100 + 2 * 100 + 50 + 60) + 4 * 10

    assert kept(SMALL, replace(given, expert_parallel=ranks)) == products + exchanged


def test_copies_for_experts_are_moved_in_memory() -> None:
    """Dense: 100 bytes x 100. Written and read twice, twice, and once more read, 7 x 2 copies of 100 elements; or 3."""
    assert element_wise(SMALL, Settings()) == 100 * 100 + 3 * 2 * 100 * 2
    assert element_wise(SMALL, Settings(world_size=4, expert_parallel=4)) == 100 * 100 + 7 * 2 * 100 * 2


def test_an_all_to_all_shares_the_nodes_link() -> None:
    """2 nodes of 4: each rank keeps 1/8 and sends 3/8 inside; half of all that 4 ranks have crosses the network."""
    inside, across = Link(alpha=0.0, bandwidth=100.0), Link(alpha=0.0, bandwidth=50.0)

    assert seconds("all_to_all", 8.0, Group(members=4, nodes=1, inside=inside)) == 6 / 100
    assert seconds("all_to_all", 8.0, Group(members=4, nodes=2, inside=inside, across=across)) == 4 * 4 / 50
    slow = replace(inside, bandwidth=1.0)
    assert seconds("all_to_all", 8.0, Group(members=4, nodes=2, inside=slow, across=across)) == 3
    latency = Group(members=4, nodes=2, inside=replace(inside, alpha=1.0), across=replace(across, alpha=10.0), launch=5)
    assert seconds("all_to_all", 0.0, latency) == 5 + 3 + 40


def test_a_token_crosses_to_a_node_once() -> None:
    """Of 2 copies on 2 nodes, 1 leaves; with both in the other node, in 1 of 4 cases, one crossing serves both."""
    group = Group(members=4, nodes=2, inside=Link(alpha=0.0, bandwidth=100.0), across=Link(alpha=0.0, bandwidth=50.0))

    assert (crossing(group), crossing(group, copies=2)) == (1 / 2, 3 / 8)
    assert seconds("all_to_all", 8.0, group, 2) == 4 * 3 / 50
    model = replace(MODELS["mixtral-8x7b"], layers=2)
    megatron, torch = (
        plan(model=model, world_size=8, expert_parallel=8, stage=3, engine=e) for e in ("paper", "torch")
    )
    assert [{c.copies for c in one.collectives if c.op == "all_to_all"} for one in (megatron, torch)] == [{2}, {1}]


def test_computing_waits_for_the_exchange() -> None:
    """2 layers, 2 all-to-alls in forward, 2 in backward, of 2 copies of 10 tokens, 3/4 of them at 1 GB/s."""
    machine = replace(HARDWARE["h100"], inside=Link(alpha=0.0, bandwidth=1e9), launch=0.0, switch=None)
    line = plan(model=SMALL, sequence=10, world_size=4, expert_parallel=4).timeline(machine)

    assert line.busy("expert parallel") == pytest.approx(2 * 4 * 3 / 4 * (2 * 10 * 100 * 2) / 1e9)
    assert line.exposed("expert parallel", "compute") == pytest.approx(line.busy("expert parallel"))


# Context parallelism


DENSE = replace(SMALL, experts=0, chosen=0, shared_ffn=0)


def test_ranks_share_a_sequence_and_the_states() -> None:
    settings = plan(model=DENSE, world_size=8, sequence=1000, context_parallel=4, stage=3).settings

    assert (settings.tokens, settings.tokens_per_rank, settings.shards) == (250, 250, 8)
    whole, part = (parts(model=DENSE, world_size=8, sequence=1000, context_parallel=ranks) for ranks in (1, 4))
    assert whole["activations of the layers"] == 4 * part["activations of the layers"]
    assert whole["logits"] == 4 * part["logits"]


def test_each_token_attends_to_the_whole_sequence() -> None:
    machine = replace(HARDWARE["h100"], fast_flops=1e12, achievable=1e30, memory_bandwidth=1e30, attention=1.0)
    line = plan(model=DENSE, world_size=4, sequence=1000, context_parallel=4, attention="flash").timeline(machine)

    forward = sum(span.seconds for span in line.spans if span.name.startswith("forward layer"))
    assert forward == pytest.approx(2 * 250 * 4 * 1000 * 100 / 1e12)


def test_keys_and_values_go_around() -> None:
    """A rank sends its 250 tokens' keys and values, 2 x 50 elements of 2 bytes, 3 times a layer."""
    local = 250 * 2 * 50 * 2
    sent = {(c.op, c.when): c.sent for c in
            plan(model=DENSE, world_size=4, sequence=1000, context_parallel=4, attention="flash").collectives
            if c.group == "context"}  # fmt: skip

    assert sent == {
        ("all_gather", "forward"): 2 * 3 * local,
        ("all_gather", "backward"): 2 * 3 * local,
        ("reduce_scatter", "backward"): 2 * 3 * local,
    }
    assert parts(model=DENSE, world_size=4, sequence=1000, context_parallel=4)["keys and values of other ranks"] == (
        4 * local
    )


def test_the_ring_is_hidden_behind_the_layer() -> None:
    given = {"model": DENSE, "world_size": 4, "sequence": 1000, "context_parallel": 4, "attention": "flash"}
    slow = replace(HARDWARE["h100"], inside=Link(alpha=0.0, bandwidth=1e6), launch=0.0, switch=None)
    line = plan(**given).timeline(slow)

    assert line.busy("context parallel") == pytest.approx(3 * 2 * 3 * 250 * 2 * 50 * 2 / 1e6)
    fast = plan(**given).timeline(replace(slow, inside=Link(alpha=0.0, bandwidth=1e30)))
    assert fast.exposed("context parallel", "compute") == pytest.approx(0)
    assert line.seconds > line.busy("context parallel")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": SMALL, "world_size": 3, "expert_parallel": 3},
            "it has 8 experts in a layer, and a rank needs whole",
        ),
        ({"model": DENSE, "world_size": 2, "expert_parallel": 2}, "it has no experts. Leave it out"),
        (
            {"model": SMALL, "world_size": 4, "expert_parallel": 8},
            "expert_parallel=8 with stage=0: 4 ranks do not fall",
        ),
        (
            {"model": SMALL, "world_size": 8, "stage": 3, "shard_size": 2, "expert_parallel": 4},
            "expert_parallel=4 with stage=3: 2 ranks share",
        ),
        ({"params": 1e9, "world_size": 2, "expert_parallel": 2}, "they do not say how matrices are cut"),
        ({"model": DENSE, "world_size": 3, "context_parallel": 3, "sequence": 10}, "=10, context_parallel=3: ranks"),
        ({"model": DENSE, "world_size": 4, "context_parallel": 8}, "context_parallel=8 with stage=0: 4 ranks"),
        ({"model": SMALL, "world_size": 8, "stage": 3, "reshard": 3}, "reshard=3 with stage=3: 8 ranks share states"),
        (
            {"model": SMALL, "world_size": 8, "stage": 3, "reshard": 4, "expert_parallel": 2},
            "reshard=4, expert_parallel=2: a second shard of experts is not planned. Choose reshard=True",
        ),
        (
            {"model": SMALL, "world_size": 8, "stage": 3, "reshard": "node"},
            "reshard='node': it has to be a whole number",
        ),
        ({"model": SMALL, "capacity_factor": "2"}, "a capacity_factor of 1 or more"),
        ({"model": SMALL, "capacity_factor": 0.5}, "a capacity_factor of 1 or more"),
        ({"model": SMALL, "world_size": 4, "expert_parallel": 4, "engine": "zero"}, "all ranks the same tensors"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**given)


def test_tensor_parallel_ranks_share_the_exchange() -> None:
    """With sequence parallelism each of 2 ranks sends its half of the tokens, without it all of them."""
    model, given = replace(SMALL, kv_heads=10), {"world_size": 4, "tensor_parallel": 2, "expert_parallel": 2}
    half, whole = (calls(model=model, **given, sequence_parallel=share)["expert activations", "all_to_all", "forward"]
                   for share in (True, False))  # fmt: skip

    assert (half, whole) == ((2, 2 * 2 * 2000 * 2 // 2), (2, 2 * 2 * 2000 * 2))


def test_backward_computes_attention_twice_and_again() -> None:
    machine = replace(HARDWARE["h100"], fast_flops=1e12, achievable=1e30, memory_bandwidth=1e30, attention=1.0)
    spent = [
        sum(span.seconds for span in plan(model=DENSE, sequence=10, attention="flash", checkpointing=how)
            .timeline(machine).spans if span.name.startswith("backward layer"))
        for how in ("none", "full")
    ]  # fmt: skip

    assert spent == pytest.approx([n * 2 * 10 * 4 * 10 * 100 / 1e12 for n in (2, 3)])
