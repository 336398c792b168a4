"""Connections count as open files, and gloo ends a process that may not have so many."""

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="only POSIX limits open files")

PROGRAM = """
import resource
import torch.distributed as dist
from course_lib import World

def two_groups():
    return [dist.get_world_size(dist.new_group(list(ranks))) for ranks in (range(32), range(32, 64))]

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(World(64).run(two_groups)[40])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8000, reason="this machine allows no 8,000 open files"
)
def test_64_ranks_run_where_1024_files_are_allowed_at_first() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "[-1, 32]\n"), done.stderr
