"""Simulated ranks share the learner's imported modules: caches are kept apart, and variables are named."""

import importlib
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

from course_lib import CourseWarning, RankError, World

HELPER = """
import functools, logging, re
import torch, torch.distributed as dist

RANK = manager = net = table = pattern = logger = settings = None
calls, registry = 0, {}


class Manager:
    def __init__(self):
        self.all = dist.new_group()


def set_up():
    global RANK
    RANK = dist.get_rank()


def manage():
    global manager
    manager = Manager()


def build():
    global net
    net = torch.nn.Linear(2, 2)


def what_is_equal_on_all_ranks(size):
    global calls, table, pattern, logger, settings
    calls += 1
    table = torch.ones(size).tril() if table is None else table
    pattern, logger, settings = re.compile("a+"), logging.getLogger("helper"), {"size": 3}
    registry["net"] = torch.nn.Linear
    return table


@functools.lru_cache(maxsize=None)
def my_rank():
    return dist.get_rank()
"""


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A module of the learner, and one that imports from it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper_of_ranks.py").write_text(HELPER)
    (tmp_path / "user_of_helper.py").write_text("from helper_of_ranks import my_rank\n")
    importlib.import_module("user_of_helper")
    yield importlib.import_module("helper_of_ranks")
    del sys.modules["helper_of_ranks"], sys.modules["user_of_helper"]


def test_each_rank_has_a_cache_of_its_own(helper) -> None:
    def program():
        from user_of_helper import my_rank

        return my_rank(), helper.my_rank(), my_rank.__wrapped__(), my_rank.cache_info().misses

    cached = helper.my_rank
    for world in (World(3), World(2), World(3, backend="dryrun", rank=2)):
        run = world.run(program)
        assert list(run) == [(rank, rank, rank, 1) for rank in run._ranks]
    assert helper.my_rank is cached and cached.cache_info().misses == 0


SET = {"set_up": "RANK", "manage": "manager", "build": "net"}


@pytest.mark.parametrize("setter", SET)
@pytest.mark.parametrize("again", [False, True])
def test_a_variable_that_each_rank_would_have_of_its_own_is_named_and_reset(helper, setter, again) -> None:
    before = getattr(helper, SET[setter])
    told = rf"both ranks share helper_of_ranks\.{SET[setter]}, and this run has set it: .* Next: use World\(2, backend"
    for _ in range(1 + again):
        with pytest.warns(CourseWarning, match=told):
            run = World(2).run(getattr(helper, setter))
        assert len(run.warnings) == 1 and getattr(helper, SET[setter]) is before


def test_a_run_that_fails_names_it_too(helper) -> None:
    def program() -> None:
        helper.set_up()
        raise ValueError("no such group")

    with pytest.raises(RankError, match=r"Note: both ranks share helper_of_ranks\.RANK, and this run has set it: "):
        World(2).run(program)


USES = [
    dist.barrier,
    dist.get_backend,
    lambda group: dist.get_group_rank(group, 0),
    lambda group: all_reduce(torch.ones(1), "sum", group).sum(),
]


@pytest.mark.parametrize("use", USES)
def test_a_group_of_another_rank_from_a_table_of_a_module(helper, use) -> None:
    def program() -> None:
        groups = [dist.new_group([rank]) for rank in range(2)]
        helper.registry["group"] = groups[dist.get_rank()]
        dist.barrier()
        use(helper.registry["group"])

    with pytest.raises(RankError, match=r"find where the program keeps it: .* Simulated ranks share"):
        World(2).run(program)


def test_what_is_equal_on_all_ranks_may_be_shared(helper) -> None:
    assert World(3).run(helper.what_is_equal_on_all_ranks, (2, 2)).warnings == ()
    assert helper.calls == 3 and helper.table is not None


def test_ranks_that_have_modules_of_their_own(helper) -> None:
    assert World(1).run(helper.set_up).warnings == ()
    assert World(2, backend="processes").run(helper.set_up).warnings == ()
    assert helper.RANK == 0 and not dist.is_initialized()
