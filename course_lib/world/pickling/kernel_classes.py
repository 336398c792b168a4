"""The notebook's classes in the kernel's process: each rank that is a thread has its own, and what ranks return is of
the notebook's again."""

import contextlib
import ctypes
import functools
import gc
import io
import operator
import pickle
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import cloudpickle

_classes_by_tracker = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
_trackers = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS


class KernelUnpickler(pickle.Unpickler):
    """An unpickler that leaves the notebook's classes as they are.

    cloudpickle tracks classes: in the process that packed a class, a copy is the class itself, and its attributes are
    reset to the packed ones. Here they are not.

    Attributes:
        made: the classes and functions that came by value.
    """

    def __init__(self, packed: bytes, *, own_classes: bool = False) -> None:
        """Read `packed`. With `own_classes`, for a rank that is a thread, make new classes: then ranks share no
        attributes. An enumeration stays the notebook's, because its members are compared by identity."""
        super().__init__(io.BytesIO(packed))
        self.made: list[Any] = []
        self._own_classes = own_classes
        self._known: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        makers = {
            "_make_function": self._function,
            "_make_skeleton_class": self._class,
            "_make_skeleton_enum": self._enum,
            "_class_setstate": self._set_state,
        }
        ours = makers.get(name) if module == "cloudpickle.cloudpickle" else None
        return found if ours is None else functools.partial(ours, found)

    def _function(self, found: Any, *args: Any) -> Any:
        self.made.append(found(*args))
        return self.made[-1]

    def _class(self, found: Any, *args: Any) -> Any:
        if not self._own_classes:
            return self._enum(found, *args)
        *args_, tracker, extra = args
        self.made.append(found(*args_, None, extra))
        _trackers[self.made[-1]] = tracker  # see `kernels_class`
        return self.made[-1]

    def _enum(self, found: Any, *args: Any) -> Any:
        known = _classes_by_tracker.get(args[-2])
        if known is not None:
            self._known.append(known)
        self.made.append(found(*args) if known is None else known)
        return self.made[-1]

    def _set_state(self, found: Any, kind: type, state: Any) -> Any:
        return kind if any(kind is known for known in self._known) else found(kind, state)


def kernels_class(kind: type) -> type:
    """Return the notebook's class of which `kind` is the class of a rank that is a thread; else `kind` itself."""
    found: type = _classes_by_tracker.get(_trackers.get(kind), kind)
    return found


_NOT_OF_A_RESULT = type | ModuleType | FunctionType | FrameType | TracebackType


def with_kernels_classes(value: Any) -> Any:
    """Return what a rank that is a thread returned. Its objects of the rank's own classes are now objects of the
    notebook's: there, `isinstance` and `==` would not know the rank's classes."""
    if issubclass(type(value), type):  # `isinstance` would ask a `weakref.proxy` for the class of its object
        return kernels_class(value)
    if len(_trackers) == len(_classes_by_tracker):  # no rank has a class
        return value
    kinds, seen, unread = set[type](), set[int](), [value]
    while unread:
        one = unread.pop()
        kind = type(one)
        if id(one) in seen or issubclass(kind, _NOT_OF_A_RESULT):
            continue
        seen.add(id(one))
        unread += filter(gc.is_tracked, gc.get_referents(one))
        if kind not in kinds:
            kinds.add(kind)
            _derive_from_kernels(kind)
        if (kernels := kernels_class(kind)) is not kind:
            _set_class(one, kernels)
    return value


def _derive_from_kernels(kind: type) -> None:
    """Let a class that is derived from a rank's classes, such as that of a sharded module, be derived from the
    kernel's. Python replaces an object's class only by one with the same bases, if they have `__slots__`."""
    for base in reversed(kind.__mro__):
        bases = tuple(map(kernels_class, base.__bases__))
        if any(new is not old for new, old in zip(bases, base.__bases__, strict=True)):
            with contextlib.suppress(TypeError):  # see `_set_class`
                base.__bases__ = bases


_LAYOUT = operator.attrgetter("__basicsize__", "__itemsize__", "__dictoffset__", "__weakrefoffset__")


def _set_class(one: Any, kernels: type) -> None:
    """Let `one`, of a rank's class, be of the kernel's.

    Python 3.11 refuses this for a class that is derived from tuple, int or bytes, and for one with a slot for weak
    references, although the two classes have the same layout. Python 3.12 sets the same field as the lines below.
    """
    try:
        object.__setattr__(one, "__class__", kernels)
    except TypeError:
        kind = type(one)
        field = ctypes.c_void_p.from_address(id(one) + object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p))
        if _LAYOUT(kind) == _LAYOUT(kernels) and field.value == id(kind):
            if kind.__dictoffset__:
                object.__getattribute__(one, "__dict__")  # makes the dict: before, attributes lie as the class says
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kernels))
            field.value = id(kernels)
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(kind))
