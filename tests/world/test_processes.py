"""Ranks that are processes give what simulated ranks give."""

import importlib
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import CourseError, World, zero
from course_lib.world.processes.pool import pool
from tests.world.programs import train


def processes(world_size: int, **options) -> World:
    return World(world_size, backend="processes", **options)


def rank() -> int:
    return dist.get_rank()


def test_each_rank_is_a_process_of_its_own_which_the_next_world_uses_again():
    first, second = list(processes(4).run(os.getpid)), list(processes(2).run(os.getpid))
    assert len({*first, os.getpid()}) == 5
    assert second == first[:2]


def test_arguments_closures_and_results():
    offset = torch.arange(3)

    def add(x, *, scale):
        return {"sum": scale * x + offset + rank(), "size": dist.get_world_size()}

    run = processes(2).run(add, 3, scale=2)
    assert run[1]["sum"].tolist() == [7, 8, 9] and run[0]["size"] == 2


def test_an_instance_of_a_class_of_the_notebook_is_still_one_when_it_comes_back():
    class Point:
        def __init__(self, x):
            self.x = x

    run = processes(2).run(lambda: Point(rank()))
    assert all(isinstance(point, Point) for point in run) and run[1].x == 1


def test_a_part_of_a_tensor_comes_back_without_the_rest():
    run = processes(1).run(lambda: torch.arange(1_000_000)[5])
    assert run[0].item() == 5 and run[0].untyped_storage().nbytes() == 8


def draws():
    return (
        torch.randn(3).tolist(),
        torch.nn.functional.dropout(torch.ones(8)).tolist(),
        random.random(),
        np.random.rand(2).tolist(),
        os.environ["RANK"],
        os.environ["WORLD_SIZE"],
    )


def test_random_streams_and_variables_are_those_of_simulated_ranks_in_every_run():
    simulated = list(World(3, backend="simulated").run(draws))
    assert [list(processes(3).run(draws)) for _ in range(2)] == [simulated, simulated]


@pytest.mark.parametrize("stage", [zero.Stage2, zero.Stage3])
def test_a_training_step_gives_the_same_numbers_bytes_and_calls_as_on_simulated_ranks(stage):
    one, other = World(3, backend="simulated").run(train, stage), processes(3).run(train, stage)
    assert list(one) == list(other)
    for of in ("memory", "comm", "calls", "timeline"):
        assert len(getattr(other, of)) == 3
    for r in range(3):
        assert other.memory[r].by_category == one.memory[r].by_category
        assert other.memory[r].peak_bytes == one.memory[r].peak_bytes
        assert other.memory[r].marks["after backward"].by_category == one.memory[r].marks["after backward"].by_category
        assert other.comm[r].sent_bytes == one.comm[r].sent_bytes > 0
        assert [call.op for call in other.calls[r]] == [call.op for call in one.calls[r]]
        assert all(call.times.issued <= call.times.matched <= call.times.done for call in other.calls[r])
    assert other.comm_matrix == one.comm_matrix


def test_torchs_own_data_parallel_runs():
    def program():
        torch.manual_seed(rank())
        net = DistributedDataParallel(torch.nn.Linear(4, 4))
        net(torch.ones(2, 4) * rank()).sum().backward()
        return net.module.weight.grad.tolist()

    assert list(processes(3).run(program)) == list(World(3, backend="simulated").run(program))


def test_messages_subgroups_and_handles():
    def program():
        pair = dist.new_group([0, 2])
        x = torch.tensor([float(rank())])
        if rank() in (0, 2):
            dist.all_reduce(x, group=pair)
        received = torch.empty(1)
        receive = dist.irecv(received, (rank() - 1) % 3)
        dist.isend(x, (rank() + 1) % 3).wait()
        receive.wait()
        handle = dist.all_reduce(x, async_op=True)
        handle.wait()
        gathered = [None] * 3
        dist.all_gather_object(gathered, {"rank": rank()})
        return x.item(), received.item(), gathered

    for _ in range(2):  # a second time, with the group names of the first
        run = processes(3).run(program)
        assert [(x, received) for x, received, _ in run] == [(5, 2), (5, 2), (5, 1)]
        assert run[1][2] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_a_run_that_destroys_the_default_group_leaves_the_next_one_its_own():
    assert list(processes(2).run(dist.destroy_process_group)) == [None, None]
    assert list(processes(2).run(dist.get_world_size)) == [2, 2]


def test_what_a_function_leaves_in_a_module_is_there_in_the_next_run():
    def remember():
        sys.modules["math"].left_by_a_rank = rank()

    processes(2).run(remember)
    assert list(processes(2).run(lambda: sys.modules["math"].left_by_a_rank)) == [0, 1]
    assert not hasattr(sys.modules["math"], "left_by_a_rank")


