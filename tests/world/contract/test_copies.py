"""What a notebook's function uses reaches every rank: a copy of it, or the same module and operator of torch."""

import functools
import typing

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
from torch._higher_order_ops import flex_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib import World
from tests.world.programs import rank

aten, MATH = torch.ops.aten, SDPBackend.MATH


def sets_flags_of_backends():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    cudnn.benchmark = cudnn.benchmark
    return torch.backends.cudnn is cudnn


def calls_an_operator():
    return aten.add.Tensor(torch.ones(2), torch.ops.aten.ones.default([2])).shape == (2,)


def test_modules_with_a_type_of_their_own_and_operators(local_world) -> None:
    must_save = {torch.ops.aten.mm.default, torch.ops.aten.addmm, flex_attention}

    def names_them():
        here = {torch.ops.aten.mm.default, torch.ops.aten.addmm, torch.ops.higher_order.flex_attention}
        return must_save == here and aten is torch.ops.aten

    for program in (sets_flags_of_backends, calls_an_operator, names_them):
        assert list(local_world(2).run(in_the_notebook(program))) == [True, True]
        assert World(2, backend="dryrun").run(in_the_notebook(program))[0]


def names_kernels_of_attention():
    with sdpa_kernel([SDPBackend.MATH]):
        return MATH == SDPBackend.MATH != SDPBackend.FLASH_ATTENTION


def test_classes_that_torch_has_renamed_and_their_members(local_world) -> None:
    assert list(local_world(2).run(in_the_notebook(names_kernels_of_attention))) == [True, True]


def in_the_notebook(program):
    """Return a function that travels by value, with what it uses, as a notebook's does."""
    program.__module__ = "__main__"
    return program


def test_a_cached_function_of_the_notebook_has_a_cache_on_each_rank(local_world) -> None:
    @functools.cache
    def steps(n):
        return [rank()] if n == 0 else [*steps(n - 1), n]

    class Model:
        @functools.lru_cache(maxsize=1)  # noqa: B019
        def number(self):
            return rank()

        @functools.cached_property
        def size(self):
            return dist.get_world_size()

    def program():
        model = Model()
        return steps(2), steps.cache_info().currsize, model.number(), model.size

    assert list(local_world(2).run(program)) == [([r, 1, 2], 3, r, 2) for r in range(2)]
    assert steps.cache_info().currsize == 0


def test_generators_and_the_limits_of_a_dtype(local_world) -> None:
    generator, limits = torch.Generator().manual_seed(3), torch.finfo(torch.bfloat16)
    expected = torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist()

    def program():
        drawn = torch.rand(2, generator=generator)
        return (drawn.tolist() if world_runs() else None), limits.max

    def world_runs():
        return type(torch.empty(1)) is torch.Tensor

    assert list(local_world(2).run(program)) == [(expected, limits.max)] * 2
    assert World(2, backend="dryrun").run(program)[0] == (None, limits.max)


def test_a_named_tuple_of_the_notebook(local_world) -> None:
    class Point(typing.NamedTuple):
        x: int
        y: int = 3

        def total(self):
            return self.x + self.y

    assert list(local_world(2).run(lambda: (Point(rank()).total(), Point(1)._asdict()))) == [
        (3 + r, {"x": 1, "y": 3}) for r in range(2)
    ]


def test_a_decorated_autograd_function_of_the_notebook(local_world) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable  # uses torch._C._functions, a module that no import finds
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    def program():
        x = torch.tensor(3.0, requires_grad=True)
        Square.apply(x).backward()
        return x.grad.item()

    assert list(local_world(2).run(program)) == [6.0] * 2
