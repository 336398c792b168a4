"""The backends that keep the contract: what `World` promises holds on each of them."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from course_lib import World
from tests.world.programs import come_to_their_waits, imported


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend under test.

    Attributes:
        options: returns the arguments that choose the backend, from the fixture's request.
        local: whether all ranks are on this machine. The cluster is left out of tests in which it cannot differ from
            processes, because a run on it takes longest: the same workers run the program, and the same kernel writes
            the message.
        processes: whether each rank is a process, which can die.
    """

    options: Callable[[pytest.FixtureRequest], dict]
    local: bool = True
    processes: bool = True


BACKENDS = {
    "simulated": Backend(options=lambda request: {"backend": "simulated"}, processes=False),
    "processes": Backend(options=lambda request: {"backend": "processes"}),
    "cluster": Backend(
        options=lambda request: {"backend": "processes", "cluster": request.getfixturevalue("engines").client},
        local=False,
    ),
}


def make(request: pytest.FixtureRequest) -> Callable[..., World]:
    return partial(World, **BACKENDS[request.param].options(request))


@pytest.fixture(params=BACKENDS)
def world(request):
    """Makes a world of so many ranks, on each backend."""
    return make(request)


@pytest.fixture(params=[name for name, backend in BACKENDS.items() if backend.local])
def local_world(request):
    """Makes a world on each backend that keeps all ranks on this machine."""
    return make(request)


@pytest.fixture(params=[name for name, backend in BACKENDS.items() if not backend.local])
def far_world(request):
    """Makes a world on each backend whose ranks are on several machines."""
    return make(request)


@pytest.fixture(params=[name for name, backend in BACKENDS.items() if backend.processes])
def process_world(request):
    """Makes a world on each backend on which a rank is a process."""
    return make(request)


@pytest.fixture
def interrupt(tmp_path):
    """Interrupts a run once every rank is in its function, and returns the exception."""

    def interrupt(world: World, fn: Callable[[], object]) -> KeyboardInterrupt:
        def program():
            (tmp_path / f"rank {dist.get_rank()}").touch()
            return fn()

        def when_begun() -> None:
            while len(list(tmp_path.iterdir())) < world.world_size:
                if over.wait(0.01):
                    return
            come_to_their_waits()
            signal.raise_signal(signal.SIGINT)

        world.run(imported, fn.__module__)
        over, thread, started = threading.Event(), threading.Thread(target=when_begun), time.monotonic()
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt, match="the run was interrupted") as caught:
                world.run(program)
        finally:
            over.set()
            thread.join()
        assert time.monotonic() - started < world.timeout / 2
        return caught.value

    return interrupt


@pytest.fixture
def cells(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The variables of the cells in a test file's `CELLS`, in the `__main__` of this process."""
    variables = vars(sys.modules["__main__"])
    before = dict(variables)
    exec(compile(request.module.CELLS, "<cell>", "exec"), variables)
    yield variables
    variables.clear()
    variables.update(before)
