"""Ordinary programs, as in torch's tutorials: each asserts its own numbers."""

import pytest

from course_lib import World
from tests.world.contract.tutorials import communication, data_parallel, sharding, tensors  # noqa: F401
from tests.world.contract.tutorials.common import EVERYWHERE, PROGRAMS, N

pytestmark = pytest.mark.filterwarnings("ignore:.*returned a view tensor")


def run(world, name, folder) -> None:
    program = PROGRAMS[name]
    arguments = [str(folder)] if program.__code__.co_argcount else []
    run = world.run(program, *arguments)
    assert list(run) == [None] * N and all(run.calls)


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_simulated_ranks(name, tmp_path) -> None:
    run(World(N, backend="simulated"), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYWHERE)
def test_unmeasured(name, tmp_path) -> None:
    run(World(N, backend="simulated", measure=False), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYWHERE)
def test_on_processes(name, tmp_path) -> None:
    run(World(N, backend="processes"), name, tmp_path)
