"""The replay of a run: the same steps, values and failures on every backend."""

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, RankError, mark
from tests.world.programs import failure


def pass_right():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, received = torch.tensor([rank]), torch.tensor([-1])
    sending = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(received, src=(rank - 1) % world_size)
    sending.wait()
    dist.all_reduce(received)
    return received.item()


def test_the_steps_of_a_run_are_those_of_its_program(local_world) -> None:
    text = str(local_world(3).run(pass_right).replay())

    assert "step 1: Every rank passes 8 B on; each has sent 1 of 1 chunks\n" in text
    assert "step 2: All 3 ranks: all_reduce #1, 10 B sent by each\n" in text
    assert "step 3: All 3 ranks: returned\n    rank 0: 3\n" in text
    assert "make the world with World(…, replay=True)" in text


def test_values_before_and_after_each_call_are_kept_on_request(world) -> None:
    run = world(3, replay=True).run(pass_right)

    text = str(run.replay())
    assert "    rank 0: sends mine [0]\n    rank 0: receives received [2]\n" in text
    assert "    rank 2: received [1] → received [3]\n" in text
    assert "replay=True" not in text


def test_complex_values_are_shown(local_world) -> None:
    def add_complex() -> None:
        part = torch.empty(1, dtype=torch.complex64)
        dist.reduce_scatter(part, [torch.tensor([1 + 0.25j])] * 2)

    run = local_world(2, replay=True).run(add_complex)
    assert "[1+0.25j], [1+0.25j] → part [2+0.5j]" in str(run.replay())
    run.report()


def test_values_are_kept_without_the_variables(local_world) -> None:
    def deletes() -> None:
        large = torch.ones(1000)
        dist.barrier()
        del large
        mark("deleted")

    assert local_world(1, replay=True).run(deletes).memory[0].marks["deleted"].current_bytes < 1000


def test_a_failed_run_has_a_replay_up_to_where_each_rank_stood(local_world) -> None:
    def diverges() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            dist.broadcast(torch.ones(2), src=0)
        dist.all_reduce(torch.ones(2))

    with pytest.raises(RankError) as caught:
        local_world(3).run(diverges)

    text = str(caught.value.replay())
    assert "step 1: All 3 ranks: barrier #1\n" in text
    assert "step 2: Ranks 0, 2: waiting in all_reduce #1 of float32 [2]; rank 1: waiting in broadcast #1" in text
    assert "step 3: Ranks 0, 2: stopped in all_reduce #1; rank 1: stopped in broadcast #1\n" in text
    assert text.endswith(str(caught.value))


def test_a_replay_names_the_rank_that_others_wait_for(local_world) -> None:
    def raises() -> None:
        if dist.get_rank() == 1:
            raise ValueError("no data")
        dist.barrier()

    with pytest.raises(RankError) as caught:
        local_world(2).run(raises)

    text = str(caught.value.replay())
    assert "step 1: Rank 0: waiting in barrier #1 for rank 1\n" in text
    assert "rank 1: raised ValueError: no data" in text


def test_a_notebook_names_the_replay_if_a_rank_made_several_calls(local_world) -> None:
    def after_one_call() -> None:
        dist.barrier()
        raise ValueError("no data")

    def after_two_calls() -> None:
        dist.barrier()
        after_one_call()

    one, two = (failure(local_world(2), fn)._render_traceback_() for fn in (after_one_call, after_two_calls))

    assert not any(".replay()" in line for line in one)
    code = "from course_lib import RankError; RankError.last().replay()"
    assert two[-1] == f"\nTo step through the run up to here:\n    {code}"
    assert "ValueError: no data" in str(RankError.last().replay())


def test_a_new_kernel_says_how_to_get_the_replay(monkeypatch) -> None:
    monkeypatch.setattr(RankError, "_shown", None)
    with pytest.raises(CourseError, match="Run the cell that failed, then this one"):
        RankError.last()
