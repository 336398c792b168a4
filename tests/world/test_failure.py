"""Whatever goes wrong on a rank is told in one message, at once, and the next run works."""

import _thread
import importlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from course_lib import RankError, World
from course_lib.world import learner_code
from course_lib.world.processes import run_loop
from course_lib.world.simulated import backend as simulated_backend
from course_lib.world.simulated.rank import Rank
from tests.world import programs
from tests.world.programs import lines, total


def rank() -> int:
    return dist.get_rank()


def works(world: World) -> bool:
    return list(world.run(total)) == [float(world.world_size)] * world.world_size


def failure(fn, world_size: int = 4, timeout: float = 20.0) -> RankError:
    """As `programs.failure`, on simulated ranks, whose threads must be gone."""
    error = programs.failure(World(world_size, timeout=timeout), fn)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]
    return error


def test_a_rank_that_raises():
    def program():
        if rank() == 2:
            raise ValueError("two is odd")
        dist.all_reduce(torch.ones(2))

    error = failure(program)
    assert (error.kind, error.rank) == ("raised", 2)
    assert lines(error)[0] == "rank 2 of 4 raised ValueError: two is odd"
    assert 'raise ValueError("two is odd")' in lines(error)[1]
    assert lines(error)[2].startswith("  ranks 0, 1, 3 waited in all_reduce #1 at test_failure.py line ")
    assert "ValueError: two is odd" in error.traceback and "in program" in error.traceback


def test_all_ranks_raise_the_same():
    error = failure(lambda: 1 / 0)
    assert lines(error)[0] == "all 4 ranks raised ZeroDivisionError: division by zero"


def test_uneven_splits_name_who_sends_to_whom():
    def program():
        mine, theirs = ([1, 1], [1, 1]) if rank() == 0 else ([2, 1], [1, 1])
        dist.all_to_all_single(torch.empty(2), torch.ones(sum(mine)), theirs, mine)

    headline = lines(failure(program, world_size=2))[0]
    assert "rank 1 sends 2 to rank 0, which expects 1; rank 0: sends [1, 1], expects [1, 1]" in headline


def test_ranks_that_raise_differently_on_one_line():
    def program():
        raise [ValueError("zero"), KeyError("one")][rank()]

    error = failure(program, world_size=2)
    assert lines(error)[0] == "rank 0 of 2 raised ValueError: zero"
    assert lines(error)[1].startswith("  rank 0 raised at test_failure.py line ")
    assert lines(error)[2].startswith("  rank 1 raised KeyError: 'one' at test_failure.py line ")


def test_a_collective_on_a_thread_of_its_own():
    def program():
        with ThreadPoolExecutor() as pool:
            pool.submit(dist.barrier).result()

    assert "not from a thread of your own" in lines(failure(program))[-1]


def test_a_rank_that_returns_too_early():
    def program():
        dist.all_reduce(torch.ones(2))
        if rank() == 3:
            return
        dist.all_reduce(torch.ones(2))

    error = failure(program)
    assert lines(error)[0] == "rank 3 returned without the all_reduce #2 that ranks 0, 1, 2 wait in"
    assert (error.kind, error.rank) == ("absent", 3)
    assert "look for an `if` or a `return` that keeps rank 3 from it" in str(error)


def test_all_who_returned_too_early_are_named():
    def program():
        if rank() in (0, 3):
            dist.barrier()

    headline = lines(failure(program))[0]
    assert headline == "ranks 1, 2 returned without the barrier #1 that ranks 0, 3 wait in"


def test_a_skipped_call_is_seen_even_when_the_next_one_fits():
    def program():
        x = torch.ones(2)
        if rank() != 1:
            dist.all_reduce(x)
        dist.all_reduce(x)

    error = failure(program, world_size=3)
    assert lines(error)[0] == "rank 1 returned without the all_reduce #2 that ranks 0, 2 wait in"
    assert "all_reduce #1 brought calls from different lines together" in str(error)


