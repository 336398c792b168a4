"""What only simulated ranks do, which are threads of the kernel."""

import _thread
import functools
import gc
import importlib
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from course_lib import RankError, World
from course_lib.world.collectives.local_call import LocalCall
from course_lib.world.collectives.matching import Matching
from course_lib.world.collectives.recorder import CallRecorder
from course_lib.world.rank_threads import interrupts
from course_lib.world.rank_threads.coordinator import ThreadCoordinator
from course_lib.world.rank_threads.process_state import collect_garbage
from course_lib.world.simulated import Rank
from tests.world import programs
from tests.world.programs import failure, lines, slow_package, total


def test_64_ranks_run_where_1024_files_are_allowed_at_first() -> None:
    """Connections count as open files. gloo would end this process if it may not have so many."""

    def two_groups() -> list[int]:
        return [dist.get_world_size(dist.new_group(list(ranks))) for ranks in (range(32), range(32, 64))]

    resource = pytest.importorskip("resource", reason="only POSIX limits open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 8000:
        pytest.skip("this machine allows no 8,000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        assert World(64).run(two_groups)[40] == [-1, 32]
        assert list(World(64).run(total)) == [64.0] * 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ranks_share_the_cores_and_give_them_back() -> None:
    def threads_elsewhere() -> int:
        with ThreadPoolExecutor() as pool:
            return pool.submit(torch.get_num_threads).result()

    before = torch.get_num_threads(), threads_elsewhere()
    assert list(World(3).run(torch.get_num_threads)) == [max(1, before[0] // 3)] * 3
    assert (torch.get_num_threads(), threads_elsewhere()) == before


def test_a_collective_on_a_thread_of_its_own() -> None:
    def program() -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(dist.barrier).result()

    assert "not from a thread of your own" in lines(failure(World(4), program))[-1]


def test_an_interrupt_while_the_ranks_are_being_started_stops_those_that_are(monkeypatch) -> None:
    start = Rank.start

    def interrupted(rank) -> None:
        if rank.rank == 1:
            _thread.interrupt_main()
        start(rank)

    world = World(3, timeout=20)
    with monkeypatch.context() as patch:
        patch.setattr(Rank, "start", interrupted)
        with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
            world.run(lambda: time.sleep(0.5))
    assert list(world.run(total)) == [3.0] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_second_interrupt_ends_a_finalizer_that_holds_the_main_thread(monkeypatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.2)
    interrupt = functools.partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT)

    class Prefetcher:
        def __del__(self) -> None:
            assert threading.current_thread() is threading.main_thread()  # else the interrupts would end the tests
            for seconds in (0.05, 1.0):
                threading.Timer(seconds, interrupt).start()
            time.sleep(60)

    def program() -> None:
        loader = Prefetcher() if dist.get_rank() == 1 else None
        dist.barrier()
        if loader is not None:
            raise ValueError("bad batch")
        dist.barrier()

    gc.disable()  # while it runs by itself, any rank may come to the finalizer
    try:
        began = time.monotonic()
        error = failure(World(2), program)
        assert error.kind == "raised" and "bad batch" in str(error) and time.monotonic() - began < 50
    finally:
        gc.enable()
    assert list(World(2).run(total)) == [2.0, 2.0]


def test_a_stop_in_the_middle_of_an_import_waits_for_its_end(tmp_path, monkeypatch) -> None:
    slow_package(tmp_path / "slow_in_a_thread", seconds=0.5)
    monkeypatch.syspath_prepend(tmp_path)

    def program():
        return importlib.import_module("slow_in_a_thread").part.VALUE

    with pytest.raises(RankError) as caught:
        World(2, timeout=0.2).run(program)
    assert caught.value.kind == "timeout" and "could not be interrupted" not in str(caught.value)
    assert list(World(2).run(program)) == [3, 3]


def test_the_coordinator_does_not_keep_a_call_that_it_has_delivered() -> None:
    calls: list[weakref.ref[LocalCall]] = []
    gone_at: list[list[bool]] = []

    class Watched(LocalCall):
        def deliver(self, error) -> None:
            gone_at.append([call() is None for call in calls])

    coordinator = ThreadCoordinator(3)
    for number in range(3):
        progress = CallRecorder(number, 0.0, threading.current_thread()).new_group("world", [0, 1, 2])
        local = Watched(progress=progress, execute=lambda: None)
        calls.append(weakref.ref(local))
        coordinator.called(local)
    assert gone_at == [[False, False, False], [False, False, False], [False, True, False]]  # this frame holds the last


def test_a_loop_that_catches_everything_is_left_behind(monkeypatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(programs, "over", over, raising=False)  # ranks share modules

    def program() -> None:
        while True:
            try:
                while not programs.over.is_set():
                    time.sleep(0.01)
                return
            except BaseException:
                continue

    world = World(2, timeout=0.5)
    with pytest.raises(RankError, match="could not be interrupted") as caught:
        world.run(program)
    assert caught.value.kind == "timeout"
    assert list(World(2).run(total)) == [2.0, 2.0]
    over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("rank "):
            thread.join(10)


def test_no_model_of_ddp_outlives_a_run_in_which_forwards_overlap() -> None:
    class Meets(torch.nn.Linear):
        def forward(self, x):
            dist.barrier()
            dist.barrier()
            return super().forward(x)

    def overlap() -> None:
        net = DistributedDataParallel(Meets(1, 1))
        if dist.get_rank():
            dist.barrier()
        net(torch.ones(1, 1))
        if not dist.get_rank():
            dist.barrier()

    World(2).run(overlap)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is DistributedDataParallel]


@pytest.mark.parametrize("ranks", [[2], [1, 2]])
def test_members_make_the_group_that_they_agree_on_although_a_rank_disagrees(monkeypatch, ranks) -> None:
    """A member that is stopped before it enters the group's C++ code would leave the others waiting in it."""
    make = distributed_c10d._new_process_group_helper

    def makes(size, rank, members, *args, **kwargs):
        if members and dist.get_rank() == 0:
            time.sleep(30)  # until the rank must stop
        return make(size, rank, members, *args, **kwargs)

    def program() -> None:
        if dist.get_rank() == 2:
            time.sleep(0.1)
        dist.new_group(ranks if dist.get_rank() == 2 else [0, 1])

    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", makes)
    error = failure(World(3), program)
    assert error.kind == "mismatch" and "could not be interrupted" not in str(error)


def test_a_call_that_disagrees_with_a_complete_group_leaves_it_complete() -> None:
    recorders = [CallRecorder(rank, 0.0, threading.current_thread()) for rank in range(3)]
    matching = Matching()
    for rank in (0, 1):
        pending = matching.pending(rank, recorders[rank].new_group("1", [0, 1]).call)
        pending.calls[rank] = recorders[rank].calls[-1]
    disagreeing = matching.pending(2, recorders[2].new_group("1", [2]).call)
    matching.mark_broken(disagreeing)
    assert disagreeing.calls == pending.calls and not pending.open


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_what_ranks_switch_in_overlapping_blocks_is_restored() -> None:
    def switches():
        return torch.backends.cuda.flash_sdp_enabled(), torch.backends.mkldnn.enabled

    def program() -> None:
        with sdpa_kernel([SDPBackend.MATH]), torch.backends.mkldnn.flags(enabled=False):
            dist.barrier()

    before = switches()
    for _ in range(5):
        World(2).run(program)
    assert switches() == before == (True, True)


def test_a_rank_leaves_no_layouts_of_dtensor_to_the_end_of_its_thread(monkeypatch) -> None:
    def cached() -> int:
        return torch._C._get_DTensor_sharding_propagator_cache_stats()[1]

    def program() -> int:
        x = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        assert (x * 2).to_local().tolist() == [2, 2]
        return cached()

    left, close = [], dist.destroy_process_group
    monkeypatch.setattr(dist, "destroy_process_group", lambda: (left.append(cached()), close()))
    assert min(World(2).run(program)) > 0
    assert left == [0, 0]


def test_ranks_leave_loss_parallel_one_after_the_other() -> None:
    def loss_on(late: int, *, failing: bool = False) -> float:
        logits = distribute_tensor(torch.arange(8.0).view(2, 4), init_device_mesh("cpu", (2,)), [Shard(1)])
        logits.requires_grad_()
        with loss_parallel():
            loss = functional.cross_entropy(logits, torch.tensor([0, 3]))
            if dist.get_rank() == late:  # its peer has left then
                time.sleep(0.2)
                assert not failing
            loss.backward()
        assert logits.grad is not None and logits.grad.placements == (Shard(1),)
        return loss.item()

    expected = functional.cross_entropy(torch.arange(8.0).view(2, 4), torch.tensor([0, 3])).item()
    for late in range(2):
        assert list(World(2).run(loss_on, late)) == pytest.approx([expected] * 2)
    failure(World(2), lambda: loss_on(0, failing=True))
    handlers = DTensor._op_dispatcher._custom_op_handlers
    assert torch.ops.aten.nll_loss_forward.default not in handlers


def test_garbage_that_only_other_garbage_releases_is_collected() -> None:
    class Releases:
        """As a graph of autograd's, in C++, it holds what Python's garbage collector cannot see."""

        def __init__(self, released: list[object]) -> None:
            self.itself, self.number = self, hidden.setdefault(id(released), released) and id(released)

        def __del__(self) -> None:
            del hidden[self.number]

    class Held:
        pass

    hidden: dict[int, list[object]] = {}
    held = Held()
    cycle: list[object] = [held]
    cycle.append(cycle)
    gone = weakref.ref(held)
    Releases(cycle)
    del held, cycle
    collect_garbage()
    assert gone() is None


def test_ranks_that_ask_for_a_new_operator_at_once_get_one_object() -> None:
    names = [f"operator_{number}" for number in range(50)]
    library = torch.library.Library("new_to_all_ranks", "DEF")
    for name in names:
        library.define(f"{name}(Tensor x) -> Tensor")

    def ask() -> list[object]:
        dist.barrier()
        return [getattr(torch.ops.new_to_all_ranks, name).default for name in names]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        first, *others = World(4).run(lambda: list(map(id, ask())))
    finally:
        sys.setswitchinterval(interval)
    assert others == [first] * 3


@pytest.mark.parametrize("device", ["cuda", "mtia"])
def test_a_loaders_worker_finds_the_lock_free_that_a_seeding_rank_holds(device) -> None:
    """`torch.manual_seed` holds it for a moment, and each worker calls that."""

    def batches_beside_a_seeding_rank() -> int:
        lock = getattr(torch, device)._initialization_lock if dist.get_rank() == 0 else nullcontext()
        with lock:
            dist.barrier()
            loaded = len(list(DataLoader([1, 2], num_workers=1, timeout=20))) if dist.get_rank() == 1 else 0
            dist.barrier()
        return loaded

    assert list(World(2, timeout=60).run(batches_beside_a_seeding_rank)) == [0, 2]
