"""Hooks on all modules, such as those of `FlopCounterMode` and `CommDebugMode`.

torch keeps them for the whole process. While threads are ranks, a hook runs only on the rank that has registered it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.modules import module as of_torch

from .dispatch import current
from .patching import Replacement

Hook = Callable[..., Any]


class _HooksOfRanks(OrderedDict[int, Hook]):
    """A replacement for one of torch's tables of hooks. It starts with those that the process has registered."""

    def __setitem__(self, number: int, hook: Hook) -> None:
        rank = current()
        super().__setitem__(number, hook if rank is None else _only_on(rank, hook))


def _only_on(rank: Any, hook: Hook) -> Hook:
    return lambda *args, **kwargs: hook(*args, **kwargs) if current() is rank else None


def replacements() -> Iterator[Replacement]:
    for name, hooks in vars(of_torch).items():
        if name.startswith("_global_") and name.endswith("_hooks"):
            yield of_torch, name, _HooksOfRanks(hooks)
