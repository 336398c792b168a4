"""The default group of all ranks: a world makes it before its function starts, a program by `init_process_group`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError
from .patching import Replacement

if TYPE_CHECKING:
    from ..collectives.rank import InterposedRank

_BACKENDS = {"gloo", "nccl", dist.Backend.UNDEFINED}
_init = c10d.init_process_group


def join(
    store: dist.Store, rank: int, world_size: int, backend: str = "gloo", device_id: torch.device | None = None
) -> None:
    """Join the default group. torch's own time limit is long, because the coordinator finds a missing rank first."""
    timeout = timedelta(hours=1)
    _init(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device_id)


def replacements(current: Callable[[], InterposedRank | None]) -> Iterator[Replacement]:
    """Yield the replacements with which a rank's `init_process_group` joins the group that its world provides."""

    @functools.wraps(_init)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: dist.Store | None = None,
        *more: Any,
        **named: Any,
    ) -> None:
        interposer = current()
        if interposer is None:
            return _init(backend, init_method, timeout, world_size, rank, store, *more, **named)
        _check_backend(backend)
        asked = {"rank": rank, "world_size": world_size}
        _check_numbers(interposer, (asked if store else _found(init_method)) | _given(asked))
        interposer.init_process_group(store)

    for module in (dist, c10d, device_mesh):
        yield module, "init_process_group", init_process_group


def _given(numbers: dict[str, int]) -> dict[str, int]:
    return {name: int(number) for name, number in numbers.items() if number not in (-1, None)}


def _found(init_method: str | None) -> dict[str, int]:
    """Return the rank and the number of ranks that an address names, or that torch reads from the environment."""
    url = urlparse(init_method or "env://")
    found = {name: int(value) for name, value in parse_qsl(url.query) if name in ("rank", "world_size")}
    if url.scheme == "env":
        found = {name: int(os.environ.get(name.upper(), -1)) for name in ("rank", "world_size")} | found
    return found


def _check_backend(backend: str | None) -> None:
    """Refuse a backend that no world has. NCCL may be asked for without a GPU: gloo takes its place."""
    names = {part.rpartition(":")[2].lower() for part in (backend or dist.Backend.UNDEFINED).split(",")}
    if not names <= _BACKENDS:
        raise CourseError(
            f"init_process_group({backend!r}): ranks exchange tensors through gloo here, and through NCCL on GPUs. "
            'Say "gloo" or "nccl", or leave the backend out.'
        )


def _check_numbers(interposer: InterposedRank, asked: dict[str, int]) -> None:
    """Refuse a rank, or a number of ranks, that differs from the world's."""
    for name, have in {"world_size": interposer.world_size, "rank": interposer.rank}.items():
        if asked.get(name, -1) not in (-1, have):
            raise CourseError(
                f"init_process_group was given {name}={asked[name]}, and it is {have} here. The number of ranks is "
                "chosen at the start: World(2), course run --ranks 2, mp.spawn(..., nprocs=2). Pass that number, and "
                "to each rank its own; or leave both out."
            )
