"""Random streams of a rank's own."""

import io
import os
import random
import subprocess
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import dropout

from course_lib import World


def draw(seed: int):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    return sample()


def sample():
    return (
        torch.rand(2).tolist(),
        torch.randn(3).tolist(),
        dropout(torch.ones(8)).tolist(),
        torch.randperm(5).tolist(),
        torch.randint(100, (3,)).tolist(),
        torch.nn.init.uniform_(torch.empty(2)).tolist(),
        torch.multinomial(torch.ones(6), 3).tolist(),
        random.random(),
        random.sample(range(9), 3),
        np.random.rand(2).tolist(),
        np.random.sample(),
        np.random.permutation(4).tolist(),
    )


def test_a_seeded_rank_draws_what_a_seeded_process_draws() -> None:
    def seeded():
        dist.barrier()
        return draw(100 + dist.get_rank())

    assert list(World(4).run(seeded)) == [draw(100 + rank) for rank in range(4)]


def test_ranks_that_take_turns_do_not_touch_each_others_streams() -> None:
    def by_turns():
        torch.manual_seed(0)
        numbers = []
        for turn in range(20):
            if dist.get_rank() == turn % 2:
                numbers.append(torch.rand(1).item())
            dist.barrier()
        return numbers

    torch.manual_seed(0)
    expected = [torch.rand(1).item() for _ in range(10)]
    assert list(World(2).run(by_turns)) == [expected, expected]


def test_two_runs_give_the_same_bits_without_any_seed() -> None:
    assert list(World(3).run(sample)) == list(World(3).run(sample))


def test_both_streams_of_a_rank_are_its_output_and_the_kernel_keeps_its_own() -> None:
    def program() -> None:
        print("first", file=sys.stderr)
        print("last")
        dist.barrier()
        sys.stdout = io.StringIO()

    streams = sys.stdout, sys.stderr
    assert World(2).run(program).output == ("first\nlast\n", "first\nlast\n")
    assert (sys.stdout, sys.stderr) == streams


def test_the_process_keeps_its_own_stream() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = sample()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    World(2).run(draw, 5)
    assert sample() == expected


def test_the_state_of_the_stream_can_be_kept_and_restored() -> None:
    def twice():
        torch.manual_seed(3)
        state = torch.get_rng_state()
        first = torch.rand(1).item()
        torch.set_rng_state(state)
        return first == torch.rand(1).item(), torch.initial_seed()

    assert list(World(2).run(twice)) == [(True, 3), (True, 3)]


def test_a_rank_has_the_variables_that_torchrun_sets() -> None:
    def variables():
        return tuple(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")), os.getenv("HOME")

    assert list(World(2).run(variables)) == [((rank, rank, 2), os.environ.get("HOME")) for rank in range(2)]
    assert "LOCAL_RANK" not in os.environ


def test_what_a_rank_sets_in_its_environment_is_its_own(monkeypatch) -> None:
    monkeypatch.setenv("SHARDED_TEST", "process")

    def change():
        before = os.environ["SHARDED_TEST"]
        os.environ["SHARDED_TEST"] = f"rank {dist.get_rank()}"
        dist.barrier()
        return before, os.environ["SHARDED_TEST"], os.environ.copy()["SHARDED_TEST"]

    assert list(World(2).run(change)) == [("process", f"rank {rank}", f"rank {rank}") for rank in range(2)]
    assert os.environ["SHARDED_TEST"] == "process"


def test_a_rank_may_start_a_program() -> None:
    program = [sys.executable, "-c", "print(6 * 7)"]
    assert World(1).run(lambda: subprocess.run(program, capture_output=True, text=True).stdout)[0] == "42\n"
