"""Worlds over several machines: here, two engines that go by two names."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from course_lib import CourseError, RankError, World
from course_lib.world.cluster.backend import Cluster, check
from course_lib.world.processes.backend import Processes
from course_lib.world.processes.placement import LOOPBACK, Machine, a_gpu_each, evenly
from course_lib.world.processes.protocol import Job
from course_lib.world.processes.run_loop import RunLoop
from course_lib.world.rank_threads.printing import Lines
from tests.world.engines import ROOT, Engines
from tests.world.programs import total


def rank() -> int:
    return dist.get_rank()


@pytest.fixture
def world(engines: Engines):
    return lambda world_size, **options: World(world_size, backend="processes", cluster=engines.client, **options)


def where() -> tuple[str, ...]:
    names = ("COURSE_HOST", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    return tuple(os.environ[name] for name in names)


def test_ranks_are_placed_in_blocks_and_told_so(world) -> None:
    assert list(world(3).run(where)) == [
        ("left", "0", "0", "2", "0", "2"),
        ("left", "1", "1", "2", "0", "2"),
        ("right", "2", "0", "1", "1", "2"),
    ]
    assert list(world(1).run(where)) == [("left", "0", "0", "1", "0", "1")]


def test_a_rank_keeps_its_machines_environment_but_takes_what_configures_torch(world, monkeypatch) -> None:
    monkeypatch.setenv("TORCH_OF_THE_KERNEL", "1")
    monkeypatch.setenv("OTHER_OF_THE_KERNEL", "1")
    names = ("TORCH_OF_THE_KERNEL", "OTHER_OF_THE_KERNEL", "IPYTHONDIR")
    run = world(2).run(lambda: [os.environ.get(name) is not None for name in names])
    assert list(run) == [[True, False, True]] * 2


@pytest.mark.slow
def test_node_groups_come_from_where_the_ranks_are(world) -> None:
    def program():
        size = int(os.environ["LOCAL_WORLD_SIZE"])
        mesh = init_device_mesh("cpu", (dist.get_world_size() // size, size), mesh_dim_names=("node", "local"))
        hosts: list = [None] * size
        dist.all_gather_object(hosts, os.environ["COURSE_HOST"], group=mesh["local"].get_group())
        return hosts

    assert list(world(4).run(program)) == [["left"] * 2] * 2 + [["right"] * 2] * 2


@pytest.mark.slow
def test_what_was_printed_is_there_when_its_rank_is_done_however_late_the_kernel_reads(world, hold_up) -> None:
    def program() -> None:
        print("x" * 149_999)  # two pipes and a half

    world(2).run(program)
    hold_up(1)
    assert [len(text) for text in world(2).run(program).output] == [150_000] * 2


def test_nothing_listens_but_on_the_loopback(world, engines) -> None:
    world(4).run(total)
    of_engines = [psutil.Process(engines.running[name].pid) for name in ("left", "right")]
    processes = [one for engine in of_engines for one in (engine, *engine.children(recursive=True))]
    sockets = [socket for one in processes for socket in one.net_connections("inet")]
    listening = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert len(processes) >= 8 and len(listening) >= 5 and set(listening) == {LOOPBACK}


@pytest.mark.slow
def test_a_lost_machine_is_named_and_others_go_on_until_it_is_back(world, engines, capsys, tmp_path) -> None:
    begun = tmp_path / "begun"

    def program() -> None:
        while True:
            dist.all_reduce(torch.ones(100_000))
            begun.touch()

    def kill_when_begun() -> None:
        deadline = time.monotonic() + 30
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        engines.kill("right")

    killer = threading.Thread(target=kill_when_begun)
    killer.start()
    with pytest.raises(RankError) as caught:
        world(4, timeout=40).run(program)
    killer.join()
    text = str(caught.value)
    assert " of 4 died: the machine 'right' is lost, and every rank on it: its engine " in text
    assert "Next: go on without that machine: a world of fewer ranks, from the last checkpoint." in text
    assert [report.state == "died" for report in caught.value.ranks] == [False, False, True, True]

    assert [host for host, *_ in world(2).run(where)] == ["left", "left"]
    assert "[world] the machine 'right' is lost: its engine " in capsys.readouterr().out
    engines.add("right")
    assert [host for host, *_ in world(2).run(where)] == ["left", "right"]


KERNEL = """
import os, sys, time, ipyparallel
from course_lib import World
from course_lib.world.cluster import backend as cluster
cluster.SILENCE = 1.5
world = World(2, backend="processes", cluster=ipyparallel.Client(sys.argv[1]))
print(*world.run(os.getpid), flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_no_rank_outlives_a_kernel_that_is_killed(engines) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KERNEL, engines.file], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as kernel:
        assert kernel.stdout is not None
        pids = set(map(int, kernel.stdout.readline().split()))
        assert len(pids) == 2
        time.sleep(2)  # it is there all that time, though no run is on
        assert all(map(psutil.pid_exists, pids))
        kernel.kill()
    deadline = time.monotonic() + 60  # they end by themselves, however long a busy machine needs for it
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))