def test_different_collectives():
    def program():
        x = torch.ones(2)
        if rank() == 3:
            dist.broadcast(x, 0)
        else:
            dist.all_reduce(x)

    error = failure(program)
    assert error.kind == "mismatch"
    assert lines(error)[0] == (
        "the ranks call different collectives at the same point: ranks 0, 1, 2: all_reduce #1; rank 3: broadcast #1"
    )


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            lambda: dist.all_reduce(torch.ones(4 + rank() % 2)),
            "number of elements in all_reduce #1: ranks 0, 2: float32 [4]; ranks 1, 3: float32 [5]",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2, 3) if rank() else torch.ones(3, 2)),
            "shape in all_reduce #1: rank 0: float32 [3, 2]; ranks 1, 2, 3: float32 [2, 3]",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank() == 1 else torch.float32)),
            "dtype in all_reduce #1: ranks 0, 2, 3: float32 [2]; rank 1: int32 [2]",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank() == 0 else dist.ReduceOp.SUM),
            "reduction in all_reduce #1: rank 0: max; ranks 1, 2, 3: sum",
        ),
        (
            lambda: dist.broadcast(torch.ones(2), src=rank() // 2),
            "root in broadcast #1: ranks 0, 1: root 0; ranks 2, 3: root 1",
        ),
        (
            lambda: dist.reduce_scatter_single(torch.empty(1 + rank() // 3), torch.ones(4 * (1 + rank() // 3))),
            "number of elements in reduce_scatter_single #1: ranks 0, 1, 2: float32 [4]; rank 3: float32 [8]",
        ),
        (
            lambda: dist.all_gather_single(torch.empty(4 * (1 + rank() // 3)), torch.ones(1 + rank() // 3)),
            "number of elements in all_gather_single #1: ranks 0, 1, 2: float32 [1]; rank 3: float32 [2]",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4), None, [2, 0, 1, 1] if rank() == 0 else None),
            "split sizes in all_to_all_single #1",
        ),
        (
            lambda: dist.send(torch.ones(2), 1) if rank() == 0 else rank() == 1 and dist.recv(torch.empty(3), 0),
            "number of elements of the message: rank 0: send float32 [2]; rank 1: recv float32 [3]",
        ),
    ],
)
def test_calls_that_do_not_fit(program, told):
    error = failure(program)
    assert error.kind == "mismatch"
    assert told in lines(error)[0], lines(error)[0]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            lambda: dist.reduce_scatter_single(torch.empty(3), torch.ones(10)),
            "reduce_scatter_single: the input needs a length divisible by the 4 ranks, got 10 elements. Pad it to 12",
        ),
        (
            lambda: dist.all_gather_single(torch.empty(9), torch.ones(2)),
            "all_gather_single: float32 [9] is not 4 times float32 [2]",
        ),
        (
            lambda: dist.all_gather([torch.empty(3)] * 4, torch.ones(2)),
            "all_gather: tensor 0 of the list is float32 [3], and the single tensor is float32 [2]",
        ),
        (
            lambda: dist.scatter(torch.empty(2), [torch.ones(2)] * 3 if rank() == 0 else None, 0),
            "scatter: the list needs one tensor for each of the 4 ranks, got 3",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), torch.ones(5)),
            "all_to_all_single: the 5 rows of the input do not divide by 4 ranks",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4), None, [1, 1, 1, 2]),
            "must hold one number for each of the 4 ranks, and add up to the 4 rows of the input",
        ),
        (lambda: dist.all_reduce(torch.ones(4, device="meta")), "all_reduce: the tensor is on device meta"),
    ],
)
def test_arguments_that_cannot_be_right(program, told):
    assert told in lines(failure(program))[0]


def test_dense_on_one_rank_and_sparse_on_another():
    error = failure(lambda: dist.all_reduce(torch.ones(2, 2) if rank() else torch.ones(2, 2).to_sparse()))
    assert "layout in all_reduce #1: rank 0: sparse_coo; ranks 1, 2, 3: strided" in lines(error)[0]


def test_a_call_that_the_backend_itself_refuses():
    def program():
        dtype = torch.complex128
        dist.all_reduce(torch.ones(2, dtype=dtype), op=dist.ReduceOp.BAND)

    assert failure(program).kind == "raised"


def test_a_source_that_is_no_rank():
    error = failure(lambda: dist.broadcast(torch.ones(2), src=7))
    assert lines(error)[0].startswith(
        "all 4 ranks raised ValueError: broadcast: there is no rank 7 in this group of 4. src and dst are global ranks"
    )


def test_a_source_outside_the_subgroup():
    def program():
        group = dist.new_group([2, 3])
        if rank() >= 2:
            dist.broadcast(torch.ones(1), src=0, group=group)

    assert "src and dst are global ranks, and must belong to the group that you pass" in str(failure(program))


def test_a_collective_of_a_group_that_the_rank_is_not_in():
    def program():
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(2), group=group)

    error = failure(program)
    assert error.kind == "not_in_group" and error.rank in (2, 3)
    assert "called all_reduce on a group that it does not belong to" in lines(error)[0]


