"""Arithmetic that Python asks for is seen as any other operator is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib import World
from course_lib.meter.watching import owners

KB = 1024


def held(fn: Callable[[], Any]) -> list[tuple[int, str]]:
    """Bytes that came and went on a rank that calls `fn`, with the operator that made them."""
    timeline = World(1).run(fn).memory[0].timeline
    return [(sum(change.deltas.values()), change.operator) for change in timeline]


MAKING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sqrt": lambda x, y: x.sqrt(),
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - 1,
    "mul": lambda x, y: x * 2.5,
    "div": lambda x, y: x / y,
}
METHODS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda x, y: x.add(y, alpha=2),
    "sub": lambda x, y: x.sub(y),
    "mul": lambda x, y: x.mul(True),
    "div": lambda x, y: x.div(2, rounding_mode="floor"),
}


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("by_operator", [MAKING, METHODS], ids=["operators", "methods"])
def test_a_result_is_entered_once(by_operator: dict[str, Callable[[Tensor, Tensor], Any]], records: bool) -> None:
    def use() -> None:
        x, y = torch.ones(256, requires_grad=True), torch.ones(256)
        for compute in by_operator.values():
            with torch.set_grad_enabled(records):
                result = compute(x, y)
            del result

    made = [(nbytes, name) for nbytes, name in held(use) if name != "ones"]
    assert made == [(nbytes, operator) for operator in by_operator for nbytes in (KB, -KB)]


UPDATES = ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")


@pytest.mark.parametrize("number", [2, 2.5])
def test_an_update_by_a_number_makes_nothing_and_computes_what_torch_does(number: float) -> None:
    def use() -> list[Tensor]:
        updated = [torch.full((256,), 3.0) for _ in UPDATES]
        for x, name in zip(updated, UPDATES, strict=True):
            getattr(x, name)(number)
        return updated

    run = World(2).run(use)
    assert [change.operator for change in run.memory[0].timeline] == ["full"] * len(UPDATES)
    assert all(map(torch.equal, run[0], use()))


def test_an_update_by_a_tensor_shows_what_it_converts() -> None:
    def use() -> None:
        x = torch.ones(256)
        x.add_(torch.ones(256, dtype=torch.float64))

    assert "_to_copy" in [operator for _, operator in held(use)]


def test_what_autograd_saves_of_an_update_is_seen() -> None:
    def use() -> Tensor:
        factor = torch.ones(256, requires_grad=True)
        x = torch.ones(256) * 1.0
        x.mul_(factor)
        return x

    memory = World(1).run(use).memory[0]
    assert memory.by_category["activations"] == KB


class Keeping(TorchFunctionMode):
    """Makes memory of its own, whatever is asked for, and knows what was."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked.append(func.__name__)
        self.kept = torch.zeros(256)
        return func(*args, **(kwargs or {}))


class KeepingTensor(Tensor):
    """Makes memory of its own when it is asked for arithmetic."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("mul_", "add"):
            torch.zeros(256)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_what_a_mode_makes_inside_is_seen() -> None:
    def use() -> list[str]:
        x = torch.ones(256)
        with Keeping() as mode:
            x.mul_(2.0)
        return mode.asked

    assert held(use).count((KB, "zeros")) == 1
    assert World(1).run(use)[0] == use()


@pytest.mark.parametrize("first", [True, False])
def test_what_a_subclass_makes_inside_is_seen(first: bool) -> None:
    def use() -> None:
        x, y = torch.ones(256), torch.ones(256).as_subclass(KeepingTensor)
        y.mul_(2.0) if first else x.add(y)

    assert (KB, "zeros") in held(use)


class Halving(TorchDispatchMode):
    """Computes in Python, with arithmetic, what a single operator is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) / 2


def test_inside_an_operator_that_is_seen_nothing_else_is() -> None:
    def use() -> Tensor:
        x = torch.ones(256)
        with Halving():
            y = x.exp()
        return y.exp()  # which must be seen again

    assert [operator for nbytes, operator in held(use) if nbytes > 0] == ["ones", "exp", "exp"]


def test_optimizers_hold_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def use() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    here = held(use)
    monkeypatch.setattr(owners, "arithmetic_stand_ins", lambda: iter(()))
    assert here == held(use)
    assert "sqrt" in dict(map(reversed, here)) and "div" in dict(map(reversed, here))


def test_methods_are_torchs_own_again_after_a_run() -> None:
    inside = World(1).run(lambda: "mul_" in vars(Tensor))[0]
    assert inside
    assert not {"mul_", "__iadd__", "sqrt", "__truediv__"} & set(vars(Tensor))


def test_a_reflected_or_refused_operand_is_told_as_ever() -> None:
    def use() -> tuple[Tensor, str]:
        x = torch.ones(2)
        try:
            x + "a"  # type: ignore[operator]
        except TypeError as error:
            return 1 - x, str(error)
        raise AssertionError

    run = World(1).run(use)
    x, message = use()
    assert torch.equal(run[0][0], x) and run[0][1] == message
