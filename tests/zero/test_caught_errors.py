"""A program that catches an error and goes on: it trains as one process would, or is refused."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from course_lib import RankError, zero
from tests.zero.models import batch, loss_of, one_process, train, world

ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3"]
WITHOUT_MEMORY = torch.OutOfMemoryError


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise WITHOUT_MEMORY


class Layers(nn.Module):
    """Five layers, of which the second fails in forward, or the third in backward, if it is to."""

    fails = ""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(5))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if self.fails == "forward" and number == 1:
                raise WITHOUT_MEMORY
            x = layer(x).tanh()
            if self.fails == "backward" and number == 2:
                x = Fails.apply(x)
        return x


def trained_with_one_error(engine, where, **options):
    model = Layers()
    ours = getattr(zero, engine)(model, SGD, lr=0.1, **options)
    for step in range(3):
        model.fails = where if step == 1 else ""
        try:
            train(ours, dist.get_rank(), [step])
        except WITHOUT_MEMORY:
            ours.zero_grad()
    return ours.state_dict()


@pytest.mark.parametrize(
    ("engine", "where", "options"),
    [
        *((engine, "forward", {}) for engine in ENGINES),
        *(("Stage3", "forward", {"prefetch": ahead}) for ahead in (0, 3)),
        ("Stage1", "backward", {}),
    ],
)
def test_a_step_that_failed_on_every_rank_can_be_left_out(engine, where, options) -> None:
    reference = Layers()
    one_process(reference, SGD, {"lr": 0.1}, 2, [0, 2])
    for weights in world(2).run(trained_with_one_error, engine, where, **options):
        torch.testing.assert_close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ["DataParallel", "Stage2", "Stage3"])
def test_training_after_a_backward_that_failed_is_refused(engine) -> None:
    with pytest.raises(RankError, match=r"last backward did not finish: .* load your last checkpoint"):
        world(2).run(trained_with_one_error, engine, "backward")


@pytest.mark.parametrize("prefetch", [0, 1])
def test_parameters_left_by_a_failed_evaluation_are_not_those_after_the_next_step(prefetch) -> None:
    def rank():
        model = Layers()
        ours = zero.Stage3(model, SGD, lr=0.1, prefetch=prefetch)
        for step in range(2):
            ours.zero_grad()
            loss_of(ours, batch(step, dist.get_rank())).backward()
            model.fails = "forward"
            with pytest.raises(WITHOUT_MEMORY):
                ours(batch(9, 0))
            model.fails = ""
            ours.step()
        return ours.state_dict()

    reference = Layers()
    one_process(reference, SGD, {"lr": 0.1}, 2, range(2))
    for weights in world(2).run(rank):
        torch.testing.assert_close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_whole_model_runs_again_within_a_backward(engine, use_reentrant) -> None:
    def loss(model, rank):
        first, second = (batch(step, rank).requires_grad_() for step in range(2))
        parts = [checkpoint(model, x, use_reentrant=use_reentrant) for x in (first, second)]
        return sum(part.square().mean() for part in parts)

    def rank():
        ours = getattr(zero, engine)(Layers(), SGD, lr=0.1)
        for _ in range(2):
            ours.zero_grad()
            loss(ours, dist.get_rank()).backward()
            ours.step()
        return ours.state_dict()

    reference = Layers()
    optimizer = SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (sum(loss(reference, rank) for rank in range(2)) / 2).backward()
        optimizer.step()
    for weights in world(2).run(rank):
        torch.testing.assert_close(weights, dict(reference.state_dict()))