def test_a_group_that_a_member_does_not_make():
    def program():
        if rank() != 2:
            dist.new_group([0, 1, 2])

    assert lines(failure(program))[0] == "rank 2 returned without the new_group([0, 1, 2]) that ranks 0, 1 wait in"


def test_an_exception_in_a_backward_hook():
    def program():
        x = torch.ones(2, requires_grad=True)

        def hook(gradient):
            if rank() == 1:
                raise RuntimeError("in the hook")
            dist.all_reduce(gradient)
            return gradient

        y = x * 2
        y.register_hook(hook)
        y.sum().backward()

    error = failure(program)
    assert lines(error)[0] == "rank 1 of 4 raised RuntimeError: in the hook"
    assert "in hook:" in lines(error)[1] and "ranks 0, 2, 3 waited in all_reduce #1" in lines(error)[2]


def test_an_exception_on_one_rank_while_ddp_reduces_on_the_others():
    def program():
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        loss = net(torch.ones(2, 4)).sum()
        if rank() == 0:
            raise ValueError("before backward")
        loss.backward()

    error = failure(program)
    assert lines(error)[0] == "rank 0 of 4 raised ValueError: before backward"


def test_all_send_first():
    def program():
        n = dist.get_world_size()
        dist.send(torch.ones(2), (rank() + 1) % n)
        dist.recv(torch.empty(2), (rank() - 1) % n)

    error = failure(program)
    assert error.kind == "deadlock" and lines(error)[0] == "deadlock: all 4 ranks wait for each other"
    assert "rank 3 waited in send to rank 0" in str(error)
    assert "let some ranks recv first (for example the even ones), or use isend" in str(error)


def test_all_receive_first():
    error = failure(lambda: dist.recv(torch.empty(2), 1 - rank()), world_size=2)
    assert error.kind == "deadlock" and "let some ranks send first" in str(error)


def test_everyone_receives_from_anyone():
    assert failure(lambda: dist.recv(torch.empty(2)), world_size=2).kind == "deadlock"


def test_two_ranks_wait_for_each_other_while_a_third_computes():
    def program():
        if rank() < 2:
            dist.recv(torch.empty(1), 1 - rank())
        else:
            while True:
                torch.ones(100).sum()

    error = failure(program, world_size=3)
    assert lines(error)[0] == "deadlock: ranks 0, 1 wait for each other"


def test_groups_in_another_order():
    def program():
        pair, everyone = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
        if rank() == 0:
            dist.barrier(pair)
        dist.barrier(everyone)
        if rank() == 1:
            dist.barrier(pair)

    error = failure(program, world_size=3)
    assert error.kind == "deadlock" and "rank 0 waited in barrier #1 in group [0, 1]" in str(error)


def test_a_message_that_nobody_receives():
    error = failure(lambda: rank() == 0 and dist.send(torch.ones(1), 1), world_size=2)
    assert lines(error)[0] == "rank 1 returned without the recv that matches the send to rank 1 of rank 0"


def test_an_asynchronous_collective_that_a_rank_never_joins():
    def program():
        if rank() < 2:
            dist.all_reduce(torch.ones(1), async_op=True).wait()

    error = failure(program, world_size=3)
    assert lines(error)[0] == "rank 2 returned without the all_reduce #1 that ranks 0, 1 wait in"


def test_an_exception_in_a_callback_is_told_with_its_line():
    def program():
        done = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        done.then(lambda _: 1 // rank()).wait()

    error = failure(program, world_size=2)
    assert lines(error)[0].endswith("running the callback: ZeroDivisionError: integer division or modulo by zero")
    assert lines(error)[1].endswith("in lambda:  done.then(lambda _: 1 // rank()).wait()")


def test_ranks_that_wait_in_native_code_for_calls_that_do_not_fit():
    error = failure(lambda: dist.all_reduce(torch.ones(4 + rank()), async_op=True).get_future().wait())
    assert error.kind == "mismatch" and all(report.stopped for report in error.ranks)


def raises_before_a_finally():
    try:
        dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))
    finally:
        dist.barrier()


def raises_before_an_except():
    try:
        dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))
    except ValueError:
        dist.broadcast(torch.ones(2), src=0)


def raises_in_a_with():
    with ExitStack() as stack:
        stack.callback(dist.barrier)
        dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))


