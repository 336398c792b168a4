"""Pickling: what goes to a rank (a function, its arguments and what they use) and what comes back.

Ranks share no memory, as processes do not: each works on its own copy.
"""

import contextlib
import dis
import functools
import gc
import inspect
import io
import pickle
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, NamedTuple

import cloudpickle
import torch

from ..errors import CourseError
from .torch_hooks import private

FunctionCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments and its keyword arguments."""

# cloudpickle copies the globals that a function reads. It misses globals that only a class body in the function reads,
# such as a decorator or a type annotation: Python reads these with different instructions.
cloudpickle.cloudpickle.GLOBAL_OPS += tuple(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)


# -- to a rank and back ------------------------------------------------------------------------------------------


class Pickler(cloudpickle.Pickler):
    """A pickler of what training programs use, and cloudpickle refuses or does not copy.

    Tensors that share memory share it in the copy, too.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, torch.storage.TypedStorage] = {}  # the first of each memory

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):  # each tensor makes one when it is pickled
            first = self._storages.setdefault(obj._untyped_storage._cdata, obj)
            if first is not obj:
                return _same_memory, (first, obj.dtype)
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:  # such as torch.backends, torch.ops, six.moves
            return pkgutil.resolve_name, (obj.__name__,)
        if isinstance(obj, private.OPERATORS):
            return pkgutil.resolve_name, (private.path_of(obj),)
        if isinstance(obj, private.CustomOpDef) and (path := _import_path(obj)):
            return pkgutil.resolve_name, (path,)
        if isinstance(obj, type) and private.is_renamed(obj):
            return pkgutil.resolve_name, (private.path_of(obj),)
        if isinstance(obj, torch.finfo | torch.iinfo):
            return type(obj), (getattr(torch, obj.dtype),)
        if isinstance(obj, torch.Generator):
            return _generator, (obj.device, bytes(obj.get_state().tolist()))
        if isinstance(obj, functools.cached_property):
            return functools.cached_property, (obj.func,), {"attrname": obj.attrname}  # without its lock
        if isinstance(obj, CachedFunction) and _of_notebook(obj):
            return with_empty_cache, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


CachedFunction = type(functools.cache(len))
"""The type of what `functools.lru_cache` returns."""


def _of_notebook(obj: Any) -> bool:
    """Return whether no import finds `obj`. pickle would find it in the kernel's `__main__`, and share it."""
    return cloudpickle.cloudpickle._lookup_module_and_qualname(obj, obj.__qualname__) is None


def _import_path(operator: private.CustomOpDef) -> str:
    """Return the path at which an import finds `operator`; empty if none does, as for one of the notebook."""
    module, name = operator._init_fn.__module__, operator._init_fn.__name__
    found = module in sys.modules.keys() - {"__main__"} and getattr(sys.modules[module], name, None) is operator
    return f"{module}:{name}" if found else ""


