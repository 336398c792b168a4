"""The learner's imported modules, which ranks that are threads share: a process imports a module once.

A function with `lru_cache` gets a cache for each rank. A module's variables stay shared: `Variables` finds those that a
run has set, and of which each rank would have its own.
"""

import functools
import re
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...meter import is_learners_file
from ..pickling.pickler import CachedFunction, with_empty_cache
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement


def _modules() -> tuple[ModuleType, ...]:
    """Return the modules of the learner. The notebook is not one of them: its functions are copied."""
    modules = sys.modules.copy()
    for main in ("__main__", "__mp_main__"):
        modules.pop(main, None)
    return _learners(tuple(modules), tuple(map(id, modules.values())))


@functools.lru_cache(maxsize=1)  # each run asks twice, and looking at the modules of torch and Jupyter takes 1 ms
def _learners(names: tuple[str, ...], ids: tuple[int, ...]) -> tuple[ModuleType, ...]:
    """Return the modules of the learner among the imported ones, which have these names and are these objects."""
    plain = [sys.modules[name] for name in names if type(sys.modules.get(name)) is ModuleType]
    return tuple(one for one in plain if (file := vars(one).get("__file__")) and is_learners_file(file))


def caches() -> Iterator[Replacement]:
    """Yield replacements for functions with `lru_cache`."""
    of_ranks = functools.cache(_of_ranks)  # one, if several modules hold the same function
    for module in _modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, CachedFunction):
                yield module, name, of_ranks(value)


def _of_ranks(cached: Any) -> Any:
    """Return a function that is `cached` with an empty cache on each rank at first, as in a new process."""
    of_ranks = WeakKeyDictionary[Any, Any]()

    def own() -> Any:
        rank = interposer.current()
        if rank is None:
            return cached
        if rank not in of_ranks:
            of_ranks[rank] = with_empty_cache(cached.__wrapped__, cached.cache_parameters())
        return of_ranks[rank]

    call: Any = functools.wraps(cached.__wrapped__)(lambda *args, **kwargs: own()(*args, **kwargs))
    call.cache_info, call.cache_clear = lambda: own().cache_info(), lambda: own().cache_clear()
    call.cache_parameters = cached.cache_parameters
    return call


_OWN = torch.nn.Module, torch.optim.Optimizer
_OF_RANKS = re.compile("rank|group|mesh", re.IGNORECASE)


class Variables:
    """The variables of the learner's modules before a run."""

    def __init__(self) -> None:
        self._before = {module: dict(vars(module)) for module in _modules()}

    def reset(self) -> list[str]:
        """Set variables of which each rank would have its own back to their values from before the run, as they are in
        a new process. Return their names, such as "helper.RANK".

        What is equal on all ranks may be shared: a setting, a table, a logger. So a variable counts if its value is a
        model or an optimizer, or if its name or its value has to do with ranks.
        """
        names = []
        for module, before in self._before.items():
            for name, value in list(vars(module).items()):
                if value is not before.get(name) and _is_of_a_rank(name, value):
                    names.append(f"{module.__name__}.{name}")
                    setattr(module, name, before[name]) if name in before else delattr(module, name)
        return names


def _is_of_a_rank(name: str, value: Any) -> bool:
    if isinstance(value, FunctionType | ModuleType | type):
        return False
    attributes = getattr(value, "__dict__", {})
    words = (name, *attributes, *(type(one).__name__ for one in (value, *attributes.values())))
    return isinstance(value, _OWN) or any(map(_OF_RANKS.search, words))
