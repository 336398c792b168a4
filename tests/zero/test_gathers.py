"""Parameters that are gathered while the next forward computes; and units that forward takes in a different order."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Adam

from course_lib import RankError, zero
from tests.zero.models import batch, loss_of, make, one_process, train, unused_in, world

STAGES = ["Stage1", "Stage2"]


def build(stage, model, **options):
    return getattr(zero, stage)(model, Adam, lr=0.01, bucket_bytes=100, **unused_in(model), **options)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", ["corners", "single", "branches", "stack"])
def test_gathering_in_the_next_forward_changes_no_result(stage, model):
    def rank():
        made = build(stage, make(model), gather="next forward")
        train(made, dist.get_rank(), range(3), max_norm=0.5)
        weights = made.state_dict()
        made.load_state_dict(weights)
        train(made, dist.get_rank(), range(3, 4))
        return weights, made(batch(9, 0)).detach(), made.state_dict()

    reference = make(model)
    one_process(reference, Adam, {"lr": 0.01}, 3, range(3), max_norm=0.5)
    for weights, output, later in world(3).run(rank):
        torch.testing.assert_close(weights, dict(reference.state_dict()), rtol=1e-4, atol=1e-6)
        fresh = make(model)
        fresh.load_state_dict(later)
        torch.testing.assert_close(fresh(batch(9, 0)).detach(), output)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("gather", "under_way"), [("step", [0, 0]), ("next forward", [3, 0])])
def test_the_all_gathers_are_under_way_until_the_next_forward(stage, gather, under_way):
    def rank():
        made = build(stage, nn.Sequential(*(nn.Linear(5, 5) for _ in range(3))), gather=gather)
        loss_of(made, batch(0, dist.get_rank())).backward()
        made.step()
        after_step = len(made._gathers._works)
        made(batch(1, 0))
        return [after_step, len(made._gathers._works)]

    run = world(2).run(rank)
    assert list(run) == [under_way] * 2
    gathers = [call.total_bytes for call in run.comm[0].calls if call.op == "all_gather"]
    assert gathers == [120, 120, 120]


def test_a_time_to_gather_that_does_not_exist_is_refused():
    with pytest.raises(RankError, match='gather=\'later\': choose "step", or "next forward"'):
        world(2).run(lambda: build("Stage1", make("stack"), gather="later"))


class Interleaved(nn.Module):
    """Two lists of layers that forward uses in turn."""

    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.ModuleList(nn.Linear(5, 5) for _ in range(2)) for _ in range(2))

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = down(up(x).tanh())
        return x


def test_units_that_forward_takes_in_a_different_order_are_named():
    def rank(in_order):
        model = Interleaved()
        units = [model.up[0], model.down[0], model.up[1], model.down[1]] if in_order else None
        made = zero.Stage3(model, Adam, units=units)
        loss_of(made, batch(0, 0)).backward()

    in_order = world(2).run(rank, True)
    with pytest.warns(UserWarning, match=r"forward came to down\.0 before up\.1.* Pass units=\[\.\.\.\] in the order"):
        out_of_order = world(2).run(rank, False)
    assert in_order.comm[0].sent_bytes < out_of_order.comm[0].sent_bytes


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2", "Stage3"])
def test_a_parameter_that_a_rank_did_not_use_is_refused_unless_ranks_exchange_which_they_used(engine):
    def rank(**options):
        made = getattr(zero, engine)(make("corners"), Adam, **options)
        loss_of(made, batch(0, 0)).backward()
        made.step()

    with pytest.raises(RankError, match=r"no gradient to unused\..* Make the engine with find_unused_parameters=True"):
        world(2).run(rank)
    calls = world(2).run(rank, find_unused_parameters=True).comm[0].calls
    flags = [call.total_bytes for call in calls if call.op == "all_reduce" and call.total_bytes < 20]
    assert flags == [9]  # a byte for each parameter that is trained
