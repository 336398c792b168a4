"""No object stays behind, and no callback outlives its run. Threads, sockets, groups: `contract/test_no_leftovers`."""

import gc
import subprocess
import sys
import textwrap
import time
import weakref

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World, zero
from course_lib.world.rank_threads import supervisor
from course_lib.world.torch_hooks.gloo import loopback


def raise_on_one_rank() -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    if dist.get_rank() == 1:
        raise ValueError
    work.wait()
    dist.barrier()


@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_a_model_whose_hooks_hold_it_is_gone_after_the_run(backend: str) -> None:
    def hook_a_model() -> None:
        net = torch.nn.Bilinear(2, 2, 2)
        for param in net.parameters():
            param.register_post_accumulate_grad_hook(lambda param: net.zero_grad())

    def still_there() -> int:
        gc.collect()
        return sum(type(thing) is torch.nn.Bilinear for thing in gc.get_objects())

    world = World(2, backend=backend)
    world.run(hook_a_model)
    assert still_there() == 0
    assert list(world.run(still_there)) == [0, 0]


def test_the_collector_leaves_older_objects_out_during_a_run_alone() -> None:
    with pytest.raises(RankError):
        World(2).run(raise_on_one_rank)
    assert gc.get_freeze_count() == 0
    assert min(World(2).run(gc.get_freeze_count)) > 0
    assert gc.get_freeze_count() == 0


def test_what_ranks_left_in_cycles_is_gone_after_the_run() -> None:
    def leave_a_cycle() -> None:
        cycle: list[object] = [torch.nn.Bilinear(1, 1, 1)]
        cycle.append(cycle)

    gc.disable()
    try:
        World(2).run(leave_a_cycle)
    finally:
        gc.enable()
    assert not any(type(thing) is torch.nn.Bilinear for thing in gc.get_objects())


def test_an_engine_that_is_dropped_is_gone() -> None:
    def train(name: str) -> bool:
        engine = getattr(zero, name)(torch.nn.Linear(2, 2), torch.optim.SGD, lr=0.1)
        engine(torch.ones(1, 2)).sum().backward()
        there, deadline = weakref.ref(engine), time.monotonic() + 10
        del engine
        while there() is not None and time.monotonic() < deadline:  # the thread that delivers a result may be late
            gc.collect()
        return there() is None

    for name in ("DataParallel", "Stage1", "Stage2", "Stage3"):
        assert list(World(2).run(train, name)) == [True, True], name


def test_a_callback_that_outlives_its_rank_does_not_end_the_process() -> None:
    """It holds the last reference to a group, on a thread of gloo's, which the group joins when it ends."""

    def leave_early() -> None:
        group = dist.group.WORLD
        future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        future.then(lambda _: (time.sleep(0.05), dist.get_rank(group)))

    for _ in range(10):
        World(3).run(leave_early)


@pytest.mark.slow
def test_python_ends_in_order_after_a_rank_that_was_left_in_cpp() -> None:
    program = """
        from datetime import timedelta
        import torch.distributed as dist
        from course_lib import RankError, World

        def wait_in_cpp():
            if dist.get_rank() == 1:
                raise ValueError
            dist.HashStore().wait(["a key"], timedelta(seconds=1.5))

        try:
            World(2).run(wait_in_cpp)
        except RankError as error:
            assert "rank 0 could not be interrupted" in str(error)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_a_fork_of_a_process_that_has_run_a_world_runs_none(backend: str) -> None:
    program = f"""
        import os
        import torch.distributed as dist
        from course_lib import CourseError, World

        World(2, backend="{backend}").run(dist.get_rank)
        child = os.fork()
        if child == 0:
            try:
                World(2, backend="{backend}").run(dist.get_rank)
            except CourseError as error:
                os._exit(7 if "was forked from one that has run a world" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_pulse_that_broke_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def allreduce(self, tensors: list[torch.Tensor]) -> None:
            raise RuntimeError("Timed out waiting 10000ms for send operation to complete")

    monkeypatch.setattr(loopback, "_pulse", [Broken(), Broken()])
    assert list(World(2).run(dist.get_rank)) == [0, 1]
    assert loopback._pulse == []
    assert list(World(2).run(dist.get_rank)) == [0, 1]
    assert len(loopback._pulse) == 2


@pytest.mark.slow
def test_profilers_see_runs_and_ranks_also_after_one_was_stopped() -> None:
    program = """
        import cProfile
        import sys

        import torch
        import torch.distributed as dist
        from course_lib import RankError, World, zero

        def train():
            with cProfile.Profile() as profile:
                for _ in range(20):
                    dist.all_reduce(torch.ones(4))
            return sum(entry.callcount for entry in profile.getstats() if "all_reduce" in str(entry.code))

        def fail():
            if dist.get_rank() == 1:
                raise ValueError
            while True:
                pass

        def measure():
            with cProfile.Profile() as profile:
                World(2).run(dist.get_rank)
            assert any("Run.__init__" == getattr(e.code, "co_qualname", "") for e in profile.getstats())
            if sys.version_info < (3, 12):  # later ones have one profiler for all threads
                assert min(World(4).run(train)) >= 20

        measure()
        try:
            World(4).run(fail)
        except RankError:
            measure()
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_that_waited_finishes_its_finally(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "UNWINDING", 30.0)  # a busy machine's ranks need longer for 0.03 s of computing
    monkeypatch.setattr(supervisor, "GRACE", 30.0)

    def program() -> None:
        if dist.get_rank() == 1:
            raise ValueError
        try:
            dist.barrier()
        finally:
            end = time.monotonic() + 0.03
            while time.monotonic() < end:
                pass
            (tmp_path / str(dist.get_rank())).touch()

    with pytest.raises(RankError):
        World(3).run(program)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
