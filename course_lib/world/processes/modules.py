"""The modules of a rank's process: the learner's imported ones, again when they have changed, and `__main__`.

`__main__` holds the classes and functions of the notebook that came with the run. They travel by value, and pickle
finds them by name: without this, a rank could not pickle an object of a class that a cell defines.
"""

import importlib
import io
import os
import pickle
import sys
from types import ModuleType
from typing import Any

from ...meter import is_learners_file
from ..learner_code import file_of
from ..pickling.calls import FunctionCall, main_with


class FreshImports:
    """The modules that this process has imported, with the times at which the learner's files were changed.

    A module's function travels by name. A process outlives its run, and would otherwise use the module's old version.
    """

    def __init__(self) -> None:
        self._changed: dict[str, int | None] = {}

    def note(self) -> None:
        """Remember the modules that were imported since the last call."""
        for name in sys.modules.keys() - self._changed.keys():
            self._changed[name] = _changed(sys.modules[name])

    def forget_changed(self) -> None:
        """Remove modules whose files have changed, so that the next import loads them again."""
        for name, changed in list(self._changed.items()):
            if changed is not None and name in sys.modules and _changed(sys.modules[name]) != changed:
                del sys.modules[name], self._changed[name]
                importlib.invalidate_caches()


def _changed(module: ModuleType) -> int | None:
    """Return when the learner changed the module's file; None for a library's module, or one without a file."""
    file = file_of(module)
    if not file or not is_learners_file(file) or not os.path.exists(file):
        return None
    return os.stat(file).st_mtime_ns


_MAKERS = ("_make_function", "_make_skeleton_class", "_make_skeleton_enum")  # of cloudpickle, for what comes by value


class _Unpickler(pickle.Unpickler):
    """An unpickler that keeps the classes and functions that it makes."""

    def __init__(self, packed: bytes) -> None:
        super().__init__(io.BytesIO(packed))
        self.made: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module != "cloudpickle.cloudpickle" or name not in _MAKERS:
            return found

        def make(*args: Any) -> Any:
            self.made.append(found(*args))
            return self.made[-1]

        return make


def unpack_with_main(packed: bytes) -> tuple[FunctionCall, ModuleType]:
    """Return a new copy of a function, its arguments and its keyword arguments, and a new `__main__` with the classes
    and functions of the notebook among them."""
    unpickler = _Unpickler(packed)
    call: FunctionCall = unpickler.load()
    return call, main_with(unpickler.made, {})
