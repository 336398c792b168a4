"""The `__main__` of a rank's process: the classes and functions of the notebook that came with the run.

They travel by value, and pickle finds them by name: without this, a rank could not pickle an object of a class that a
cell defines.
"""

import io
import pickle
import sys
from types import ModuleType
from typing import Any

from ..pickling import FunctionCall

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


def unpack_in_main(packed: bytes) -> FunctionCall:
    """Return a new copy of a function, its arguments and its keyword arguments, and give this process the `__main__` of
    `unpack_with_main`."""
    call, sys.modules["__main__"] = unpack_with_main(packed)
    return call


def unpack_with_main(packed: bytes) -> tuple[FunctionCall, ModuleType]:
    """Return a new copy of a function, its arguments and its keyword arguments, and a new `__main__` with the classes
    and functions of the notebook among them."""
    unpickler = _Unpickler(packed)
    call: FunctionCall = unpickler.load()
    main = ModuleType("__main__")
    for one in reversed(unpickler.made):  # of a decorated function, the outer one comes first, and counts
        if one.__module__ == "__main__":
            setattr(main, one.__qualname__, one)  # the name of a method has a dot, and finds nothing
    return call, main
