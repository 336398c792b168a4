"""`run.slowest()` names the rank that the others wait for."""

import re
import time

import torch
import torch.distributed as dist

from tests.world.programs import rank


def waits_for_rank_2():
    """Rank 2 calls only when all others have."""
    for _ in range(3):
        x = torch.ones(1)
        if rank() == 2:
            for peer in (0, 1, 3):
                dist.recv(x, peer)
            time.sleep(0.02)  # the others have called
            dist.all_reduce(x)
        else:
            handle = dist.all_reduce(x, async_op=True)
            dist.send(torch.ones(1), 2)
            handle.wait()


def test_the_rank_that_calls_last_is_named(world):
    said = world(4).run(waits_for_rank_2).slowest()
    milliseconds = r"[\d.]+ ms"
    found = re.fullmatch(
        rf"Rank 2 was last in 3 of 3 collectives, and alone delayed them by ([\d.]+) ms. It computed for "
        rf"{milliseconds} and waited for {milliseconds}; the other ranks computed for {milliseconds} \(median\).",
        said,
    )
    assert found and float(found[1]) >= 60


def test_a_run_without_collectives(local_world):
    assert local_world(2).run(rank).slowest().startswith("No two ranks called a collective together")
