"""The page of a failed run, on every backend: what was measured up to the moment when it stopped."""

import os
import pickle
import re

import torch
import torch.distributed as dist

from course_lib import mark
from tests.world.programs import failure


def rank_1_raises() -> None:
    held = torch.ones(1000)
    mark("made")
    dist.all_reduce(held)
    more = torch.ones(500)
    if dist.get_rank() == 1:
        raise ValueError("no data")
    dist.broadcast(more, src=0)


def rank_1_dies() -> None:
    held = torch.ones(1000)
    dist.all_reduce(held)
    if dist.get_rank() == 1:
        os._exit(3)
    dist.broadcast(held, src=1)


def test_the_page_of_a_failed_run_has_the_message_and_what_was_measured(world) -> None:
    error = failure(world(2), rank_1_raises)
    text = str(pickle.loads(pickle.dumps(error)).report())
    assert text.startswith("rank_1_raises\n2 ranks, ")
    assert f"\nOutcome\n{error}\n" in text
    assert re.search(
        r"^rank 0 +stopped in broadcast #1 at .* line \d+ +6 kB: .* +4 kB: all_reduce 4 kB in 1 call  ",
        text,
        re.MULTILINE,
    )
    assert re.search(
        r"^rank 1 +raised ValueError: no data at .* line \d+ +6 kB: .* +4 kB: all_reduce 4 kB in 1 call  ",
        text,
        re.MULTILINE,
    )
    assert "  made: other 4 kB" in text


def test_the_memory_of_a_failed_run_has_the_variables_that_were_alive(local_world) -> None:
    error = failure(local_world(2), rank_1_raises)
    for memory in error.memory:
        assert (memory.current_bytes, memory.peak_bytes) == (6000, 6000)
        assert sum(sum(change.deltas.values()) for change in memory.timeline) == 6000


def test_a_rank_that_died_has_no_memory_and_is_on_the_page(process_world) -> None:
    error = failure(process_world(2), rank_1_dies)
    assert error.memory[1] is None and error.memory[0].current_bytes == 4000
    text = str(error.report())
    assert re.search(r"^rank 1 +died.* unknown +4 kB: all_reduce 4 kB in 1 call +unknown$", text, re.MULTILINE)
    assert re.search(r"^rank 0 .* +4 kB: .* 4 kB +4 kB: all_reduce 4 kB in 1 call", text, re.MULTILINE)


def test_a_failed_run_that_was_not_measured_has_a_page(local_world) -> None:
    text = str(failure(local_world(2, measure=False), rank_1_raises).report())
    assert "Memory was not measured." in text


def test_a_long_failed_run_combines_changes_of_memory(local_world) -> None:
    def program() -> None:
        kept = [torch.ones(10)]
        for size in range(1, 3000):
            kept[0] = torch.ones(10 + size % 7)
        raise ValueError("no data")

    (memory,) = failure(local_world(1), program).memory
    assert len(memory.timeline) == 1000 and max(change.highest_bytes for change in memory.timeline) == memory.peak_bytes
    assert sum(sum(change.deltas.values()) for change in memory.timeline) == memory.current_bytes
