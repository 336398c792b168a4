"""Experts on several ranks train as on one, whatever the router decides, and send what the formulas say."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

from course_lib import RankError, TinyGPT, World, batch, zero
from course_lib.parallel import ExpertBlock, Experts, TensorParallelGPT, average_gradients


def train(top, steps=3):
    torch.manual_seed(0)
    model, losses = TinyGPT(width=16, layers=2, heads=4, context=12), []
    model.blocks[1] = ExpertBlock(16, 4, 4, top=top)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = (each.chunk(dist.get_world_size())[dist.get_rank()] for each in batch(step, 12, 12))
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss = loss + 0.01 * model.blocks[1].experts.balance
        loss.backward()
        average_gradients(model)
        optimizer.step()
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
        losses.append(loss.item())
    return losses, dict(model.named_parameters())


@pytest.mark.parametrize(("top", "world_size"), [(1, 4), (2, 2)])
def test_losses_and_parameters_equal_one_process(top, world_size) -> None:
    losses, params = World(1).run(train, top)[0]
    run = World(world_size).run(train, top)
    assert all(theirs == pytest.approx(losses, abs=1e-5) for theirs, _ in run)
    everyones = {name: param for _, theirs in run for name, param in theirs.items()}
    assert everyones.keys() == params.keys()
    for name, param in params.items():
        torch.testing.assert_close(everyones[name], param, rtol=1e-4, atol=1e-6)


def route(to, autocast=False):
    """Return what comes of 6 tokens on each rank, all sent to the experts `to`; an expert adds its number to a zero."""
    experts = Experts(width=4, count=4)
    for number, expert in experts.experts.items():
        expert[2].weight.data.zero_()
        expert[2].bias.data.fill_(int(number))
    experts.router.weight.data = 100 * torch.eye(4)
    tokens = torch.nn.functional.one_hot(torch.tensor(to[dist.get_rank()]), 4).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return experts(tokens)[:, 0].tolist(), experts.balance.item()


@pytest.mark.parametrize("autocast", [False, True])
def test_ranks_may_send_different_numbers_of_tokens(autocast) -> None:
    run = World(2).run(route, [[0, 0, 3, 0, 0, 0], [1, 2, 3, 3, 2, 1]], autocast=autocast)
    assert [outputs for outputs, _ in run] == [[0, 0, 3, 0, 0, 0], [1, 2, 3, 3, 2, 1]]
    # The router is sure of all: the share of tokens is the share of probability. 5, 2, 2 and 3 of 12; 4 experts.
    mine = [[5 / 6, 0, 0, 1 / 6], [0, 1 / 3, 1 / 3, 1 / 3]]
    for rank, (_, balance) in enumerate(run):
        exact = 4 * sum(f / 12 * p for f, p in zip([5, 2, 2, 3], mine[rank], strict=True))
        assert balance == pytest.approx(exact, rel=1e-2 if autocast else 1e-6)
    sent = run.comm[0].calls
    assert [call.op for call in sent].count("all_to_all") == 3


@pytest.mark.parametrize("counts", [(2, 9), (0, 11)], ids=str)
def test_the_average_balance_is_that_of_all_tokens_however_many_a_rank_has(counts) -> None:
    """Each rank averaged over its own tokens: two had the weight of nine, and a rank without tokens had NaN."""

    def balance(*counts):
        torch.manual_seed(0)
        experts = Experts(width=8, count=4, top=2)
        experts(torch.randn(sum(counts), 8).split(counts)[dist.get_rank()])
        return experts.balance.item()

    ours, exact = World(2).run(balance, *counts), World(1).run(balance, sum(counts))[0]
    assert sum(ours) / 2 == pytest.approx(exact, rel=1e-6)


def test_a_number_of_ranks_that_does_not_divide_the_experts_is_refused() -> None:
    with pytest.raises(RankError, match="4 experts cannot be shared by 3 ranks"):
        World(3).run(Experts, 16, 4)


@pytest.mark.parametrize("engine", [zero.DataParallel, zero.Stage1, zero.Stage2, zero.Stage3])
@pytest.mark.parametrize("make", [lambda: ExpertBlock(16, 4, 4), lambda: TensorParallelGPT(TinyGPT())])
def test_an_engine_over_ranks_with_different_parts_is_refused(engine, make) -> None:
    """It gave all ranks the experts of rank 0 when it was made, and averaged gradients of different experts."""
    told = "has different parameters on ranks .0, 1., over which this engine would share and average them. Make the"
    with pytest.raises(RankError, match=rf"rank \d: (Experts|TensorParallelGPT) {told}"):
        World(2).run(lambda: engine(make(), torch.optim.SGD, lr=0.1))


def test_an_engine_over_ranks_with_the_same_experts_keeps_them() -> None:
    def kept():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert"))
        experts = Experts(8, 4, group=mesh.get_group("expert"))
        before = {name: param.clone() for name, param in experts.named_parameters()}
        after = zero.Stage2(experts, torch.optim.SGD, mesh.get_group("data")).state_dict()
        return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)

    assert all(World(4).run(kept))


def test_a_copy_after_forward_computes_the_same() -> None:
    """Neither a process group nor the graph of `balance` can be copied."""

    def same():
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "expert"))
        experts, tokens = Experts(8, 4, group=mesh.get_group("expert")), torch.randn(5, 8)
        outputs = experts(tokens)
        average = AveragedModel(experts).module
        return torch.equal(average(tokens), outputs) and average.group is experts.group

    assert all(World(2).run(same))
