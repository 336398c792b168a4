"""The learner's imported modules, which ranks that are threads share: a process imports a module once.

A function with `lru_cache` gets a cache for each rank. A module's variables stay shared: `Variables` finds those that a
run has set, and of which each rank would have its own.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from dis import get_instructions
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...meter import is_learners, is_learners_file
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement

_Cache = type(functools.cache(len))


def _modules() -> list[ModuleType]:
    """Return the modules of the learner. The notebook is not one of them: its functions are copied."""
    found = (sys.modules.get(name) for name in _names(len(sys.modules), next(reversed(sys.modules))))
    return [module for module in found if module is not None]


@functools.lru_cache(maxsize=1)  # looking at some thousand modules takes a millisecond
def _names(number: int, last: str) -> list[str]:
    """Return the names of the learner's modules, when this `number` of modules is loaded and `last` was the last."""
    plain = [(name, vars(one).get("__file__")) for name, one in list(sys.modules.items()) if type(one) is ModuleType]
    return [name for name, file in plain if name != "__main__" and file and is_learners_file(file)]


def _replacing(replacement: Callable[[Any], Any]) -> Iterator[Replacement]:
    """Yield a replacement wherever a module of the learner holds something for which `replacement` returns one."""
    of = functools.cache(replacement)  # one, if several modules hold the same function
    for module in _modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, _Cache | FunctionType) and (new := of(value)) is not None:
                yield module, name, new


# -- caches ------------------------------------------------------------------------------------------------------


class _CacheOfRank:
    """A replacement for a function with `lru_cache`: each rank has an empty cache at first, as a new process has."""

    def __init__(self, of_process: Any) -> None:
        functools.update_wrapper(self, of_process)
        self._of_process, self._of_ranks = of_process, WeakKeyDictionary[Any, Any]()

    def _own(self) -> Any:
        rank = interposer.current()
        if rank is None:
            return self._of_process
        if rank not in self._of_ranks:
            parameters = self._of_process.cache_parameters()
            self._of_ranks[rank] = functools.lru_cache(**parameters)(self._of_process.__wrapped__)
        return self._of_ranks[rank]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._own()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __reduce__(self) -> str:
        return str(self._of_process.__qualname__)  # pickled by its name, like every function of a module


def caches() -> Iterator[Replacement]:
    """Yield replacements for functions with `lru_cache`."""
    yield from _replacing(lambda value: _CacheOfRank(value) if isinstance(value, _Cache) else None)


# -- variables ---------------------------------------------------------------------------------------------------

_OWN = torch.nn.Module, torch.optim.Optimizer
_OF_RANKS = re.compile("rank|group|mesh", re.IGNORECASE)


class Variables:
    """The variables of the learner's modules before a run."""

    def __init__(self) -> None:
        self._before = {module: dict(vars(module)) for module in _modules()}
        self._setters: set[FunctionType] = set()  # those that ranks have called

    def replacements(self) -> Iterator[Replacement]:
        """Yield replacements for functions that set variables: they note that they were called."""
        yield from _replacing(self._noted)

    def _noted(self, setter: Any) -> Callable[..., Any] | None:
        if isinstance(setter, _Cache) or not is_learners(setter.__code__) or not _sets(setter.__code__):
            return None

        @functools.wraps(setter)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._setters.add(setter)
            return setter(*args, **kwargs)

        return call

    def reset(self) -> list[str]:
        """Set variables of which each rank would have its own back to their values from before the run, as they are in
        a new process. Return their names, such as "helper.RANK".

        What is equal on all ranks may be shared: a setting, a table, a logger. So a variable counts if its value is a
        model or an optimizer, or if it has to do with ranks: by its name, its value or the functions that set it.
        """
        names = []
        for module, before in self._before.items():
            for name, value in list(vars(module).items()):
                if self._was_set(module, name, value) and _of_a_rank(module, name, value):
                    names.append(f"{module.__name__}.{name}")
                    setattr(module, name, before[name]) if name in before else delattr(module, name)
        return names

    def _was_set(self, module: ModuleType, name: str, value: Any) -> bool:
        """Return whether a variable was set. A number can be set to what it was before, such as 0 by rank 0."""
        if value is not self._before[module].get(name):
            return True
        setters = [one.__code__ for one in self._setters if one.__globals__ is vars(module)]
        return type(value) is int and any(name in _sets(code) for code in setters)


@functools.cache
def _sets(code: CodeType) -> frozenset[str]:
    """Return the module's variables that a function sets."""
    return frozenset(step.argval for step in get_instructions(code) if step.opname == "STORE_GLOBAL")


def _of_a_rank(module: ModuleType, name: str, value: Any) -> bool:
    if isinstance(value, FunctionType | ModuleType | type):
        return False
    return isinstance(value, _OWN) or any(map(_OF_RANKS.search, _words(module, name, value)))


def _words(module: ModuleType, name: str, value: Any) -> Iterator[str]:
    """Yield the names that describe a variable of `module`."""
    attributes = getattr(value, "__dict__", {})
    yield from (name, *attributes, *(type(one).__name__ for one in (value, *attributes.values())))
    for code in _codes(vars(module)):
        if name in _sets(code):
            texts = [constant for constant in code.co_consts if isinstance(constant, str)]
            yield from (*code.co_names, *code.co_varnames, *texts)


def _codes(namespace: dict[str, Any]) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods."""
    classes = [vars(value) for value in namespace.values() if isinstance(value, type)]
    for function in [value for names in [namespace, *classes] for value in names.values()]:
        if isinstance(function, FunctionType) and function.__globals__ is namespace:
            yield function.__code__
