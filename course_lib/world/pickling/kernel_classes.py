"""The notebook's classes in the kernel's process: each rank that is a thread has its own, and what ranks return is of
the notebook's again."""

import contextlib
import functools
import gc
import io
import pickle
from collections.abc import Sequence
from types import CellType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

import cloudpickle
import torch

from .pickler import Pickler

_classes_by_tracker = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
_trackers = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS


class KernelUnpickler(pickle.Unpickler):
    """An unpickler that leaves the notebook's classes as they are.

    cloudpickle tracks classes: in the process that packed a class, a copy is the class itself, and its attributes are
    reset to the packed ones. Here they are not.

    Attributes:
        made: the classes and functions that came by value.
    """

    def __init__(self, packed: bytes, *, own_classes: bool = False, tensors: Sequence[torch.Tensor] = ()) -> None:
        """Read `packed`, which may name `tensors` by their numbers. With `own_classes`, for a rank that is a thread,
        make new classes: then ranks share no attributes. An enumeration stays the notebook's, because its members are
        compared by identity."""
        super().__init__(io.BytesIO(packed))
        self.made: list[Any] = []
        self._own_classes, self._tensors = own_classes, tensors
        self._known: list[Any] = []

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]

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


_NOT_OF_A_RESULT = ModuleType | FrameType | TracebackType
_TABLES = dict, set, frozenset


def with_kernels_classes(value: Any) -> Any:
    """Return what a rank that is a thread returned. Its objects of the rank's own classes are now objects of the
    notebook's: there, `isinstance` and `==` would not know the rank's classes.

    They stay the same objects, and dictionaries, lists and functions that hold a class of the rank's are changed. Only
    if Python does not let an object change its class, something else holds a class of the rank's, or a key's hash has
    changed with its class, the result is copied, as from a process, except for its tensors.
    """
    if len(_trackers) == len(_classes_by_tracker):  # no rank has a class
        return value
    kinds, seen, tables, unread, stuck = set[type](), set[int](), list[Any](), [value], False
    while unread:
        one = unread.pop()
        kind = type(one)  # `isinstance` would ask a `weakref.proxy` for the class of its object
        if id(one) in seen or issubclass(kind, _NOT_OF_A_RESULT):
            continue
        seen.add(id(one))
        if issubclass(kind, type):
            stuck |= kernels_class(one) is not one
            continue
        _hold_kernels_classes(one)
        if issubclass(kind, FunctionType):
            unread += [*(one.__closure__ or ()), *(one.__defaults__ or ()), one.__kwdefaults__, vars(one)]
            unread += [one.__globals__] if one.__globals__.get("__name__") == "__main__" else []
            continue
        try:
            if kind not in kinds:
                kinds.add(kind)
                _derive_from_kernels(kind)
            if (kernels := kernels_class(kind)) is not kind:
                object.__setattr__(one, "__class__", kernels)
        except TypeError:  # Python 3.11 refuses this for classes derived from tuple, int or bytes
            stuck = True
        tables += [one] if issubclass(kind, _TABLES) else []
        unread += filter(gc.is_tracked, gc.get_referents(one))  # its class is among them
    with contextlib.suppress(Exception):  # a `__hash__` of the notebook's may work on ranks only
        stuck |= not all(map(_finds_its_keys, tables))
    return _copied(value) if stuck else value


def _hold_kernels_classes(one: Any) -> None:
    """Replace the classes of a rank in a dictionary or a list, and in the defaults and variables of a function, such as
    that of `super()`."""
    kind = type(one)
    if issubclass(kind, dict):
        dict.update(one, {key: kernels_class(held) for key, held in dict.items(one) if issubclass(type(held), type)})
    elif issubclass(kind, list):
        list.__setitem__(one, slice(None), [*map(_kernels, list.__iter__(one))])
    elif issubclass(kind, FunctionType) and one.__defaults__:
        one.__defaults__ = tuple(map(_kernels, one.__defaults__))
    elif kind is CellType:
        with contextlib.suppress(ValueError):  # it is empty
            one.cell_contents = _kernels(one.cell_contents)


def _kernels(held: Any) -> Any:
    return kernels_class(held) if issubclass(type(held), type) else held


def _finds_its_keys(table: Any) -> bool:
    """Return whether the hashes of a table's keys are those that it remembers: these make the hash of a frozen set of
    the table. The operator `in` finds the key itself by chance."""
    keys = frozenset(dict.copy(table) if issubclass(type(table), dict) else table)
    return hash(keys) == hash(frozenset([*keys]))


def _derive_from_kernels(kind: type) -> None:
    """Let a class that is derived from a rank's classes, such as that of a sharded module, be derived from the
    kernel's. Python replaces an object's class only by one with the same bases, if they have `__slots__`."""
    for base in reversed(kind.__mro__):
        bases = tuple(map(kernels_class, base.__bases__))
        if any(new is not old for new, old in zip(bases, base.__bases__, strict=True)):
            base.__bases__ = bases


class _StructurePickler(Pickler):
    """A pickler that leaves tensors, with their gradients and graphs, where they are."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> int | None:
        if not issubclass(type(obj), torch.Tensor):
            return None
        self.tensors.append(obj)
        return len(self.tensors) - 1


def _copied(value: Any) -> Any:
    """Return a copy with the same tensors; `value` itself if it cannot be copied."""
    pickler = _StructurePickler(buffer := io.BytesIO())
    try:
        pickler.dump(value)
        return KernelUnpickler(buffer.getvalue(), tensors=pickler.tensors).load()
    except Exception:
        return value
