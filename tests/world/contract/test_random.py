"""A seeded rank draws what a seeded process draws, also inside a mode that watches its operators."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from course_lib import World

ones = torch.ones


def checkpointed():
    x = ones(8, requires_grad=True)
    checkpoint(F.dropout, x, use_reentrant=False, preserve_rng_state=True).sum().backward()
    return x.grad


def forked():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        inner = torch.rand(2)
    return inner + torch.rand(2)


def compiled():
    return torch.compile(lambda x: F.dropout(x) + torch.rand(8), backend="aot_eager")(ones(8))


DRAWS = {
    "randn": lambda: torch.randn(2),
    "rand": lambda: torch.rand(2),
    "randint": lambda: torch.randint(99, (3,)),
    "randperm": lambda: torch.randperm(6),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "normal with tensors": lambda: torch.normal(ones(3), ones(3)),
    "rand_like": lambda: torch.rand_like(ones(2)),
    "randn_like": lambda: torch.randn_like(ones(2)),
    "randint_like": lambda: torch.randint_like(ones(3), 99),
    "into a tensor": lambda: torch.randn(3, out=torch.empty(3)),
    "normal_": lambda: torch.empty(2).normal_(),
    "uniform_": lambda: torch.empty(2).uniform_(),
    "bernoulli_": lambda: torch.empty(9).bernoulli_(0.5),
    "exponential_": lambda: torch.empty(2).exponential_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "multinomial": lambda: torch.multinomial(ones(9), 5),
    "poisson": lambda: torch.poisson(torch.full((4,), 9.0)),
    "dropout": lambda: F.dropout(ones(9)),
    "dropout of what needs a gradient": lambda: F.dropout(ones(9, requires_grad=True)).detach(),
    "native_dropout": lambda: torch.native_dropout(ones(9), 0.5, True)[0],
    "alpha_dropout": lambda: F.alpha_dropout(ones(9), 0.5, True),
    "rrelu": lambda: F.rrelu(-ones(4), training=True),
    "attention": lambda: F.scaled_dot_product_attention(*[ones(1, 1, 3, 4)] * 3, dropout_p=0.5),
    "max-pool": lambda: F.fractional_max_pool2d(torch.arange(64.0).view(1, 8, 8), 2, output_size=3),
    "initialization": lambda: nn.Linear(3, 2).weight.detach(),
    "inference": lambda: torch.inference_mode()(F.dropout)(ones(9)).clone(),
    "vmap": lambda: torch.vmap(F.dropout, randomness="different")(ones(3, 3)),
    "a generator of its own": lambda: torch.rand(2, generator=torch.Generator().manual_seed(4)) + torch.rand(2),
    "the default generator": lambda: torch.rand(2, generator=torch.default_generator.manual_seed(7)),
    "the default generator, twice": lambda: torch.rand(2, generator=torch.default_generator) + torch.rand(2),
    "checkpoint": checkpointed,
    "fork_rng": forked,
}


def draws():
    numbers = {}
    for name, draw in DRAWS.items():
        torch.manual_seed(3)
        numbers[name] = [draw().tolist(), torch.rand(1).item()]
    return numbers


class Noise(TorchDispatchMode):
    """A mode that draws for itself, inside its own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.sin.default:
            self.drawn = torch.randn(2).tolist()
        return func(*args, **kwargs or {})


def noise():
    torch.manual_seed(3)
    with Noise() as mode:
        torch.sin(ones(1))
        return mode.drawn


@contextmanager
def nested():
    with FlopCounterMode(display=False), CommDebugMode():
        yield


MODES = {"no mode": nullcontext, "FLOPs": lambda: FlopCounterMode(display=False), "comm": CommDebugMode, "two": nested}


def in_a_mode(name):
    with MODES[name]():
        return draws()


@pytest.mark.parametrize("mode", MODES)
def test_seeded_numbers_are_those_of_one_process(mode) -> None:
    alone = in_a_mode(mode)
    assert list(World(2).run(in_a_mode, mode)) == [alone, alone]


def test_seeded_numbers_in_a_strict_run_and_in_a_mode_that_draws(local_world) -> None:
    alone = draws()
    assert list(local_world(2, strict=True).run(draws)) == [alone, alone]
    assert list(local_world(2).run(noise)) == [noise()] * 2


@pytest.mark.slow
def test_seeded_numbers_in_a_compiled_function() -> None:
    def program():
        torch.manual_seed(3)
        return compiled().tolist()

    assert list(World(2).run(program)) == [program()] * 2


def test_a_dry_run_draws_in_a_mode() -> None:
    def program():
        with FlopCounterMode(display=False):
            return torch.empty(3).normal_() + F.dropout(torch.randn(3)) + torch.rand(3, generator=torch.Generator())

    assert World(2, backend="dryrun").run(program)[0].shape == (3,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support on cpu")
def test_seeded_numbers_of_a_dtensor() -> None:
    def program():
        torch.manual_seed(3)
        ones = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
        return F.dropout(ones).to_local().tolist(), torch.rand(1).item()

    torch.manual_seed(3)
    alone = F.dropout(ones(2, 4)).tolist(), torch.rand(1).item()
    assert list(World(2).run(program)) == [alone, alone]