@pytest.mark.parametrize("backend", ["simulated", "processes"])
@pytest.mark.parametrize("program", [raises_before_a_finally, raises_before_an_except, raises_in_a_with])
def test_what_a_rank_had_raised_before_a_call_that_does_not_fit_is_told(program, backend):
    error = programs.failure(World(3, backend=backend), program)
    assert lines(error)[0].startswith("the ranks call different collectives at the same point: ranks 0, 2: all_reduce")
    [told] = [line for line in lines(error) if line.startswith("  That call of rank 1 was made in an `except`, ")]
    assert ", after ValueError: invalid literal for int() with base 10: 'one' at test_failure.py line " in told
    assert told.endswith('(rank() - 1 or int("one")))')
    assert "Next: look at that exception first: " in str(error) and "If that is meant: bring the calls " in str(error)


def over():
    with suppress(ValueError):
        int("one")
    dist.all_reduce(torch.ones(2 + rank()))


def the_same_on_every_rank():
    try:
        int("one")
    except ValueError:
        dist.all_reduce(torch.ones(2 + rank()))


def the_end_of_a_generator():
    def batches():
        try:
            yield 1
        finally:
            dist.all_reduce(torch.ones(2 + rank()))

    for _ in batches():
        if rank() == 1:
            break


def the_same_with_another_text():
    try:
        raise ValueError(f"of rank {rank()}")
    except ValueError:
        dist.all_reduce(torch.ones(2 + rank()))


def the_same_in_a_subgroup():
    group = dist.new_group([0, 1])
    try:
        int("one")
    except ValueError:
        if rank() < 2:
            dist.all_reduce(torch.ones(2 + rank()), group=group)


@pytest.mark.parametrize(
    "program",
    [over, the_same_on_every_rank, the_same_with_another_text, the_same_in_a_subgroup, the_end_of_a_generator],
)
def test_no_exception_is_blamed_that_led_no_rank_astray(program):
    error = failure(program)
    assert "That call" not in str(error) and "Next: give tensors of the same size on every rank" in str(error)


