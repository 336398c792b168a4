"""An engine and its buckets are freed when the last name of them goes, without Python's garbage collector."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.optim import Adam

from course_lib import zero
from tests.zero.models import make, train, world

ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_ends_with_its_last_name(engine) -> None:
    def rank():
        inner = make("branches")
        made = getattr(zero, engine)(inner, Adam, find_unused_parameters=True)
        train(made, dist.get_rank(), range(2))
        kept = [made, made.buckets[0], made.optimizer, inner, next(inner.parameters())]
        alive = [weakref.ref(each) for each in kept]
        del inner, made, kept
        return [type(each()).__name__ for each in alive if each() is not None]

    Adam([torch.ones(1, requires_grad=True)])  # the first optimizer of a process imports what keeps frames in a cycle
    gc.disable()
    try:
        assert list(world(2).run(rank)) == [[], []]
    finally:
        gc.enable()
