"""A pipeline computes what one process does, on both schedules, and keeps as many activations as the formulas say."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_lib import RankError, TinyGPT, World, batch
from course_lib.parallel import Pipeline, PipelinePart, one_forward_one_backward
from course_lib.parallel.schedules import Action


def all_forward_all_backward(rank, world_size, count):
    """Return the schedule of GPipe."""
    return [Action(kind, rank, number) for kind in ("forward", "backward") for number in range(count)]


SCHEDULES = {"all": all_forward_all_backward, "1f1b": one_forward_one_backward}


def model(frozen=False):
    torch.manual_seed(0)
    whole = TinyGPT(width=16, layers=5, heads=2, context=12)
    for module in (whole.embedding, whole.positions, *whole.blocks[:2]):
        module.requires_grad_(not frozen)
    return whole


def loss_fn(scores, targets):
    return cross_entropy(scores.flatten(0, 1), targets.flatten())


def micro_batches(sizes):
    inputs, targets = batch(0, sum(sizes), 12)
    return inputs.split(sizes), targets.split(sizes)


def alone(sizes, dtype=torch.float32, frozen=False):
    whole = model(frozen).to(dtype)
    inputs, targets = batch(0, sum(sizes), 12)
    loss = loss_fn(whole(inputs), targets)
    loss.backward()
    return loss.item(), {name: param.grad for name, param in whole.named_parameters()}


def in_a_pipeline(schedule, sizes, chunks=1, dtype=torch.float32, frozen=False):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole = model(frozen).to(dtype)
    numbers = range(rank, world_size * chunks, world_size)
    parts = {number: PipelinePart(whole, number, world_size * chunks) for number in numbers}
    options = {"chunks": chunks} if chunks > 1 else {}
    actions = SCHEDULES[schedule](rank, world_size, len(sizes), **options)
    loss = Pipeline(parts, actions, loss_fn).step(*micro_batches(sizes))
    grads = {name: param.grad for part in parts.values() for name, param in part.named_parameters()}
    return None if loss is None else loss.item(), grads


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("world_size", "sizes"), [(1, [3, 1, 2]), (2, [2, 2]), (4, [3, 1, 2]), (4, [4])], ids=str)
def test_loss_and_gradients_equal_one_process(schedule, world_size, sizes) -> None:
    same_as_alone(World(world_size).run(in_a_pipeline, schedule, sizes), sizes)


@pytest.mark.parametrize(("world_size", "chunks"), [(2, 2), (2, 3), (4, 2)])
def test_interleaved_equals_one_process(world_size, chunks) -> None:
    sizes = [1, 2, 1, 2]
    same_as_alone(World(world_size).run(in_a_pipeline, "1f1b", sizes, chunks), sizes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_model_of_a_different_dtype_equals_one_process(dtype) -> None:
    results = World(3).run(in_a_pipeline, "1f1b", [2, 1], dtype=dtype)
    rounding = 0.05 if dtype == torch.bfloat16 else 1e-7
    same_as_alone(results, [2, 1], dtype, rtol=rounding, atol=rounding / 10)


def test_a_model_whose_first_part_is_frozen_equals_one_process() -> None:
    same_as_alone(World(3).run(in_a_pipeline, "1f1b", [2, 1], frozen=True), [2, 1], frozen=True)


def same_as_alone(results, sizes, dtype=torch.float32, rtol=1e-4, atol=1e-6, frozen=False) -> None:
    loss, expected = alone(sizes, dtype, frozen)
    assert results[-1][0] == pytest.approx(loss, rel=rtol / 10)
    assert [each[0] for each in results][:-1] == [None] * (len(results) - 1)
    grads = {name: grad for _, each in results for name, grad in each.items()}
    assert grads.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_each_micro_batch_goes_forward_and_then_backward_once(name, world_size, count) -> None:
    for rank in range(world_size):
        actions = SCHEDULES[name](rank, world_size, count)
        assert len(actions) == 2 * count
        for n in range(count):
            assert actions.index(Action("forward", rank, n)) < actions.index(Action("backward", rank, n))


def kept(actions):
    """Return the most micro-batches whose activations are kept at one time."""
    held, most = 0, 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most


def test_one_forward_one_backward_keeps_at_most_as_many_as_ranks_follow() -> None:
    assert [kept(one_forward_one_backward(rank, 4, 8)) for rank in range(4)] == [4, 3, 2, 1]
    assert [kept(all_forward_all_backward(rank, 4, 8)) for rank in range(4)] == [8] * 4


def duration(schedule, world_size, count, chunks=1):
    """Return how long the slowest rank takes if each forward and each backward of a rank's chunks takes 1."""
    options = {"chunks": chunks} if chunks > 1 else {}
    waiting = {rank: list(schedule(rank, world_size, count, **options)) for rank in range(world_size)}
    ends, free = {}, dict.fromkeys(waiting, 0.0)
    while any(waiting.values()):
        moved = False
        for rank, actions in waiting.items():
            while actions:
                kind, part, number = actions[0]
                last = part == world_size * chunks - 1
                if kind == "forward":
                    needs = [] if part == 0 else [("forward", part - 1, number)]
                else:
                    needs = [("forward", part, number)] if last else [("backward", part + 1, number)]
                if any(need not in ends for need in needs):
                    break
                free[rank] = max([free[rank], *(ends[need] for need in needs)]) + 1 / chunks
                ends[kind, part, number] = free[rank]
                actions.pop(0)
                moved = True
        assert moved, "the schedule waits for itself"
    return max(free.values())


@pytest.mark.parametrize("schedule", SCHEDULES.values())
@pytest.mark.parametrize(("world_size", "count"), [(2, 4), (4, 4), (4, 8), (8, 32)])
def test_the_bubble_is_that_of_the_formula(schedule, world_size, count) -> None:
    took = duration(schedule, world_size, count)
    assert 1 - 2 * count / took == pytest.approx((world_size - 1) / (count + world_size - 1))


def test_interleaving_divides_the_bubble() -> None:
    took = duration(one_forward_one_backward, 4, 8, chunks=2)
    assert took - 2 * 8 == pytest.approx((duration(one_forward_one_backward, 4, 8) - 2 * 8) / 2)


def test_what_cannot_be_interleaved_or_is_tied_is_refused() -> None:
    with pytest.raises(ValueError, match="6 micro-batches cannot be interleaved over 4 ranks"):
        one_forward_one_backward(0, 4, 6, chunks=2)
    with pytest.raises(ValueError, match="embedding and head are one weight, and a pipeline would train two"):
        PipelinePart(TinyGPT(tied=True), 0, 2)
    PipelinePart(TinyGPT(tied=True), 0, 1)


def test_activations_and_their_gradients_are_sent_once() -> None:
    run = World(4).run(in_a_pipeline, "1f1b", [2, 2, 2])
    activation = 2 * 12 * 16 * 4
    assert [run.comm[rank].sent_bytes // activation for rank in range(4)] == [3, 6, 6, 3]
    assert sum(run.comm[rank].sent_bytes for rank in range(4)) == 18 * activation


def test_a_schedule_for_fewer_micro_batches_is_refused() -> None:
    """It left out the last micro-batches, and divided by their tokens, too."""

    def step() -> None:
        rank = dist.get_rank()
        pipeline = Pipeline({rank: PipelinePart(model(), rank, 2)}, one_forward_one_backward(rank, 2, 2), loss_fn)
        pipeline.step(*micro_batches([1, 1, 1]))

    with pytest.raises(RankError, match="3 micro-batches of inputs and 3 of targets, and a schedule for 2"):
        World(2).run(step)
