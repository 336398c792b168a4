"""Connections count as open files, and gloo ends a process that may not have so many: it is not let come to that."""

import resource
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import resource
import torch.distributed as dist
from course_lib import CourseError, World

def allow(soft, hard):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
"""


def told(program: str) -> str:
    """What a process of its own prints, which ends as it should."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 5000, reason="64 ranks need 5,000 open files")
def test_64_ranks_run_where_1024_files_are_allowed_at_first() -> None:
    program = """
        allow(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        print(len(World(64).run(dist.get_rank)))
    """
    assert told(program) == "64\n"


@pytest.mark.slow
def test_too_many_ranks_for_the_limit_are_refused_and_fewer_run() -> None:
    program = """
        allow(1024, 1024)
        try:
            World(64).run(dist.get_rank)
        except CourseError as error:
            print(error)
        print(len(World(8).run(dist.get_rank)))
    """
    error, fewer = told(program).splitlines()
    assert error.startswith("A group of 64 simulated ranks has connections with 4,032 ends in this process")
    assert "may have 1,024. Take fewer ranks" in error
    assert fewer == "8"


@pytest.mark.slow
def test_groups_without_end_are_an_error_and_the_next_run_runs() -> None:
    program = """
        allow(600, 600)

        def without_end():
            return [dist.new_group([0, 1, 2, 3]) for _ in range(100)]

        try:
            World(4).run(without_end)
        except Exception as error:
            print(type(error).__name__, "make groups once" in str(error))
        print(len(World(8).run(dist.get_rank)))
    """
    assert told(program).splitlines() == ["RankError True", "8"]
