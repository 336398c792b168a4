"""What the backend of a collective keeps a moment longer than the rank is not counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import World
from course_lib.meter import memory_meter
from course_lib.meter.tensors import aliases
from course_lib.meter.tensors.storages import tensors_in

N = 1000
BYTES = 4 * N


def in_python(tensors: list[Tensor]) -> list[Any]:
    return tensors


def in_a_graph(tensors: list[Tensor]) -> list[Any]:
    """Only C++ has the tensors: autograd, which saved them for backward."""
    return [tensor * torch.ones(1, requires_grad=True) for tensor in tensors]


def kept_for(seconds: float, keep: Callable[[list[Tensor]], list[Any]] = in_python) -> type[aliases.Aliases]:
    """Backend aliases that the backend keeps for `seconds`."""

    class Kept(aliases.Aliases):
        def __init__(self, arguments: Iterable[Any]) -> None:
            super().__init__(arguments)
            kept = keep(list(tensors_in(self.arguments)))
            thread = threading.Timer(seconds, kept.clear)
            thread.daemon = True
            thread.start()

    return Kept


def make_another() -> Any:
    return torch.zeros(N)


def resize_a_tensor() -> Any:
    return torch.empty(0).resize_(N)


def resize_a_storage() -> Any:
    storage = torch.empty(0).untyped_storage()
    storage.resize_(BYTES)
    return storage


def set_a_tensor() -> Any:
    return torch.empty(0).set_(torch.UntypedStorage(BYTES))


@pytest.fixture(params=[make_another, resize_a_tensor, resize_a_storage, set_a_tensor], ids=lambda make: make.__name__)
def program(request: pytest.FixtureRequest) -> Callable[[], None]:
    """All-reduces and drops a tensor, and has as many bytes again in another way."""
    have = request.param

    def run() -> None:
        x = torch.ones(N)
        dist.all_reduce(x)
        del x
        have()

    return run


@pytest.mark.parametrize("keep", [in_python, in_a_graph])
def test_a_tensor_that_the_backend_keeps_a_moment_longer_is_not_counted_beside_the_next(
    program: Callable[[], None], keep: Callable[[list[Tensor]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_meter, "Aliases", kept_for(0.1, keep))
    assert [report.peak_bytes for report in World(2).run(program).memory] == [BYTES, BYTES]


def test_a_tensor_that_the_backend_never_gives_back_is_counted_and_waited_for_no_longer_than_said(
    program: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_meter, "Aliases", kept_for(5.0))
    monkeypatch.setattr(aliases, "PATIENCE", 0.2)
    start = time.perf_counter()
    assert [report.peak_bytes for report in World(2).run(program).memory] == [2 * BYTES, 2 * BYTES]
    assert time.perf_counter() - start < 4.0
