"""Connections count as open files, and gloo ends a process that may not have so many: it is not let come to that."""

import subprocess
import sys
import textwrap

import pytest

resource = pytest.importorskip("resource", reason="only POSIX limits open files")

BEGIN = """
import resource
from concurrent.futures import ThreadPoolExecutor
import torch.distributed as dist
from course_lib import CourseError, RankError, World

def allow(soft, hard=resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
"""
pytestmark = pytest.mark.slow
many = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8000, reason="this machine allows no 8,000 open files"
)


def told(program: str) -> list[str]:
    """The lines that a process of its own prints, which ends as it should."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@many
def test_64_ranks_and_groups_made_at_once_run_where_1024_files_are_allowed_at_first() -> None:
    program = """
        def two_groups():
            return [dist.get_world_size(dist.new_group(list(ranks))) for ranks in (range(32), range(32, 64))]

        allow(1024)
        print(World(64).run(two_groups)[40])
    """
    assert told(program) == ["[-1, 32]"]


@many
def test_so_do_worlds_at_the_same_time() -> None:
    program = """
        allow(1024)
        with ThreadPoolExecutor(2) as pool:
            print([len(run) for run in pool.map(lambda _: World(30).run(dist.get_rank), range(2))])
    """
    assert told(program) == ["[30, 30]"]


def test_too_many_ranks_for_the_limit_are_refused_and_fewer_run() -> None:
    program = """
        allow(1024, 1024)
        try:
            World(64).run(dist.get_rank)
        except CourseError as error:
            print(error)
        print(len(World(8).run(dist.get_rank)))
    """
    error, fewer = told(program)
    assert error.startswith("A group of 64 simulated ranks has connections with 4,032 ends in this process")
    assert "now, and 256 for other uses, that is more than it may have open: 1,024. Make" in error
    assert fewer == "8"


def test_groups_without_end_are_one_error_and_the_next_run_runs() -> None:
    program = """
        def without_end():
            return [dist.new_group([0, 1, 2, 3]) for _ in range(100)]

        allow(600, 600)
        try:
            World(4).run(without_end)
        except RankError as error:
            print(str(error).count("Make groups once and keep them"))
        print(len(World(8).run(dist.get_rank)))
    """
    assert told(program) == ["1", "8"]


def test_a_file_limit_that_is_high_enough_is_left_alone() -> None:
    program = """
        allow(1024)
        World(4).run(dist.get_rank)
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """
    assert told(program) == ["1024"]
