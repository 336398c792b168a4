"""Every rank works on a copy of what the function uses; results, output and random numbers come back by rank."""

import importlib
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World
from course_lib.world.rank_threads import supervisor
from course_lib.world.rank_threads.printing import Lines
from tests.world.programs import rank, total


def test_results_come_in_the_order_of_ranks(world) -> None:
    run = world(4).run(lambda: (rank(), dist.get_world_size()))
    assert list(run) == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert run[2] == (2, 4) and len(run) == 4 and run[-1] == (3, 4)
    with pytest.raises(CourseError, match=r"run\[4\]: this run has ranks 0 to 3\. Choose one of them\."):
        run[4]


def test_a_long_run_of_simulated_ranks_shows_lines_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk() -> None:
        print("begins")
        dist.barrier()
        time.sleep(1)
        print("ends")

    World(2).run(talk)
    assert capsys.readouterr().out == "".join(f"[rank {r}] begins\n[rank {r}] ends\n" for r in (0, 1))

    monkeypatch.setattr(supervisor, "SILENT", 0.0)
    World(2).run(talk)
    assert capsys.readouterr().out.startswith("[rank 0] begins\n[rank 1] begins\n")


def test_the_run_shows_what_ranks_returned(local_world) -> None:
    assert repr(local_world(2).run(rank)) == "Run\n  rank 0: 0\n  rank 1: 1"


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_all_reduce_on_worlds_of_any_size(local_world, world_size) -> None:
    assert list(local_world(world_size).run(total)) == [world_size] * world_size


def test_arguments_and_closures_reach_every_rank(world) -> None:
    offset = torch.arange(3)

    def add(x, *, scale):
        return {"sum": scale * x + offset + rank(), "size": dist.get_world_size()}

    run = world(2).run(add, 3, scale=2)
    assert run[1]["sum"].tolist() == [7, 8, 9] and run[0]["size"] == 2


def test_each_rank_has_its_own_copy_of_what_the_function_uses(world) -> None:
    seen, weight = [], torch.zeros(1)

    def change(given):
        seen.append(rank())
        given.append(rank())
        weight.add_(1)
        dist.barrier()
        return seen, given, weight.item()

    given = [7]
    assert list(world(3).run(change, given)) == [([r], [7, r], 1.0) for r in range(3)]
    assert (seen, given, weight.item()) == ([], [7], 0)


def test_what_cannot_be_copied_is_named(local_world, tmp_path) -> None:
    told = r"variable 'log', a TextIOWrapper, cannot be copied"
    with (tmp_path / "log").open("w") as log, pytest.raises(CourseError, match=told):
        local_world(2).run(lambda: log.write("x"))


def test_names_read_only_in_a_class_body_reach_every_rank(local_world) -> None:
    def grad_is_enabled(x):
        class Model:
            size: torch.Size

            @torch.no_grad()
            def forward(self):
                return (2 * x).requires_grad

        return Model().forward()

    assert list(local_world(2).run(grad_is_enabled, torch.ones(1, requires_grad=True))) == [False, False]


def test_an_instance_of_a_class_of_the_notebook_is_still_one_when_it_comes_back(local_world) -> None:
    class Point:
        __slots__ = ("x",)

        def __init__(self, x) -> None:
            self.x = x

    class Named(Point):
        name = "here"

    run = local_world(2).run(lambda: [Point(rank()), Named(rank())])
    assert all(isinstance(point, Point) for points in run for point in points)
    assert [point.x for point in run[1]] == [1, 1] and run[1][1].name == "here"


def test_a_tensor_that_needs_a_gradient_comes_back(local_world) -> None:
    def program():
        weight = torch.ones(3, requires_grad=True)
        output = weight * 2
        output.register_hook(lambda gradient: None)
        return weight, output

    run = local_world(1).run(program)
    assert run.output == ("",) and [tensor.requires_grad for tensor in run[0]] == [True, True]