def test_a_module_that_the_learner_has_changed_is_imported_again(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "mine_to_change.py"
    for number in (1, 22):
        module.write_text(f"def answer():\n    return {number}\n")
        os.utime(module, (number, number))
        importlib.invalidate_caches()
        sys.modules.pop("mine_to_change", None)
        assert list(processes(2).run(importlib.import_module("mine_to_change").answer)) == [number] * 2


def test_two_threads_of_the_kernel_run_one_after_the_other():
    with ThreadPoolExecutor(2) as threads:
        runs = threads.map(lambda n: list(processes(n).run(dist.get_world_size)), [2, 3])
    assert list(runs) == [[2, 2], [3, 3, 3]]


def test_output_is_kept_by_rank_and_shown_in_their_order(capsys):
    def chat():
        print("hello")
        dist.barrier()
        os.write(1, f"from {rank()}".encode())
        print("!", file=sys.stderr)

    run = processes(2).run(chat)
    assert run.output == ("hello\nfrom 0!\n", "hello\nfrom 1!\n")
    assert capsys.readouterr().out == "[rank 0] hello\n[rank 0] from 0!\n[rank 1] hello\n[rank 1] from 1!\n"


def test_output_is_shown_while_ranks_run(capsys, tmp_path):
    shown, end = [], tmp_path / "end"

    def look():
        while "waiting for you" not in "".join(shown):
            shown.append(capsys.readouterr().out)
            time.sleep(0.05)
        end.touch()

    def program(path):
        print("waiting for you")
        while not os.path.exists(path):
            time.sleep(0.01)
        return "seen"

    thread = threading.Thread(target=look)
    thread.start()
    assert list(processes(1, timeout=20).run(program, str(end))) == ["seen"]
    thread.join()


def test_output_without_end_is_cut():
    def flood():
        for _ in range(3000):
            print("x" * 999)

    output = processes(1).run(flood).output[0]
    assert len(output) < 1_100_000 and output.endswith("2000000 more characters were not kept]\n")


def test_a_large_captured_variable_is_named():
    weight = torch.zeros(3_000_000)
    with pytest.warns(UserWarning, match=r"every rank is sent 12,.* for variable 'weight', again in each run"):
        processes(1).run(lambda: weight.sum().item())


def test_what_cannot_travel_is_named():
    lock = threading.Lock()
    with pytest.raises(CourseError, match="variable 'lock', a lock, cannot be copied"):
        processes(1).run(lambda: lock.acquire())


def test_a_result_that_cannot_travel_is_told_where_it_is_used():
    run = processes(2).run(lambda: DistributedDataParallel(torch.nn.Linear(4, 4)))
    assert run.memory[0].by_category["parameters"] == 80
    assert repr(run[1]) == "<a DistributedDataParallel, which stayed in the process of rank 1>"
    with pytest.raises(CourseError, match=r"a DistributedDataParallel, stayed in its process .* has no \.module here"):
        _ = run[1].module


def test_a_tensor_that_needs_a_gradient_comes_back_without_its_hooks():
    def program():
        weight = torch.ones(3, requires_grad=True)
        output = weight * 2
        output.register_hook(lambda gradient: None)
        return weight, output

    run = processes(1).run(program)
    assert run.output == ("",) and [tensor.requires_grad for tensor in run[0]] == [True, True]


def test_a_rank_cannot_start_a_world():
    with pytest.raises(CourseError, match=r"rank 0 called World.run: a rank cannot start a world of its own"):
        processes(1).run(lambda: World(2).run(rank))


@pytest.mark.parametrize(
    ("world_size", "options", "told"),
    [
        (0, {}, "a world of processes has 1 to 64 ranks"),
        (65, {}, "a world of processes has 1 to 64 ranks"),
        (2, {"rank": 0}, r"only a dry run shows one rank out of many; the backend here is 'processes'"),
        (2, {"share_gpu": True}, r"only the backend 'nccl' has GPUs to share"),
    ],
)
def test_a_world_that_cannot_be_is_refused(world_size, options, told):
    with pytest.raises(CourseError, match=told):
        processes(world_size, **options)


def test_the_backend_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("COURSE_WORLD", "processes")
    assert World(2).backend == "processes"
    monkeypatch.setenv("COURSE_WORLD", "processes:8")
    with pytest.raises(CourseError, match="there is no such backend here"):
        World(2)


def test_nothing_listens_but_on_the_loopback():
    processes(3).run(dist.barrier)
    server = psutil.Process(pool.source.server_pid)
    sockets = [socket for one in (server, *server.children()) for socket in one.net_connections("inet")]
    listening = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3 and set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("found", "world_size", "options", "told"),
    [
        (0, 1, {}, r"torch sees no GPU on this machine .* say backend='processes'"),
        (2, 4, {}, r"World\(4, backend='nccl'\): NCCL wants a GPU for every rank; this machine has 2\. Take fewer"),
        (8, 4, {"backend": "nccl:2"}, r"this machine has 8, 2 of them to be used\. Take fewer ranks, World\(2"),
        (4, 4, {}, r"this build of torch \(.*\) has no NCCL"),
    ],
)
def test_too_few_gpus_are_refused_with_the_ways_out(monkeypatch, found, world_size, options, told):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(CourseError, match=told):
        World(world_size, **{"backend": "nccl"} | options)


def test_ranks_that_share_gpus_take_turns_on_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    world = World(5, backend="nccl", share_gpu=True)
    assert [place.device for place in world._backend.places] == [0, 1, 0, 1, 0] and not world._backend.nccl
