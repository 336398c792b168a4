"""`Pickler`: it pickles what training programs use, and cloudpickle refuses or does not copy."""

import dis
import functools
import io
import pkgutil
import sys
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import cloudpickle
import torch

from ..torch_hooks import private

# cloudpickle copies the globals that a function reads. It misses globals that only a class body in the function reads,
# such as a decorator or a type annotation: Python reads these with different instructions.
cloudpickle.cloudpickle.GLOBAL_OPS += tuple(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)


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
        # torch.backends, torch.ops and six.moves, which are more than modules, and torch._C._functions
        if isinstance(obj, ModuleType) and (type(obj) is not ModuleType or _is_attribute(obj)):
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


def _is_attribute(module: ModuleType) -> bool:
    """Return whether no import finds `module`, but an attribute of its package does."""
    package, _, name = module.__name__.rpartition(".")
    return module.__name__ not in sys.modules and getattr(sys.modules.get(package), name, None) is module


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