def with_empty_cache(fn: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    """Return `fn` with an empty cache: each rank has its own."""
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(fn)
    return cached


def _same_memory(storage: torch.storage.TypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True)


def _generator(device: torch.device, state: bytes) -> torch.Generator:
    """Return a generator with this state. It is bytes, because a dry run would replace a tensor with one that has no
    numbers."""
    return torch.Generator(device).set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def pickled(value: Any) -> bytes:
    """Return `value` as bytes, with the functions and classes of the notebook that it uses. `pickle.loads` reads it."""
    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


# -- in the kernel's process -------------------------------------------------------------------------------------

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
    if isinstance(value, type):
        return kernels_class(value)
    if len(_trackers) == len(_classes_by_tracker):  # no rank has a class
        return value
    kinds, seen, unread = set[type](), set[int](), [value]
    while unread:
        one = unread.pop()
        if id(one) in seen or isinstance(one, _NOT_OF_A_RESULT):
            continue
        seen.add(id(one))
        unread += filter(gc.is_tracked, gc.get_referents(one))
        if (kind := type(one)) not in kinds:
            kinds.add(kind)
            _derive_from_kernels(kind)
        if (kernels := kernels_class(kind)) is not kind:
            object.__setattr__(one, "__class__", kernels)
    return value


def _derive_from_kernels(kind: type) -> None:
    """Let a class that is derived from a rank's classes, such as that of a sharded module, be derived from the
    kernel's. Python replaces an object's class only by one with the same bases, if they have `__slots__`."""
    for base in reversed(kind.__mro__):
        bases = tuple(map(kernels_class, base.__bases__))
        if any(new is not old for new, old in zip(bases, base.__bases__, strict=True)):
            base.__bases__ = bases


# -- to a rank ---------------------------------------------------------------------------------------------------


def check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call that must fail, before any rank starts."""
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn):
        raise CourseError(
            f"World.run was given {shortened(fn, 60)}, a {type(fn).__name__}, and needs a function to call on every "
            "rank. Pass the function itself, without parentheses: world.run(step), not world.run(step())."
        )
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise CourseError(
            f"World.run was given {name}, whose body would not run when it is called (it is a coroutine or a "
            "generator). Make it a plain function: no async, no yield."
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CourseError(
            f"World.run cannot call {name}{signature} with these arguments: {error}. Give them after the function, as "
            f"in world.run({name}, 1, 2). A rank's own number is not among them: ask dist.get_rank()."
        ) from None


def shortened(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def pack_call(*call: Any) -> bytes:
    """Return a function with its arguments as bytes, of which `unpack_call` makes a copy for a rank.

    Functions and classes of a notebook travel with the variables that they read. Functions of imported modules travel
    by name.

    Raises:
        CourseError: the function uses something that cannot be copied. The message names it.
    """
    try:
        return pickled(call)
    except Exception as error:
        raise CourseError(_why(call, error)) from None


def unpack_call(packed: bytes) -> FunctionCall:
    call: FunctionCall = pickle.loads(packed)
    return call


def main_with(made: Sequence[Any], variables: dict[str, Any]) -> ModuleType:
    """Return a new `__main__` with these variables, and with the classes and functions of the notebook among `made`."""
    main = ModuleType("__main__")
    vars(main).update(variables)
    for one in reversed(made):  # of a decorated function, the outer one comes first, and counts
        if one.__module__ == "__main__":
            setattr(main, one.__qualname__, one)  # the name of a method has a dot, and finds nothing
    return main


def _submodules(code: CodeType, used: Iterable[Any]) -> list[Any]:
    """Return the imported submodules that `code` reaches through the packages among `used`.

    cloudpickle's own function reads all of `sys.modules` for each package: a millisecond once torch is loaded.
    """
    found = []
    packages = [value.__name__ for value in used if isinstance(value, ModuleType) and value.__package__]
    while packages:
        package = packages.pop()
        for name in {f"{package}.{name}" for name in code.co_names} & sys.modules.keys():
            packages.append(name)
            found.append(sys.modules[name])
    return found


cloudpickle.cloudpickle._find_imported_submodules = _submodules


def _arguments_of_class(cls: type, original: Callable[[type], Any] = cloudpickle.cloudpickle._class_getnewargs) -> Any:
    """Return what cloudpickle makes a copy of `cls` from, with its `__slots__`, which cloudpickle 3.1 leaves out."""
    arguments = original(cls)
    if "__slots__" in vars(cls) and NamedTuple not in arguments[2]:  # which makes them itself
        arguments[3]["__slots__"] = vars(cls)["__slots__"]
    return arguments


cloudpickle.cloudpickle._class_getnewargs = _arguments_of_class


def _why(call: Any, error: Exception) -> str:
    culprit, advice = "something that it uses", "Make that object inside the function, or leave it out."
    for label, value in _used(*call).items():
        try:
            pickled(value)
        except Exception as culprits_error:
            culprit, error = f"{label}, a {type(value).__name__},", culprits_error
            if isinstance(value, private.CustomOpDef):  # simulated ranks may not define it
                advice = "Define that operator in a file, and import it."
            break
    return (
        f"{getattr(call[0], '__name__', 'the function')}: {culprit} cannot be copied ({type(error).__name__}: {error})."
        f" Each rank works on its own copy of the function and of what it uses, as separate processes do. {advice}"
    )


def _used(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    used = {f"argument {position}": value for position, value in enumerate(args, 1)}
    used |= {f"argument {name!r}": value for name, value in kwargs.items()}
    with contextlib.suppress(TypeError, ValueError):
        variables = inspect.getclosurevars(fn)
        used |= {f"variable {name!r}": value for name, value in {**variables.nonlocals, **variables.globals}.items()}
    return used


# -- from a rank -------------------------------------------------------------------------------------------------


class StayedBehind:
    """A placeholder for a return value that cannot leave its process, such as a model with its process groups.

    A function may return an object only to keep it alive for measuring. So only its use is an error.
    """

    def __init__(self, rank: int, type_name: str, why: str) -> None:
        self._details = rank, type_name, why

    def __repr__(self) -> str:
        return f"<a {self._details[1]}, which stayed in the process of rank {self._details[0]}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_details":  # pickle and copy look up such names, and expect this error
            raise AttributeError(name)
        rank, type_name, why = self._details
        raise CourseError(
            f"what rank {rank} returned, a {type_name}, stayed in its process ({why}), and has no .{name} here. "
            "Return numbers, tensors, or lists and dicts of them."
        )


class _ResultPickler(Pickler):
    """A pickler whose tensors arrive on the CPU, without hooks and without memory that they do not use."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
            tensor = obj.detach().cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:
                tensor = tensor.clone()
            return tensor.requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def pack_result(rank: int, value: Any) -> tuple[str, bytes]:
    """Return `value`, packed for another process, after the name of its type. If it cannot be pickled, pack a
    `StayedBehind`."""
    buffer, type_name = io.BytesIO(), type(value).__name__
    try:
        _ResultPickler(buffer).dump(value)
    except Exception as error:
        return type_name, pickle.dumps(StayedBehind(rank, type_name, f"{type(error).__name__}: {error}"))
    return type_name, buffer.getvalue()


def unpack_result(rank: int, type_name: str, data: bytes) -> Any:
    try:
        return KernelUnpickler(data).load()
    except Exception as error:  # it can be unpickled only on a rank
        return StayedBehind(rank, type_name, f"{type(error).__name__}: {error}")
