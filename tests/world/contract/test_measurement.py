"""A rank holds, sends and calls the same on every backend, and its times are in order."""

import time

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World, mark, zero
from tests.world.programs import rank, train


def held(memory):
    """All bytes of a report."""
    moments = [memory, *memory.marks.values()]
    return [(m.current_bytes, m.peak_bytes, dict(m.by_category)) for m in moments]


def called(comm):
    """What a rank sent, call by call."""
    return [(call.op, call.total_bytes, call.sent, call.root) for call in comm.calls]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [zero.Stage2, zero.Stage3])
def test_values_bytes_and_calls_are_those_of_simulated_ranks(world, stage) -> None:
    one, other = World(3, backend="simulated").run(train, stage), world(3).run(train, stage)
    assert list(one) == list(other)
    assert len(other.memory) == len(other.comm) == len(other.calls) == len(other.timeline) == 3
    for r in range(3):
        assert held(other.memory[r]) == held(one.memory[r])
        assert called(other.comm[r]) == called(one.comm[r])
        assert [call.op for call in other.calls[r]] == [call.op for call in one.calls[r]]
        assert all(call.issued <= call.matched <= call.done for call in other.calls[r])
        assert 0 < other.timeline[r].start < other.timeline[r].end < 30
        assert other.comm[r].sent_bytes > 0 and other.memory[r].marks["after backward"].current_bytes > 0
    assert other.comm_matrix == one.comm_matrix


def test_a_run_without_measurement_has_no_memory_and_the_same_values(world) -> None:
    measured, unmeasured = (world(2, measure=measure).run(train, zero.Stage1) for measure in (True, False))
    assert list(measured) == list(unmeasured)
    assert called(measured.comm[1]) == called(unmeasured.comm[1])
    with pytest.raises(CourseError, match=r"run\.memory: this run was not measured"):
        _ = unmeasured.memory


def test_cudas_allocator_rounds_on_every_backend(world) -> None:
    def program():
        kept = torch.ones(100)
        return kept.sum().item() + rank()

    by_need, by_cuda = (world(2, allocator=allocator).run(program) for allocator in (None, "cuda"))
    assert [report.peak_bytes % 512 for report in by_cuda.memory] == [0, 0]
    assert by_need.memory[0].peak_bytes < by_cuda.memory[0].peak_bytes


N = 1000


def scattered():
    shard = torch.empty(N // 2)
    return [dist.reduce_scatter_single(shard, torch.ones(N), async_op=True)], shard


def gathered():
    whole = torch.empty(2 * N)
    return [dist.all_gather_single(whole, torch.ones(N), async_op=True)], whole


def exchanged():
    arriving, peer = torch.empty(N), 1 - rank()
    return [dist.isend(torch.ones(N), peer), dist.irecv(arriving, peer)], arriving


def in_the_background(start):
    """Start a call of a temporary tensor 20 times, and let every second one end. Then wait for its handles, or drop
    them."""
    mark("before")
    for number in range(20):
        works, result = start()
        while number % 2 and not all(work.is_completed() for work in works):
            time.sleep(1e-4)
        mark(f"{number} started")
        if number % 4 < 2:
            [work.wait() for work in works]
        else:
            while not all(work.is_completed() for work in works):
                time.sleep(1e-4)
            works.clear()
        mark(f"{number} ended")
        del works, result


@pytest.mark.parametrize("start", [scattered, gathered, exchanged])
def test_the_tensors_of_a_call_count_until_the_rank_waits_for_its_handle_or_drops_it(world, start) -> None:
    for report in world(2).run(in_the_background, start).memory:
        before = report.marks["before"].current_bytes
        started, ended = (
            {report.marks[f"{number} {when}"].current_bytes - before for number in range(20)}
            for when in ("started", "ended")
        )
        (result,) = ended
        assert started == {result + 4 * N} and report.peak_bytes == before + result + 4 * N
