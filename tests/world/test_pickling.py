"""A copy of a function brings the submodules that it uses."""

import cloudpickle
import torch

from course_lib.world import pickling


def test_the_submodules_that_a_function_uses_are_those_that_cloudpickle_finds() -> None:
    import concurrent.futures
    import os

    def program():
        return torch.nn.functional.relu, torch.distributed.fsdp, concurrent.futures.Future, os.path, torch.ones

    used = [torch, concurrent, os, torch.nn, 3]
    theirs = cloudpickle.cloudpickle._find_imported_submodules(program.__code__, used)
    ours = pickling._submodules(program.__code__, used)
    assert {torch.nn.functional, concurrent.futures} <= set(ours) == set(theirs)
