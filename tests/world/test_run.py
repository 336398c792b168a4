"""A function on every rank, and what comes of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World
from course_lib.world import copies


def rank() -> int:
    return dist.get_rank()


def test_a_rank_that_a_run_does_not_have_is_refused() -> None:
    with pytest.raises(CourseError, match=r"run\[4\]: this run has ranks 0 to 3\. Choose one of them\."):
        World(4).run(int)[4]


def test_results_come_in_the_order_of_ranks():
    run = World(4).run(lambda: (rank(), dist.get_world_size()))
    assert list(run) == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert run[2] == (2, 4) and len(run) == 4 and run[-1] == (3, 4)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_all_reduce_on_worlds_of_any_size(world_size):
    def total():
        x = torch.tensor([float(rank() + 1)])
        dist.all_reduce(x)
        return x.item()

    assert list(World(world_size).run(total)) == [world_size * (world_size + 1) / 2] * world_size


def test_arguments_and_closures_reach_every_rank():
    offset = 10

    def add(x, *, scale):
        return scale * x + offset + rank()

    assert list(World(2).run(add, 3, scale=2)) == [16, 17]


def test_each_rank_has_its_own_copy_of_what_the_function_uses():
    seen, weight = [], torch.zeros(1)

    def change(given):
        seen.append(rank())
        given.append(rank())
        weight.add_(1)
        dist.barrier()
        return seen, given, weight.item()

    run = World(3).run(change, [7])
    assert list(run) == [([0], [7, 0], 1.0), ([1], [7, 1], 1.0), ([2], [7, 2], 1.0)]
    assert seen == [] and weight.item() == 0


def test_what_cannot_be_copied_is_named(tmp_path):
    told = r"variable 'log', a TextIOWrapper, cannot be copied"
    with (tmp_path / "log").open("w") as log, pytest.raises(CourseError, match=told):
        World(2).run(lambda: log.write("x"))


def test_locks_are_shared_between_threads():
    lock = threading.Lock()

    def hold():
        with lock:
            return rank()

    assert list(World(2).run(hold)) == [0, 1]


def test_names_read_only_in_a_class_body_reach_every_rank():
    def grad_is_enabled(x):
        class Model:
            size: torch.Size

            @torch.no_grad()
            def forward(self):
                return (2 * x).requires_grad

        return Model().forward()

    assert list(World(2).run(grad_is_enabled, torch.ones(1, requires_grad=True))) == [False, False]


def test_an_instance_of_a_class_of_the_notebook_is_still_one_when_it_comes_back():
    class Point:
        def __init__(self, x):
            self.x = x

    run = World(2).run(lambda: Point(rank()))
    assert all(isinstance(point, Point) for point in run) and run[1].x == 1


def test_output_is_kept_by_rank_and_shown_in_their_order(capsys):
    def chat():
        print("hello")
        dist.barrier()
        print(f"from {rank()}")

    run = World(2).run(chat)
    assert run.output == ("hello\nfrom 0\n", "hello\nfrom 1\n")
    assert capsys.readouterr().out == "[rank 0] hello\n[rank 0] from 0\n[rank 1] hello\n[rank 1] from 1\n"


def test_output_without_end_is_cut():
    def flood():
        for _ in range(3000):
            print("x" * 999)

    output = World(1).run(flood).output[0]
    assert len(output) < 1_100_000 and output.endswith("2000000 more characters were not kept]\n")


def test_calls_tell_what_each_rank_took_part_in():
    def program():
        dist.all_reduce(torch.ones(3))
        if rank() < 2:
            group_work = dist.isend if rank() == 0 else dist.irecv
            group_work(torch.ones(2), 1 - rank()).wait()

    run = World(3).run(program)
    assert [[call.op for call in calls] for calls in run.calls] == [
        ["all_reduce", "send"],
        ["all_reduce", "recv"],
        ["all_reduce"],
    ]
    assert run.calls[0][0].numels == (3,) and run.calls[0][1].root == 1
    assert run.calls[2][0].source_line.source == "dist.all_reduce(torch.ones(3))"


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ((0,), {}, r"World\(0\): a simulated world has 1 to 64 ranks"),
        ((65,), {}, r"World\(65\): a simulated world has 1 to 64 ranks"),
        ((2.0,), {}, r"must be a whole number, not a float"),
        ((True,), {}, r"must be a whole number, not a bool"),
        (("4",), {}, r"must be a whole number, not a str"),
        ((2,), {"backend": "mpi"}, r"there is no such backend here"),
        ((2,), {"timeout": 0}, r"a number of seconds above 0"),
        ((2,), {"timeout": float("nan")}, r"a number of seconds above 0"),
        ((2,), {"timeout": "1"}, r"a number of seconds above 0"),
    ],
)
def test_a_world_that_cannot_be_is_refused(arguments, options, told):
    with pytest.raises(CourseError, match=told):
        World(*arguments, **options)


def test_numpy_integers_are_numbers_of_ranks():
    assert World(np.int64(2)).world_size == 2


def test_the_backend_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("COURSE_WORLD", "carrier-pigeon")
    with pytest.raises(CourseError, match=r"unset \$COURSE_WORLD"):
        World(2)


async def coroutine():
    pass


def generator():
    yield


@pytest.mark.parametrize(
    ("fn", "args", "told"),
    [
        (None, (), r"needs a function to call on every rank"),
        (3, (), r"without parentheses"),
        (lambda rank: rank, (), r"missing a required argument: 'rank'.*ask dist.get_rank\(\)"),
        (lambda: 0, (1,), r"too many positional arguments"),
        (coroutine, (), r"no async"),
        (generator, (), r"no yield"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(fn, args, told):
    with pytest.raises(CourseError, match=told):
        World(2).run(fn, *args)


def test_a_rank_cannot_start_a_world():
    with pytest.raises(CourseError, match=r"rank 0 called World.run: a rank cannot start a world of its own"):
        World(2).run(lambda: World(2).run(rank))


def test_runs_in_several_threads_of_the_kernel_do_not_meet():
    totals = {}

    def one(world_size):
        def total():
            x = torch.ones(1)
            dist.all_reduce(x)
            return x.item()

        totals[world_size] = list(World(world_size).run(total))

    threads = [threading.Thread(target=one, args=(n,)) for n in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert totals == {2: [2.0] * 2, 3: [3.0] * 3, 4: [4.0] * 4}


def test_the_run_shows_what_ranks_returned():
    assert repr(World(2).run(rank)) == "Run\n  rank 0: 0\n  rank 1: 1"


def test_the_process_keeps_its_own_groups_and_settings():
    import sys

    before = sys.excepthook, torch.get_default_dtype()

    def set_dtype():
        torch.set_default_dtype(torch.float64)
        return dist.is_initialized()

    assert list(World(2).run(set_dtype)) == [True, True]
    assert not dist.is_initialized() and (sys.excepthook, torch.get_default_dtype()) == before


def test_ranks_share_the_cores_and_give_them_back() -> None:
    def threads_elsewhere() -> int:
        with ThreadPoolExecutor() as pool:
            return pool.submit(torch.get_num_threads).result()

    before = torch.get_num_threads(), threads_elsewhere()
    assert list(World(3).run(torch.get_num_threads)) == [max(1, before[0] // 3)] * 3
    assert (torch.get_num_threads(), threads_elsewhere()) == before


def test_the_submodules_that_a_function_uses_are_those_that_cloudpickle_finds():
    import concurrent.futures
    import os

    def program():
        return torch.nn.functional.relu, torch.distributed.fsdp, concurrent.futures.Future, os.path, torch.ones

    used = [torch, concurrent, os, torch.nn, 3]
    theirs = cloudpickle.cloudpickle._find_imported_submodules(program.__code__, used)
    ours = copies._submodules(program.__code__, used)
    assert {torch.nn.functional, concurrent.futures} <= set(ours) == set(theirs)
