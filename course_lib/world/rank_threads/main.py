"""The `__main__` of a program, which pickle and others find in `sys.modules`, and the `print` that it may replace."""

import builtins
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from ..pickling.calls import FunctionCall, main_with
from ..pickling.kernel_classes import KernelUnpickler
from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement, replaced


class _MainOfRanks(ModuleType):
    """The `__main__` of a process whose threads are ranks: each of these finds its own, and so do the threads that it
    starts. Other threads find the `shared`."""

    def __init__(self, shared: ModuleType) -> None:
        super().__init__("__main__")
        super().__setattr__("_own", threading.local())
        super().__setattr__("_shared", shared)

    def __getattribute__(self, name: str) -> Any:
        return getattr(_of_this_thread(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_of_this_thread(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_of_this_thread(self), name)


def _own(main: _MainOfRanks) -> Any:
    return object.__getattribute__(main, "_own")


def _of_this_thread(main: _MainOfRanks) -> ModuleType:
    found: ModuleType = getattr(_own(main), "main", None) or object.__getattribute__(main, "_shared")
    return found


@contextmanager
def main_of_ranks() -> Iterator[None]:
    """Give each thread that is a rank its own `__main__` and its own `builtins.print` inside the block."""
    main = _MainOfRanks(ModuleType("__main__"))
    with is_main(main), replaced(_inherited(main)), _print_of_ranks():
        yield


@contextmanager
def main_of_notebook() -> Iterator[None]:
    """Give each thread that is a rank its own `__main__` inside the block, if it has none yet."""
    shared = sys.modules["__main__"]
    if isinstance(shared, _MainOfRanks):
        yield
        return
    main = _MainOfRanks(shared)
    with is_main(main), replaced(_inherited(main)):
        yield


def _inherited(main: _MainOfRanks) -> Iterator[Replacement]:
    """Let a thread find the `__main__` of the rank that starts it: it may save or load objects of the rank's classes,
    such as what a DataLoader's worker sends."""
    start, own = threading.Thread.start, _own(main)

    @functools.wraps(start)
    def start_with_main(thread: threading.Thread) -> None:
        of_rank, function = getattr(own, "main", None), thread.run

        def run() -> None:
            patch.close()  # a thread that holds itself would stay until Python's collector finds it
            own.main = of_rank
            function()

        patch = ExitStack()
        if of_rank is not None:
            patch.enter_context(replaced([(thread, "run", run)]))
        try:
            start(thread)
        except BaseException:
            patch.close()
            raise

    yield threading.Thread, "start", start_with_main


def unpack_on_rank(unpickler: KernelUnpickler) -> tuple[FunctionCall, ModuleType]:
    """Return a copy of a call for a rank that is a thread, with classes of its own, and the rank's `__main__`."""
    call: FunctionCall = unpickler.load()
    return call, main_with(unpickler.made, vars(sys.modules["__main__"]))


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
        own = _own(shared).__dict__  # this thread's: at Python's exit, the main thread ends the block of a late rank
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
