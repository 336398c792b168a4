"""What `World` refuses before any rank starts."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch.distributed as dist

from course_lib import CourseError, World


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ((0,), {}, r"World\(0\): a simulated world has 1 to 64 ranks"),
        ((65,), {}, r"World\(65\): a simulated world has 1 to 64 ranks"),
        ((2.0,), {}, r"must be a whole number, not a float"),
        ((True,), {}, r"must be a whole number, not a bool"),
        (("4",), {}, r"must be a whole number, not a str"),
        ((2,), {"backend": "mpi"}, r"there is no such backend here"),
        ((2,), {"timeout": 0}, r"a number of seconds above 0"),
        ((2,), {"timeout": float("nan")}, r"a number of seconds above 0"),
        ((2,), {"timeout": 10**400}, r"a number of seconds above 0"),
        ((2,), {"timeout": "1"}, r"a number of seconds above 0"),
    ],
)
def test_a_world_that_cannot_be_is_refused(arguments, options, told) -> None:
    with pytest.raises(CourseError, match=told):
        World(*arguments, **options)


def test_numpy_integers_are_numbers_of_ranks() -> None:
    assert World(np.int64(2)).world_size == 2


def test_the_backend_comes_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("COURSE_WORLD", "carrier-pigeon")
    with pytest.raises(CourseError, match=r"unset \$COURSE_WORLD"):
        World(2)


async def coroutine() -> None:
    pass


def generator():
    yield


@pytest.mark.parametrize(
    ("fn", "args", "told"),
    [
        (None, (), r"needs a function to call on every rank"),
        (3, (), r"without parentheses"),
        (lambda rank: rank, (), r"missing a required argument: 'rank'.*ask dist.get_rank\(\)"),
        (lambda: 0, (1,), r"too many positional arguments"),
        (coroutine, (), r"no async"),
        (generator, (), r"no yield"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(fn, args, told) -> None:
    with pytest.raises(CourseError, match=told):
        World(2).run(fn, *args)


def test_the_record_of_a_call_is_frozen() -> None:
    [[call]] = World(1).run(dist.barrier).calls
    with pytest.raises(FrozenInstanceError):
        call.done = 0.0
