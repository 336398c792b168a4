"""`slowest` names the ranks that the others wait for."""

import re
import time

import torch
import torch.distributed as dist

from course_lib.meter import SourceLine, slowest
from course_lib.world.collectives.call import Call
from course_lib.world.errors.rank_error import Kept
from course_lib.world.run import Run
from tests.world.programs import rank


def recorded(computed: dict[int, list[float]]) -> Run:
    """A run of these seconds of computing before each all-reduce, which takes no time, and of a long end."""
    calls = {one: [] for one in computed}
    now = 0.0
    for number, seconds in enumerate(zip(*computed.values(), strict=True), 1):
        line = SourceLine(filename="train.py", line=number, function="step")
        together = now + max(seconds)
        for one, its in zip(computed, seconds, strict=True):
            before = {"issued": now + its, "waited_from": now + its}
            members = {"group_name": "0", "ranks": tuple(computed)}
            call = Call(variant="all_reduce", rank=one, line=line, matched=together, done=together, **members, **before)
            calls[one].append(call)
        now = together
    spans = [(0.0, now + 10 * (one == 0)) for one in computed]
    return Run(results=computed, kept=Kept(output=[""] * len(spans), calls=[*calls.values()], spans=spans, memory=[]))


def test_one_slow_rank() -> None:
    assert slowest(recorded({0: [0.001, 0.002], 1: [0.001, 0.003], 2: [0.001, 0.050]}).timeline) == (
        "Slowest: rank 2 computed for 51.0 ms (50.0 ms of it before its calls at train.py line 2) and waited for 0.0 "
        "ms. Fastest: rank 0 computed for 3.0 ms and waited for 0.0 ms. Counted until each rank's last "
        "collective."
    )


def test_two_slow_ranks() -> None:
    found = slowest(recorded({0: [0.02, 0.02], 1: [0.001, 0.001], 2: [0.02, 0.019], 3: [0.001, 0.002]}).timeline)
    assert re.findall(r"rank \d computed for [\d.]+ ms", found) == [
        "rank 0 computed for 40.0 ms",
        "rank 2 computed for 39.0 ms",
        "rank 1 computed for 2.0 ms",
    ]


def waits_for_rank_2() -> None:
    """Rank 2 calls only when all others have."""
    for _ in range(3):
        x = torch.ones(1)
        if rank() == 2:
            for peer in (0, 1, 3):
                dist.recv(x, peer)
            time.sleep(0.1)  # the others have called
            dist.all_reduce(x)
        else:
            handle = dist.all_reduce(x, async_op=True)
            dist.send(torch.ones(1), 2)
            handle.wait()


def test_a_run_in_which_the_others_wait(world) -> None:
    found = slowest(world(4).run(waits_for_rank_2).timeline)
    computed = re.search(r"rank 2 computed for ([\d.]+) ms", found)
    assert computed and float(computed[1]) >= 300
    line = waits_for_rank_2.__code__.co_firstlineno + 8
    assert f"before its calls at test_slowest.py line {line})" in found


def test_a_run_without_collectives(local_world) -> None:
    assert slowest(local_world(2).run(rank).timeline).startswith("No two ranks called a collective")