def test_a_rank_counts_from_the_start_of_the_run_on_its_own_machines_clock(far_end) -> None:
    far_end.handle.process.clock_ahead = 1000.0
    job = Job(**dict.fromkeys(Job.__annotations__) | {"started": 5.0})
    RunLoop([far_end.handle], 7, ["interrupt"], Lines()).run([job], 10.0)
    request, sent = far_end.wire.recv()
    assert (request, sent.started) == ("run", 1005.0)


LEFT, RIGHT = (
    Machine(
        name=name,
        hostname=name,
        address=address,
        interface="eth0",
        gpus=4,
        threads=8,
        versions=("3.11", "2.13.0"),
    )
    for name, address in (("left", "10.0.0.1"), ("right", "10.0.0.2"))
)


def test_ranks_with_a_gpu_each_fill_one_machine_after_the_other() -> None:
    places = a_gpu_each(6, [LEFT, RIGHT], limit=None)
    assert [(place.machine, place.device) for place in places] == [
        *(("left", device) for device in range(4)),
        *(("right", device) for device in range(2)),
    ]
    assert {place.nodes for place in a_gpu_each(4, [LEFT, RIGHT], limit=None)} == {1}
    assert [place.device for place in evenly(6, [LEFT, RIGHT], limit=2)] == [0, 1, 0, 0, 1, 0]
    assert [place.device for place in evenly(3, [LEFT, RIGHT])] == [None] * 3
    with pytest.raises(CourseError, match=r"6 can be used here\. Take fewer ranks, World\(6"):
        a_gpu_each(7, [LEFT, RIGHT], limit=3)


def test_machines_that_cannot_work_together_are_refused() -> None:
    versions = Machine.here(LOOPBACK).versions
    left, right = replace(LEFT, versions=versions), replace(RIGHT, versions=versions)
    check([left, right])
    with pytest.raises(CourseError, match=r"right has Python 3\.9 and torch 2\.0\.0, and this kernel Python "):
        check([left, replace(right, versions=("3.9", "2.0.0"))])
    with pytest.raises(CourseError, match=r"right reached the controller through the loopback.*GLOO_SOCKET_IFNAME"):
        check([left, replace(right, address=LOOPBACK)])
    check([replace(one, address=LOOPBACK, hostname="one") for one in (left, right)])


def test_no_gpu_on_the_machines_is_told(engines) -> None:
    with pytest.raises(CourseError, match="torch sees no GPU on left or right"):
        World(2, backend="nccl", cluster=engines.client)


def test_a_cluster_without_engines_is_told() -> None:
    with pytest.raises(CourseError, match=r"the cluster has no engine\. Start one on each machine"):
        Processes(2, pool=Cluster(SimpleNamespace(ids=[])))
