"""Units that forward takes in a different order, and parameters that a rank did not use."""

import pytest
from torch import nn
from torch.optim import Adam

from course_lib import RankError, zero
from tests.zero.models import batch, loss_of, make, world


class Interleaved(nn.Module):
    """Two lists of layers that forward uses in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.ModuleList(nn.Linear(5, 5) for _ in range(2)) for _ in range(2))

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = down(up(x).tanh())
        return x


def test_units_that_forward_takes_in_a_different_order_are_named() -> None:
    def rank(in_order) -> None:
        model = Interleaved()
        units = [model.up[0], model.down[0], model.up[1], model.down[1]] if in_order else None
        made = zero.Stage3(model, Adam, units=units)
        loss_of(made, batch(0, 0)).backward()

    in_order = world(2).run(rank, True)
    with pytest.warns(UserWarning, match=r"forward came to down\.0 before up\.1.* Pass units=\[\.\.\.\] in the order"):
        out_of_order = world(2).run(rank, False)
    assert in_order.comm[0].sent_bytes < out_of_order.comm[0].sent_bytes


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2", "Stage3"])
def test_a_parameter_that_a_rank_did_not_use_is_refused_unless_ranks_exchange_which_they_used(engine) -> None:
    def rank(**options) -> None:
        made = getattr(zero, engine)(make("corners"), Adam, **options)
        loss_of(made, batch(0, 0)).backward()
        made.step()

    with pytest.raises(RankError, match=r"no gradient to unused\..* Make the engine with find_unused_parameters=True"):
        world(2).run(rank)
    calls = world(2).run(rank, find_unused_parameters=True).comm[0].calls
    flags = [call.total_bytes for call in calls if call.op == "all_reduce" and call.total_bytes < 20]
    assert flags == [9]  # a byte for each parameter that is trained
