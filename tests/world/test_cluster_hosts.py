"""Two hosts in network namespaces, each with a clock of its own, and a third for the kernel."""

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World
from course_lib.world.cluster import remote
from tests.world.engines import Engines

ADDRESSES = {"kernel": "10.77.0.1", "left": "10.77.0.2", "right": "10.77.0.3"}
CLONE_NEWNET = 0x40000000


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=20)


def why_not() -> str:
    """Why this machine cannot be several; empty where it can."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "there is no `ip`, or no `unshare`, here"
    try:
        sh(f"ip netns add {namespace('trial')}")
        sh(f"ip netns delete {namespace('trial')}")
        sh("unshare --net --time --fork --monotonic 1 true")
    except subprocess.CalledProcessError as error:
        return f"namespaces cannot be made here: {error.stderr.strip()}"
    return ""


def namespace(name: str) -> str:
    return f"course-{os.getpid()}-{name}"


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Be on that host: this thread, and whatever it starts."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with open(path) as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), path)

    home = f"/proc/self/task/{threading.get_native_id()}/ns/net"
    with open(home) as file:
        enter(f"/run/netns/{namespace(name)}")
        try:
            yield
        finally:
            libc.setns(file.fileno(), CLONE_NEWNET)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ExitStack() as stack:
        for name in ADDRESSES:
            sh(f"ip netns add {namespace(name)}")
            stack.callback(sh, f"ip netns delete {namespace(name)}")
            sh(f"ip -n {namespace(name)} link set lo up")
        kernel = namespace("kernel")
        sh(f"ip -n {kernel} link add switch type bridge")
        sh(f"ip -n {kernel} address add {ADDRESSES['kernel']}/24 dev switch")
        sh(f"ip -n {kernel} link set switch up")
        for name in ("left", "right"):
            sh(f"ip -n {kernel} link add {name} type veth peer name eth-{name} netns {namespace(name)}")
            sh(f"ip -n {kernel} link set {name} master switch up")
            sh(f"ip -n {namespace(name)} address add {ADDRESSES[name]}/24 dev eth-{name}")
            sh(f"ip -n {namespace(name)} link set eth-{name} up")
        stack.enter_context(inside("kernel"))
        prefix = {
            name: f"ip netns exec {namespace(name)} unshare --time --monotonic {ahead} --fork --kill-child".split()
            for name, ahead in {"left": 5000, "right": 90000}.items()
        }
        engines = Engines(tmp_path_factory.mktemp("hosts"), ADDRESSES["kernel"], prefix)
        stack.callback(engines.close)
        engines.add("left", "right")
        yield engines


@pytest.fixture
def world(engines: Engines):
    return lambda world_size: World(world_size, backend="processes", cluster=engines.client)


@contextmanager
def when_there_is(path: Path, do) -> Iterator[None]:
    """Call `do` half a second after there is such a file, in the block."""
    over = threading.Event()

    def wait() -> None:
        while not over.wait(0.5):
            if path.exists():
                return do()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_hosts_reach_each_other_and_their_clocks_are_compared(world) -> None:
    def program():
        dist.barrier()
        listening = {one.laddr.ip for one in psutil.net_connections("inet") if one.status == psutil.CONN_LISTEN}
        return os.environ["COURSE_HOST"], os.environ["NCCL_SOCKET_IFNAME"], time.perf_counter(), listening

    run = world(4).run(program)
    assert [(host, interface) for host, interface, *_ in run] == [("left", "eth-left")] * 2 + [
        ("right", "eth-right")
    ] * 2
    assert run[2][2] - run[0][2] == pytest.approx(85000, abs=5)
    for host, _, _, listening in run:
        assert listening == {"127.0.0.1", ADDRESSES[host]}
    matched = [calls[-1].matched for calls in run.calls]
    assert max(matched) - min(matched) < 0.1
    for timeline in run.timeline:
        assert 0 < timeline.start < timeline.end < 60


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_lost(world, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(remote, "ANSWER", 4.0)

    def program() -> None:
        (tmp_path / "running").touch()
        while True:
            dist.all_reduce(torch.ones(10))

    cut = f"ip -n {namespace('kernel')} link set right down"
    with when_there_is(tmp_path / "running", lambda: sh(cut)), pytest.raises(RankError) as caught:
        world(4).run(program)
    assert "the machine 'right' is lost, and every rank on it: its engine " in str(caught.value)
    assert "has not answered for 4 s\n" in str(caught.value)
    assert [report.state == "died" for report in caught.value.ranks] == [False, False, True, True]
    assert list(world(2).run(lambda: os.environ["COURSE_HOST"])) == ["left", "left"]
