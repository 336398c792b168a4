"""A hook on all modules runs only on the rank that has registered it, as in a process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.modules import module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import RankError, World


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def steps() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    for _ in range(5):
        net()(x).sum().backward()


def counted():
    with FlopCounterMode(display=False) as counter:
        steps()
    return {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}


@pytest.mark.parametrize("measure", [True, False])
def test_flops_by_module(measure) -> None:
    assert list(World(4, measure=measure).run(counted)) == [counted()] * 4


def test_comm_debug_mode_follows_modules() -> None:
    def program():
        with CommDebugMode() as mode:
            steps()
            all_reduce(torch.ones(1), "sum", dist.group.WORLD).sum()
        return mode.get_total_counts()

    assert list(World(4).run(program)) == [1] * 4


HOOKS = [
    "register_module_forward_hook",
    "register_module_full_backward_hook",
    "register_module_parameter_registration_hook",
]


@pytest.mark.parametrize("register", HOOKS)
def test_a_hook_runs_on_its_rank_and_ends_with_the_run(register) -> None:
    def program():
        seen = []
        getattr(module, register)(lambda *_: seen.append(dist.get_rank()))
        dist.barrier()
        steps()
        dist.barrier()
        return seen

    first, second = World(2).run(program)
    assert set(first) == {0} and set(second) == {1} and len(first) == len(second)
    assert not any(hooks for name, hooks in vars(module).items() if name.startswith("_global_") and "hooks" in name)


def test_a_hook_of_the_notebook_runs_on_every_rank() -> None:
    seen = []
    handle = module.register_module_forward_hook(lambda *_: seen.append(dist.is_initialized() and dist.get_rank()))
    try:
        World(2).run(lambda: nn.ReLU()(torch.ones(1)))
        nn.ReLU()(torch.ones(1))
    finally:
        handle.remove()
    assert sorted(seen[:2]) == [0, 1] and seen[2:] == [False]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_compiled_modules() -> None:
    def program():
        torch.manual_seed(0)
        one, x = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.eye(2)  # DDP broadcasts the buffers
        return torch.equal(torch.compile(DistributedDataParallel(one), backend="eager")(x), one(x))

    if torch.__version__ < (2, 13):
        with pytest.raises(RankError, match=r"take torch 2\.13 or newer"):
            World(2).run(program)
    else:
        assert list(World(2).run(program)) == [True, True]
