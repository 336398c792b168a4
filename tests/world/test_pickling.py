"""A copy of a function brings the submodules that it uses."""

import pickle

import cloudpickle
import torch
from torch import nn

from course_lib.world.pickling import pickler


def test_the_submodules_that_a_function_uses_are_those_that_cloudpickle_finds() -> None:
    import concurrent.futures
    import os

    def program():
        return torch.nn.functional.relu, torch.distributed.fsdp, concurrent.futures.Future, os.path, torch.ones

    used = [torch, concurrent, os, torch.nn, 3]
    theirs = cloudpickle.cloudpickle._find_imported_submodules(program.__code__, used)
    ours = pickler._submodules(program.__code__, used)
    assert {torch.nn.functional, concurrent.futures} <= set(ours) == set(theirs)


def test_tensors_that_share_memory_share_it_in_the_copy() -> None:
    flat = torch.zeros(6)
    copies = pickle.loads(pickler.pickled([flat, nn.Parameter(flat[:3]), flat[3:].view(torch.int32)]))
    copies[0].fill_(1)
    assert copies[1].tolist() == [1, 1, 1]
    assert copies[2].view(torch.float32).tolist() == [1, 1, 1]