def test_a_large_result_and_a_large_output_come_back_whole(world) -> None:
    weight = torch.arange(300_000)

    def program():
        for _ in range(500):
            print("x" * 999)
        return weight * (rank() + 1)

    run = world(2).run(program)
    assert torch.equal(run[1], 2 * weight)
    assert [len(text) for text in run.output] == [500_000] * 2


def test_a_module_that_the_learner_has_changed_is_imported_again(local_world, monkeypatch, tmp_path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "mine_to_change.py"
    for number in (1, 22):
        module.write_text(f"def answer():\n    return {number}\n")
        os.utime(module, (number, number))
        importlib.invalidate_caches()
        sys.modules.pop("mine_to_change", None)
        assert list(local_world(2).run(importlib.import_module("mine_to_change").answer)) == [number] * 2


# -- random numbers and variables --------------------------------------------------------------------------------


def draws():
    return (
        torch.randn(3).tolist(),
        torch.nn.functional.dropout(torch.ones(8)).tolist(),
        random.random(),
        np.random.rand(2).tolist(),
        os.environ["RANK"],
        os.environ["WORLD_SIZE"],
    )


def test_random_streams_and_variables_are_the_same_in_every_run(world) -> None:
    first, second = list(world(3).run(draws)), list(world(3).run(draws))
    assert first == second
    assert len({str(numbers) for numbers in first}) == 3
    simulated = World(3, backend="simulated").run(draws)
    assert [ours[2:] for ours in first] == [theirs[2:] for theirs in simulated]  # torch's own may differ


# -- output ------------------------------------------------------------------------------------------------------


def test_output_is_kept_by_rank_and_shown_in_their_order(world, capsys, monkeypatch) -> None:
    monkeypatch.setattr(Lines, "every", 60.0)  # a busy machine's run would have more than one update

    def chat() -> None:
        print("hello")
        dist.barrier()
        print(f"from {rank()}", end="", flush=True)
        print("!\ud83d", file=sys.stderr)  # half of an emoji

    run = world(2).run(chat)
    assert run.output == ("hello\nfrom 0!?\n", "hello\nfrom 1!?\n")
    shown = capsys.readouterr().out
    assert shown == "[rank 0] hello\n[rank 0] from 0!?\n[rank 1] hello\n[rank 1] from 1!?\n"


def test_output_without_end_is_cut(local_world) -> None:
    def flood() -> None:
        for _ in range(3000):
            print("x" * 999)

    output = local_world(1).run(flood).output[0]
    assert len(output) < 1_100_000 and output.endswith("2000000 more characters were not kept]\n")


# -- calls -------------------------------------------------------------------------------------------------------


def test_calls_are_recorded_with_their_lines(world) -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(3))
        if rank() < 2:
            message = dist.isend if rank() == 0 else dist.irecv
            message(torch.ones(2), 1 - rank()).wait()

    run = world(3).run(program)
    assert [[call.variant for call in calls] for calls in run.calls] == [
        ["all_reduce", "send"],
        ["all_reduce", "recv"],
        ["all_reduce"],
    ]
    assert run.calls[0][0].numels == (3,) and run.calls[0][1].root == 1
    assert run.calls[2][0].line.source == "dist.all_reduce(torch.ones(3))"
    assert repr(run.calls[0][1]).startswith("send to rank 1 of float32 [2] at test_results.py line ")


def test_a_rank_cannot_start_a_world(local_world) -> None:
    with pytest.raises(CourseError, match=r"rank \d called World.run: a rank cannot start a world of its own"):
        local_world(2).run(lambda: World(2, backend="simulated").run(rank))


def test_runs_in_several_threads_of_the_kernel_do_not_meet(world) -> None:
    with ThreadPoolExecutor(3) as threads:
        runs = threads.map(lambda n: list(world(n).run(total)), [2, 3, 4])
    assert list(runs) == [[2.0] * 2, [3.0] * 3, [4.0] * 4]
