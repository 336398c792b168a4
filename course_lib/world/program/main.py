"""The `__main__` of a program, which pickle and others find in `sys.modules`, and the `print` that it may replace."""

import builtins
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ..torch_hooks import interposer


class _MainOfRanks(ModuleType):
    """The `__main__` of a process whose threads are ranks: each thread finds its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        super().__setattr__("_own", threading.local())

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__("_own")
        return getattr(own.main, name) if hasattr(own, "main") else super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = super().__getattribute__("_own")
        setattr(own.main, name, value) if hasattr(own, "main") else super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        own = super().__getattribute__("_own")
        delattr(own.main, name) if hasattr(own, "main") else super().__delattr__(name)


@contextmanager
def main_of_ranks() -> Iterator[None]:
    """Give each thread that is a rank its own `__main__` and its own `builtins.print` inside the block."""
    with is_main(_MainOfRanks("__main__")), _print_of_ranks():
        yield


@contextmanager
def _print_of_ranks() -> Iterator[None]:
    """Many programs replace `print`, so that only rank 0 prints: let each thread that is a rank replace its own."""
    own, real = threading.local(), print

    class Builtins(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "print" and interposer.current() is not None:
                own.print = value
            else:
                super().__setattr__(name, value)

    @functools.wraps(real)
    def print_of_rank(*args: Any, **kwargs: Any) -> None:
        call, own.print = getattr(own, "print", real), real  # which the rank's own calls
        try:
            call(*args, **kwargs)
        finally:
            own.print = call

    builtins.print = print_of_rank
    builtins.__class__ = Builtins
    try:
        yield
    finally:
        builtins.__class__ = ModuleType
        builtins.print = real


@contextmanager
def is_main(main: ModuleType) -> Iterator[None]:
    """Let pickle and others find `main` inside the block; if threads are ranks, only from the calling thread."""
    shared = sys.modules["__main__"]
    if isinstance(shared, _MainOfRanks) and interposer.current() is not None:
        own = shared._own.__dict__  # this thread's: at Python's exit, the main thread ends the block of a late rank
        own["main"] = main
        try:
            yield
        finally:
            own.pop("main", None)
        return
    before = {name: sys.modules.get(name) for name in ("__main__", "__mp_main__")}
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)  # the program may have deleted it
            if module is not None:
                sys.modules[name] = module
