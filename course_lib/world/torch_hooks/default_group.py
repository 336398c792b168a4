"""The default group of all ranks. A world makes it before its function starts; a program calls `init_process_group`."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from ...errors import CourseError
from .dispatch import current
from .patching import Replacement

if TYPE_CHECKING:
    from ..collectives.rank import InterposedRank

_BACKENDS = {"gloo", "nccl", dist.Backend.UNDEFINED}
init = c10d.init_process_group
"""torch's own."""


_CHOSEN = {
    "world_size": "The number of ranks is chosen at the start: World(2), course run --ranks 2, mp.spawn(..., "
    "nprocs=2). Pass that number, and to each rank its own; or leave both out.",
    "rank": 'A world numbers the ranks: leave rank= out, or pass int(os.environ["RANK"]). If the program starts its '
    "ranks itself, a process has the number that mp.spawn passes first, or its place in the order of start(). Pass "
    "that number.",
}
"""Why an argument must be the world's, and what to do."""


def join(
    store: dist.Store, rank: int, world_size: int, backend: str = "gloo", device_id: torch.device | None = None
) -> None:
    """Join the default group. torch's own time limit is long, because the coordinator finds a missing rank first."""
    timeout = timedelta(hours=1)
    init(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device_id)


def replacements() -> Iterator[Replacement]:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        interposer = current()
        if interposer is None:
            return init(*args, **kwargs)
        asked = signature.bind(*args, **kwargs).arguments
        _check_backend(asked.get("backend"))
        _check_numbers(interposer, **asked)
        interposer.init_process_group(asked.get("store"))

    for module in (dist, c10d, device_mesh):
        yield module, "init_process_group", init_process_group


def _check_backend(backend: str | None) -> None:
    """Refuse a backend that no world has. NCCL may be asked for without a GPU: gloo takes its place."""
    names = {part.rpartition(":")[2].lower() for part in (backend or dist.Backend.UNDEFINED).split(",")}
    if not names <= _BACKENDS:
        raise CourseError(
            f"init_process_group({backend!r}): ranks exchange tensors through gloo here, and through NCCL on GPUs. "
            'Say "gloo" or "nccl", or leave the backend out.'
        )


def _check_numbers(
    interposer: InterposedRank, *, init_method: str | None = None, store: dist.Store | None = None, **passed: Any
) -> None:
    """Refuse a rank, or a number of ranks, that differs from the world's: torch takes it from the arguments, else from
    the address, else from the environment."""
    url = urlparse("" if store else init_method or "env://")
    in_address, environ = dict(parse_qsl(url.query)), os.environ if url.scheme == "env" else {}
    for name, have in {"world_size": interposer.world_size, "rank": interposer.rank}.items():
        said = (passed.get(name), in_address.get(name), environ.get(name.upper()))
        asked = next((int(number) for number in said if number not in (None, -1)), have)
        if asked != have:
            raise CourseError(f"init_process_group was given {name}={asked}, and it is {have} here. {_CHOSEN[name]}")
