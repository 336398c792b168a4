"""Context parallel computes what one process does, on any length; what it sends and holds is what the formulas say."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from course_lib import RankError, TinyGPT, World, batch, mark
from course_lib.parallel import Cut, head_attention, ring_attention

WAYS = {
    "in order": (Cut.in_order, ring_attention), "zigzag": (Cut.zigzag, ring_attention),
    "heads": (Cut.in_order, head_attention),
}  # fmt: skip


def model():
    torch.manual_seed(0)
    return TinyGPT(width=16, layers=2, heads=4, context=48)


def losses_of(scores, targets):
    return cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")


def alone(length, counted):
    whole, (inputs, targets) = model(), batch(0, 3, length)
    loss = losses_of(whole(inputs), targets)[counted.expand(3, -1).flatten()].mean()
    loss.backward()
    return loss.item(), {name: param.grad for name, param in whole.named_parameters()}


def together(way, length, counted):
    make, attention = WAYS[way]
    cut, cut_model, (inputs, targets) = make(length, dist.get_world_size()), model(), batch(0, 3, length)
    for block in cut_model.blocks:
        block.attend = partial(attention, cut=cut)
    mine = cut.places(dist.get_rank())
    losses = losses_of(cut_model(inputs[:, mine], mine), targets[:, mine])[counted[mine].expand(3, -1).flatten()]
    loss = losses.sum() * dist.get_world_size() / (3 * counted.sum())
    loss.backward()
    for param in cut_model.parameters():
        dist.all_reduce(param.grad, dist.ReduceOp.AVG)
    loss = loss.detach()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item(), {name: param.grad for name, param in cut_model.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("world_size", "length"), [(1, 13), (2, 48), (3, 13), (4, 13), (4, 3)])
def test_loss_and_gradients_equal_one_process(way, world_size, length) -> None:
    if way == "heads" and world_size == 3:
        pytest.skip("3 ranks cannot share 4 heads")
    counted = torch.arange(length) != 1  # so that ranks count different numbers of tokens
    loss, grads = alone(length, counted)
    for theirs, gradients in World(world_size).run(together, way, length, counted):
        assert theirs == pytest.approx(loss, rel=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(gradients[name], grad, rtol=1e-4, atol=2e-6)


def errors(way, dtype):
    """Return how far this rank's output and gradients are from exact ones, as a share; and those of torch's kernel."""
    make, attention = WAYS[way]
    cut = make(61, dist.get_world_size())
    torch.manual_seed(0)
    mine, qkv = cut.places(dist.get_rank()), torch.randn(3, 2, 4, 61, 8, dtype=torch.float64).to(dtype)
    ours = results(partial(attention, cut=cut), qkv[..., mine, :])
    torchs, exact = (results(partial(scaled_dot_product_attention, is_causal=True), x) for x in (qkv, qkv.double()))
    exact = exact[..., mine, :]
    return [((each - exact).norm() / exact.norm()).item() for each in (ours, torchs[..., mine, :])]


def results(attention, qkv):
    leaves = [part.clone().requires_grad_() for part in qkv]
    output = attention(*leaves)
    output.square().sum().backward()
    return torch.stack([output.detach(), *(leaf.grad for leaf in leaves)]).double()


@pytest.mark.parametrize(
    ("way", "dtype"), [("zigzag", torch.float64), ("zigzag", torch.bfloat16), ("heads", torch.bfloat16)]
)
def test_other_dtypes_are_about_as_exact_as_in_one_process(way, dtype) -> None:
    for ours, theirs in World(4).run(errors, way, dtype):
        assert ours < 3 * theirs + 1e-14


def attend(way, length):
    make, attention = WAYS[way]
    cut = make(length, dist.get_world_size())
    shape = (2, 4, len(cut.places(dist.get_rank())), 8)
    query, key, value = (torch.ones(shape, requires_grad=True) for _ in range(3))
    output = attention(query, key, value, cut)
    mark("after forward")
    output.sum().backward()


@pytest.mark.parametrize("way", ["in order", "zigzag"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_a_ring_sends_keys_and_values_then_their_gradients(way, world_size) -> None:
    run = World(world_size).run(attend, way, 64)
    block = 2 * 2 * 4 * 64 // world_size * 8 * 4  # keys and values, batch, heads, tokens, head_size, bytes
    hops = 2 * (world_size - 1) + (world_size if world_size > 1 else 0)
    assert [rank.sent_bytes for rank in run.comm] == [hops * block] * world_size


def test_heads_send_four_tensors_in_each_pass() -> None:
    run = World(4).run(attend, "heads", 64)
    tensor = 2 * 4 * 16 * 8 * 4
    assert run.comm[0].sent_bytes == 8 * 3 / 4 * tensor


@pytest.mark.parametrize(("make", "world_size"), [(Cut.zigzag, 2), (Cut.in_order, 3)])
def test_a_cut_that_heads_cannot_be_swapped_with_is_refused(make, world_size) -> None:
    def swap():
        head_attention(*torch.ones(3, 2, 4, 12 // world_size, 8), make(12, world_size))

    with pytest.raises(RankError, match=f"4 heads cannot be swapped on {world_size} ranks"):
        World(world_size).run(swap)


def test_what_a_rank_holds_for_backward_falls_with_the_number_of_ranks() -> None:
    held = [World(n).run(attend, "zigzag", 64).memory[0].marks["after forward"].current_bytes for n in (1, 2, 4)]
    # Queries, keys, values, the two joined, the output, and a total for each query.
    assert held == [2 * 4 * 64 // n * (6 * 8 + 1) * 4 for n in (1, 2, 4)]


def seen(cut, rank):
    """Return how many keys this rank's queries see, as the ring computes them."""
    return sum(int(place) + 1 for place in cut.places(rank))


def test_zigzag_gives_every_rank_as_much_to_compute() -> None:
    in_order, zigzag = ([seen(make(64, 4), rank) for rank in range(4)] for make in (Cut.in_order, Cut.zigzag))
    assert in_order == [136, 392, 648, 904]
    assert zigzag == [520] * 4


@pytest.mark.parametrize(("length", "ranks"), [(16, 4), (16, 1), (12, 2)])
def test_a_cut_for_different_ranks_or_tokens_is_refused(length, ranks) -> None:
    """With a cut for four ranks, two of them left out half of the sequence, without a word."""
    query = torch.zeros(1, 2, 4, 8)
    message = rf"has 4 queries and 4 keys, and the cut is of {length} tokens for {ranks} ranks"
    with pytest.raises(RankError, match=message):
        World(2).run(ring_attention, query, query, query, Cut.in_order(length, ranks))
