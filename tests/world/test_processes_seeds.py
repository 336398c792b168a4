"""Ranks that are processes start from different random numbers, as under torchrun, and every run from the same."""

import random

import numpy as np
import torch

from course_lib import World


def test_ranks_start_apart_and_each_run_repeats_them() -> None:
    def start():
        return torch.nn.Linear(4, 1).weight.tolist(), random.random(), np.random.rand()

    world = World(3, backend="processes")
    first, second = list(world.run(start)), list(world.run(start))
    assert first == second
    for of_each_rank in zip(*first, strict=True):
        assert len(set(map(str, of_each_rank))) == 3


def test_a_program_that_forgets_to_broadcast_the_start_shows_it() -> None:
    def weights():
        return torch.nn.Linear(4, 1).weight

    assert not torch.equal(*World(2, backend="processes").run(weights))
    assert torch.equal(*World(2, backend="simulated").run(weights))
