"""What a rank starts finds the rank's classes: threads that save and load objects, and the workers of a DataLoader."""

from typing import Any

import pytest

from course_lib import World

CELLS = """
import dataclasses, io, threading, weakref
from concurrent.futures import ThreadPoolExecutor
import torch
from torch.utils.data import DataLoader

@dataclasses.dataclass
class Sample:
    value: int

def saved_and_loaded(sample):
    file = io.BytesIO()
    torch.save(sample, file)
    file.seek(0)
    return torch.load(file, weights_only=False)

def in_threads():
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(saved_and_loaded, Sample(3)).result(30)
    return isinstance(loaded, Sample), loaded.value

def in_workers():
    samples = list(DataLoader([Sample(3)], None, num_workers=1, timeout=30))
    return isinstance(samples[0], Sample), samples[0].value

class Worker(threading.Thread):
    def run(self):
        pass

def lets_go():
    worker = Worker()
    worker.start()
    worker.join()
    ended = weakref.ref(worker)
    del worker
    return ended() is None

def keeps_its_own_run():
    worker, ran = threading.Thread(), []
    worker.run = run = lambda: ran.append(1)
    worker.start()
    worker.join()
    try:
        worker.start()
    except RuntimeError:
        return worker.run is run, ran
"""


def test_a_thread_that_has_ended_is_gone_at_once(cells: dict[str, Any]) -> None:
    assert list(World(2).run(cells["lets_go"])) == [True, True]


def test_a_thread_keeps_the_run_that_the_program_gave_it(cells: dict[str, Any]) -> None:
    assert list(World(2).run(cells["keeps_its_own_run"])) == [(True, [1])] * 2


@pytest.mark.parametrize("backend", ["simulated", "processes"])
@pytest.mark.parametrize("program", ["in_threads", "in_workers"])
def test_objects_of_a_notebooks_class_pass_through_what_a_rank_starts(
    backend: str, program: str, cells: dict[str, Any]
) -> None:
    assert list(World(2, backend=backend, timeout=40).run(cells[program])) == [(True, 3)] * 2
