"""Ranks that are processes give what simulated ranks give."""

import os
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import CourseError, World
from course_lib.world.processes.pool import pool
from course_lib.world.rank_threads.printing import Lines


def processes(world_size: int, **options) -> World:
    return World(world_size, backend="processes", **options)


def rank() -> int:
    return dist.get_rank()


def test_each_rank_is_a_process_of_its_own_which_the_next_world_uses_again() -> None:
    first, second = list(processes(4).run(os.getpid)), list(processes(2).run(os.getpid))
    assert len({*first, os.getpid()}) == 5
    assert second == first[:2]


def test_a_part_of_a_tensor_comes_back_without_the_rest() -> None:
    run = processes(1).run(lambda: torch.arange(1_000_000)[5])
    assert run[0].item() == 5 and run[0].untyped_storage().nbytes() == 8


def test_what_a_function_leaves_in_a_module_is_there_in_the_next_run() -> None:
    def remember() -> None:
        sys.modules["math"].left_by_a_rank = rank()

    processes(2).run(remember)
    assert list(processes(2).run(lambda: sys.modules["math"].left_by_a_rank)) == [0, 1]
    assert not hasattr(sys.modules["math"], "left_by_a_rank")


def test_a_file_that_a_function_leaves_open_is_written(tmp_path) -> None:
    def program() -> None:
        left = [open(tmp_path / "log", "w")]  # noqa: SIM115
        left.append(left)  # only the garbage collector would close it
        left[0].write("step 1\n")

    World(1, backend="processes").run(program)
    assert (tmp_path / "log").read_text() == "step 1\n"


def test_a_child_that_a_function_forks_ends_with_the_function() -> None:
    def program() -> int:
        child = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else sys.exit(3)

    assert list(World(1, backend="processes").run(program)) == [3]


def test_output_is_kept_by_rank_and_shown_in_their_order(capsys, monkeypatch) -> None:
    monkeypatch.setattr(Lines, "every", 60.0)  # a busy machine's run would have more than one update

    def chat() -> None:
        print("hello")
        dist.barrier()
        os.write(1, f"from {rank()}".encode())
        print("!", file=sys.stderr)

    run = processes(2).run(chat)
    assert run.output == ("hello\nfrom 0!\n", "hello\nfrom 1!\n")
    assert capsys.readouterr().out == "[rank 0] hello\n[rank 0] from 0!\n[rank 1] hello\n[rank 1] from 1!\n"


def test_output_is_shown_while_ranks_run(capsys, tmp_path) -> None:
    shown, end = [], tmp_path / "end"

    def look() -> None:
        while "waiting for you" not in "".join(shown):
            shown.append(capsys.readouterr().out)
            time.sleep(0.05)
        end.touch()

    def program(path) -> str:
        print("waiting for you")
        while not os.path.exists(path):
            time.sleep(0.01)
        return "seen"

    thread = threading.Thread(target=look)
    thread.start()
    assert list(processes(1, timeout=20).run(program, str(end))) == ["seen"]
    thread.join()


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(CourseError, match="variable 'lock', a lock, cannot be copied"):
        processes(1).run(lambda: lock.acquire())


def test_a_result_that_cannot_travel_is_told_where_it_is_used() -> None:
    run = processes(2).run(lambda: DistributedDataParallel(torch.nn.Linear(4, 4)))
    assert run.memory[0].by_category["parameters"] == 80
    assert repr(run[1]) == "<a DistributedDataParallel, which stayed in the process of rank 1>"
    with pytest.raises(CourseError, match=r"a DistributedDataParallel, stayed in its process .* has no \.module here"):
        _ = run[1].module


@pytest.mark.parametrize(
    ("world_size", "options", "told"),
    [
        (0, {}, "a world of processes has 1 to 64 ranks"),
        (65, {}, "a world of processes has 1 to 64 ranks"),
        (2, {"rank": 0}, r"only a dry run shows one rank out of many; the backend here is 'processes'"),
        (2, {"share_gpu": True}, r"only the backend 'nccl' has GPUs to share"),
    ],
)
def test_a_world_that_cannot_be_is_refused(world_size, options, told) -> None:
    with pytest.raises(CourseError, match=told):
        processes(world_size, **options)


def test_the_backend_comes_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("COURSE_WORLD", "processes")
    assert World(2).backend == "processes"
    monkeypatch.setenv("COURSE_WORLD", "processes:8")
    with pytest.raises(CourseError, match="there is no such backend here"):
        World(2)


def test_nothing_listens_but_on_the_loopback() -> None:
    processes(3).run(dist.barrier)
    server = psutil.Process(pool.processes[0].process.pid).parent()
    sockets = [socket for one in (server, *server.children()) for socket in one.net_connections("inet")]
    listening = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3 and set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("found", "world_size", "options", "told"),
    [
        (0, 1, {}, r"torch sees no GPU on this machine .* 'simulated' or 'processes'"),
        (2, 4, {}, r"World\(4, backend='nccl'\): NCCL wants a GPU for every rank, and 2 can be used here\. "),
        (8, 4, {"backend": "nccl:2"}, r"2 can be used here\. Take fewer ranks, World\(2"),
    ],
)
def test_too_few_gpus_are_refused_with_the_ways_out(monkeypatch, found, world_size, options, told) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(CourseError, match=told):
        World(world_size, **{"backend": "nccl"} | options)


def test_ranks_that_share_gpus_take_turns_on_them(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    world = World(5, backend="nccl", share_gpu=True)
    assert [place.device for place in world._backend.places] == [0, 1, 0, 1, 0] and not world._backend.nccl
