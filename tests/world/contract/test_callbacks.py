"""A callback of a future is a part of its rank: its calls are counted, compared and named, and its modes are the
rank's."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.world import functional
from tests.world.programs import failure, rank


def after_an_all_reduce(callback):
    """What `callback` returns once an all-reduce is done."""
    return dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda _: callback()).wait()


def test_its_calls_are_counted(local_world) -> None:
    def program():
        x = torch.ones(5)
        after_an_all_reduce(lambda: dist.all_reduce(x))
        return x.tolist()

    run = local_world(2).run(program)
    assert list(run) == [[2.0] * 5] * 2
    assert [[call.name for call in calls] for calls in run.calls] == [["all_reduce #1", "all_reduce #2"]] * 2
    assert run.comm[0].sent_bytes == 2 * 4 + 5 * 4


def test_it_may_wait_for_its_own_calls_after_an_operation_without_a_future_of_gloos(local_world) -> None:
    def program():
        mine, x = torch.empty(2), torch.ones(3)
        work = dist.reduce_scatter_single(mine, torch.ones(4), async_op=True)
        work.get_future().then(lambda _: dist.all_reduce(x)).wait()
        return mine.tolist(), x.tolist()

    assert list(local_world(2).run(program)) == [([2.0] * 2, [2.0] * 3)] * 2


def test_its_calls_are_compared(local_world) -> None:
    def program() -> None:
        after_an_all_reduce(lambda: dist.all_reduce(torch.ones(3 + 2 * rank())))

    error = failure(local_world(2), program)
    assert error.kind == "mismatch"
    assert "number of elements in all_reduce #2: rank 0: float32 [3]; rank 1: float32 [5]" in str(error)
    assert "in lambda:  after_an_all_reduce(lambda: dist.all_reduce(torch.ones(3 + 2 * rank())))" in str(error)


def test_a_call_in_the_callback_of_one_rank_is_named(local_world) -> None:
    def program() -> None:
        after_an_all_reduce(lambda: rank() or dist.all_reduce(torch.ones(3)))

    error = failure(local_world(2), program)
    assert error.kind == "absent"
    assert "rank 1 returned without the all_reduce #2 that rank 0 waits in" in str(error)


@pytest.mark.slow
def test_the_callbacks_of_torch_are_named_by_the_line_that_the_rank_is_at(local_world) -> None:
    def program() -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        rows = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1 + rank(), start_powerSGD_iter=2)
        model.register_comm_hook(rows, powerSGD_hook.powerSGD_hook)
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()

    error = failure(local_world(2), program)
    assert error.kind == "mismatch"
    assert "in program:  model(torch.ones(2, 64)).sum().backward()" in str(error)


@pytest.mark.parametrize("measure", [True, False])
def test_an_asynchronous_call_has_the_gradient_mode_of_its_rank(local_world, measure) -> None:
    def program():
        x = (torch.arange(4.0) + rank()).requires_grad_()
        functional.all_gather_autograd(x * 2, 0, dist.group.WORLD).pow(2).sum().backward()
        return x.grad.tolist()

    assert list(local_world(2, measure=measure).run(program)) == [[0, 16, 32, 48], [16, 32, 48, 64]]


def test_an_asynchronous_call_has_the_inference_mode_of_its_rank(local_world) -> None:
    @torch.inference_mode()
    def program():
        mine, parts = torch.ones(2), [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(parts, mine, async_op=True).wait()
        sums = torch.zeros(2)
        dist.reduce_scatter(sums, parts, async_op=True).wait()
        return torch.stack(parts).tolist(), sums.tolist()

    assert list(local_world(2).run(program)) == [([[1, 1], [1, 1]], [2, 2])] * 2