class Silent(Exception):
    """Whose own code must not be run."""

    @property
    def args(self):
        raise AssertionError

    def __str__(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("exception", "told"),
    [
        (Silent(torch.ones(2)), "Silent"),
        (Silent("a text"), "Silent: a text"),
        (RuntimeError(torch.ones(2)), "RuntimeError"),
        (RuntimeError("\n  two\nlines"), "RuntimeError: two"),
        (FileNotFoundError(2, "No such file", "x"), "FileNotFoundError: [Errno 2] No such file: 'x'"),
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_exception_before_a_call_is_told_without_any_code_of_its_own(exception, told):
    def program():
        try:
            if rank() == 1:
                raise exception
        finally:
            dist.all_reduce(torch.ones(2 + rank()))

    assert f", after {told} at test_failure.py line " in str(failure(program))


@pytest.mark.slow
def test_a_loop_without_end():
    def program():
        while rank() == 1:
            pass
        dist.barrier()

    error = failure(program, timeout=0.5)
    assert error.kind == "timeout" and error.rank == 1
    assert lines(error)[0] == "the run was stopped after its time limit of 0.5 s: rank 1 had not finished"
    assert "ranks 0, 2, 3 waited in barrier #1" in str(error)


@pytest.mark.slow
def test_a_loop_that_catches_everything():
    def program():
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                continue

    assert failure(program, world_size=2, timeout=0.5).kind == "timeout"


@pytest.mark.slow
def test_a_rank_that_sleeps_too_long():
    error = failure(lambda: time.sleep(1000 if rank() == 1 else 0), world_size=2, timeout=0.5)
    assert lines(error)[0] == "the run was stopped after its time limit of 0.5 s: rank 1 had not finished"


@pytest.mark.parametrize(("leave", "status"), [(lambda: sys.exit(3), "3"), (lambda: sys.exit(), "0")])
def test_a_rank_that_exits(leave, status):
    def program():
        if rank() == 1:
            leave()
        dist.barrier()

    error = failure(program)
    assert (error.kind, error.rank) == ("exited", 1)
    assert lines(error)[0].startswith(f"rank 1 of 4 left through sys.exit({status})")


def test_making_the_default_group_again():
    def program():
        dist.init_process_group("gloo", rank=0, world_size=1, timeout=timedelta(seconds=1))

    assert "World.run has made the default group before your function starts" in str(failure(program))


def test_a_parameter_that_gets_no_gradient_under_ddp():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    def program():
        net = torch.nn.parallel.DistributedDataParallel(Half())
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()

    assert "Some parameters got no gradient on this rank" in str(failure(program, world_size=2))


def test_interrupting_stops_every_rank():
    def program():
        while rank() == 0:
            pass
        dist.barrier()

    world = World(3, timeout=20)
    threading.Timer(0.3, _thread.interrupt_main).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted") as caught:
        world.run(program)
    assert time.monotonic() - started < world.timeout / 2
    assert "ranks 1, 2 waited in barrier #1" in str(caught.value)
    assert "\n".join(caught.value._render_traceback_()).startswith("KeyboardInterrupt: the run was interrupted")
    assert works(world)


def test_an_interrupt_while_the_ranks_are_being_started_stops_those_that_are(monkeypatch):
    start = Rank.start

    def interrupted(rank):
        if rank.rank == 1:
            _thread.interrupt_main()
        start(rank)

    world = World(3, timeout=20)
    with monkeypatch.context() as patch:
        patch.setattr(Rank, "start", interrupted)
        with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
            world.run(lambda: time.sleep(0.5))
    assert works(world)


def test_what_ranks_printed_before_the_failure_is_shown(capsys):
    def program():
        print("so far")
        raise ValueError

    error = failure(program, world_size=2)
    assert error.output == ("so far\n", "so far\n")
    assert "[rank 1] so far" in capsys.readouterr().out


def test_the_error_can_be_pickled():
    import pickle

    error = pickle.loads(pickle.dumps(failure(lambda: 1 / 0, world_size=2)))
    assert error.kind == "raised" and len(error.ranks) == 2 and "ZeroDivisionError" in error.traceback


def test_ipython_shows_the_message_and_no_frames_of_ours():
    rendered = "\n".join(failure(lambda: 1 / 0, world_size=2)._render_traceback_())
    assert rendered.startswith("RankError: both ranks raised ZeroDivisionError")
    assert "course_lib" not in rendered and ".traceback" in rendered


def test_ipython_shows_no_line_that_a_notebook_would_break():
    def program():
        raise ValueError(" ".join(["word"] * 60))

    rendered = "\n".join(failure(program, world_size=2)._render_traceback_())
    assert rendered.count("word") >= 60 and max(map(len, rendered.split("\n"))) <= 88


def test_a_stop_that_comes_in_a_finalizer_is_not_told():
    class Slow:
        def __del__(self):
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                pass

    def program():
        Slow()
        while True:
            pass

    error = failure(program, world_size=1, timeout=0.2)
    assert (error.kind, error.output) == ("timeout", ("",))


@pytest.mark.parametrize("backend", ["simulated", "dryrun"])
def test_a_stop_in_the_middle_of_an_import_waits_for_its_end(backend, tmp_path, monkeypatch):
    name = f"slow_{backend}"
    programs.slow_package(tmp_path / name, seconds=0.5)
    monkeypatch.syspath_prepend(tmp_path)

    def program():
        return importlib.import_module(name).part.VALUE

    with pytest.raises(RankError) as caught:
        World(2, backend=backend, timeout=0.2).run(program)
    assert caught.value.kind == "timeout" and "could not be interrupted" not in str(caught.value)
    assert set(World(2, backend=backend).run(program)) == {3}


def test_code_that_a_library_executes_is_no_line_of_the_learners():
    variables = {}
    exec("import sys; frame = sys._getframe()", variables)
    source_line = learner_code.source_line_on(variables["frame"])
    assert (
        source_line is not None
        and source_line.function == "test_code_that_a_library_executes_is_no_line_of_the_learners"
    )


def test_a_rank_that_has_returned_is_at_no_line() -> None:
    def leave_early() -> None:
        if dist.get_rank() != 0:
            dist.all_reduce(torch.ones(1))

    for _ in range(5):  # the rank that left may be looked at while it is still putting its things in order
        with pytest.raises(RankError) as failed:
            World(3).run(leave_early)
        assert "\n  rank 0 returned\n" in str(failed.value)


@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_a_rank_that_waits_for_a_functional_collective_stops_there(backend, tmp_path, monkeypatch) -> None:
    for module in (run_loop, simulated_backend):  # a rank may be slow to come to its wait
        monkeypatch.setattr(module, "SETTLE", 10.0)

    def program() -> None:
        issued = tmp_path / "issued"
        if rank() == 0:
            while not issued.exists():
                time.sleep(0.01)
            raise ValueError
        parts = funcol.all_gather_single(torch.ones(2), 0, dist.group.WORLD)
        issued.touch()
        funcol.wait_tensor(parts)
        (tmp_path / "went on").touch()

    error = programs.failure(World(2, backend=backend), program)
    assert "\n  rank 1 waited in all_gather_single_coalesced #1 at test_failure.py line " in str(error)
    assert not (tmp_path / "went on").exists()
