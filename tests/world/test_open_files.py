"""Connections count as open files, and gloo ends a process that may not have so many: it is not let come to that."""

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="only POSIX limits open files")

PROGRAM = """
import resource
from concurrent.futures import ThreadPoolExecutor
import torch.distributed as dist
from course_lib import CourseError, RankError, World

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

def two_groups():
    return [dist.get_world_size(dist.new_group(list(ranks))) for ranks in (range(32), range(32, 64))]

def without_end():
    return [dist.new_group([0, 1, 2, 3]) for _ in range(100)]

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, HARD))
World(4).run(dist.get_rank)
print("left alone:", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
if HARD >= 8000:
    print("64 ranks:", World(64).run(two_groups)[40])
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, HARD))
    with ThreadPoolExecutor(2) as pool:
        print("at the same time:", [len(run) for run in pool.map(lambda _: World(30).run(dist.get_rank), range(2))])

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
try:
    World(64).run(dist.get_rank)
except CourseError as error:
    print("refused:", error)
print("fewer ranks:", len(World(8).run(dist.get_rank)))

resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
try:
    World(4).run(without_end)
except RankError as error:
    print("without end:", str(error).count("Make groups once and keep them"))
print("next run:", len(World(8).run(dist.get_rank)))
"""
pytestmark = pytest.mark.slow
many = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8000, reason="this machine allows no 8,000 open files"
)


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What a process of its own prints, by the words before the colon. It may open fewer and fewer files."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_a_file_limit_that_is_high_enough_is_left_alone(told: dict[str, str]) -> None:
    assert told["left alone"] == "1024"


@many
def test_64_ranks_and_groups_made_at_once_run_where_1024_files_are_allowed_at_first(told: dict[str, str]) -> None:
    assert told["64 ranks"] == "[-1, 32]"


@many
def test_so_do_worlds_at_the_same_time(told: dict[str, str]) -> None:
    assert told["at the same time"] == "[30, 30]"


def test_too_many_ranks_for_the_limit_are_refused_and_fewer_run(told: dict[str, str]) -> None:
    error = told["refused"]
    assert error.startswith("A group of 64 simulated ranks has connections with 4,032 ends in this process")
    assert "now, and 256 for other uses, that is more than it may have open: 1,024. Make" in error
    assert told["fewer ranks"] == "8"


def test_groups_without_end_are_one_error_and_the_next_run_runs(told: dict[str, str]) -> None:
    assert (told["without end"], told["next run"]) == ("1", "8")
