"""The modules, parameters and optimizers of one rank, recorded as they are made. They decide what memory is for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms, vmap
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..tensors.storages import tensors_in
from .arithmetic import arithmetic_stand_ins
from .compiling import untraced
from .operators import current, unwatched, unwatched_inside, watched_again


class Owners:
    """The modules, parameters and optimizers of one rank."""

    def __init__(self) -> None:
        # By id: a WeakSet would compare its members, and comparing tensors gives a tensor.
        self._made: WeakValueDictionary[int, nn.Module | Optimizer | Tensor] = WeakValueDictionary()

    def add(self, one: nn.Module | Optimizer | Tensor) -> None:
        self._made[id(one)] = one

    def forget(self, tensor: Tensor) -> None:
        self._made.pop(id(tensor), None)

    def lasting(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor of persistent state with its category. A storage belongs to the first that yields it."""
        made = list(self._made.values())
        modules = [one for one in made if isinstance(one, nn.Module)]
        optimizers = [one for one in made if isinstance(one, Optimizer)]
        in_modules = {id(p): p for module in modules for p in module._parameters.values() if p is not None}
        stepped = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
        unowned = {id(p): p for p in made if isinstance(p, Tensor)}
        # A model in bf16 or fp16 is trained through fp32 copies of its parameters, which the optimizer updates. A
        # frozen one (a reference model, or the base of adapters) says nothing about how other parameters are trained.
        trained = (p for p in in_modules.values() if p.requires_grad)
        width = min((p.dtype.itemsize for p in trained), default=8)
        masters = {
            key: p for key, p in stepped.items() if key not in in_modules and p.dtype.itemsize > width and width < 4
        }
        params = in_modules | stepped | unowned
        yield from (("parameters", p) for key, p in params.items() if key not in masters)
        yield from (("gradients", grad) for p in params.values() if (grad := gradient(p)) is not None)
        yield from (("optimizer", p) for p in masters.values())
        yield from (("optimizer", tensor) for optimizer in optimizers for tensor in tensors_in(optimizer.state))
        # Buffers come last, because a module may keep shards or gradients as buffers. They are included, because a
        # running mean or a mask that was broadcast or saved for backward is neither communication nor an activation.
        yield from (("other", b) for module in modules for b in module._buffers.values() if b is not None)


def gradient(tensor: Tensor) -> Tensor | None:
    """Return `tensor.grad`, without torch's warning that only leaves have one."""
    return tensor.grad if tensor.is_leaf else None


# -- finding them ------------------------------------------------------------------------------------------------


def stand_ins() -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements for parts of torch that notify the calling thread's watcher: owner, name, replacement."""
    for owner in (nn.Module, Optimizer):
        yield owner, "__init__", _reporting(owner.__init__)
        yield owner, "__setstate__", _reporting(owner.__setstate__)
    yield Parameter, "__new__", _reporting(Parameter.__new__)
    data: Any = Tensor.data
    for kind in (Parameter, FakeTensor):  # in a dry run, a parameter's class is FakeTensor
        yield kind, "data", property(data.__get__, _reporting_data(data.__set__))
    yield torch.UntypedStorage, "resize_", _reporting_size(torch.UntypedStorage.resize_)
    yield torch.utils, "swap_tensors", _without_references(torch.utils.swap_tensors)
    # It detaches a tensor that must not have a Python object yet, and a watcher would give it one.
    yield Tensor, "_make_subclass", unwatched(Tensor._make_subclass)
    yield saved_tensors_hooks, "__init__", _with_pack_hook_watched(saved_tensors_hooks.__init__)
    # Inside grad, jvp and vmap of torch.func, tensors are wrappers without memory. Some of them cannot be passed to
    # Python.
    yield eager_transforms, "grad_increment_nesting", unwatched_inside(eager_transforms.grad_increment_nesting)
    yield eager_transforms, "jvp_increment_nesting", unwatched_inside(eager_transforms.jvp_increment_nesting)
    yield eager_transforms, "_autograd_grad", unwatched(eager_transforms._autograd_grad)  # of vjp, after the nesting
    yield vmap, "vmap_increment_nesting", unwatched_inside(vmap.vmap_increment_nesting)
    yield from arithmetic_stand_ins()


def _reporting(make: Callable[..., Any]) -> Any:
    """Wrap a method that makes its `self`, or, if it is `__new__`, what it returns."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        if (watcher := current()) is not None:
            watcher.found(args[0] if result is None else result)
        return result

    return untraced(call)


def _reporting_data(assign: Callable[[Any, Any], None]) -> Any:
    """Wrap the assignment to `param.data`. It is not an operator, and it makes gathered memory a parameter's."""

    def call(tensor: Any, value: Any) -> None:
        assign(tensor, value)
        if isinstance(tensor, Parameter) and (watcher := current()) is not None:
            watcher.found(tensor)

    return untraced(call)


def _reporting_size(resize: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `resize_` of a storage. It is not an operator, and FSDP2 frees gathered parameters with it."""

    def resize_(storage: Any, nbytes: int) -> Any:
        result = resize(storage, nbytes)
        if (watcher := current()) is not None:
            watcher.resized(storage, "storage.resize_")
        return result

    return resize_


def _without_references(swap: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor], None]:
    """Wrap `swap_tensors`, which refuses tensors that have weak references."""

    def swap_tensors(t1: Tensor, t2: Tensor) -> None:
        if (watcher := current()) is None:
            return swap(t1, t2)
        watcher.forget(t1)
        watcher.forget(t2)
        swap(t1, t2)
        for param in (one for one in (t1, t2) if isinstance(one, Parameter)):
            watcher.found(param)

    return swap_tensors


def _with_pack_hook_watched(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap hooks for tensors that autograd saves: they run inside an operator, and may allocate memory of their own."""

    def init(self: Any, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        watched = watched_again(pack_hook)

        def pack(tensor: Tensor) -> Any:
            watcher = current()
            with nullcontext() if watcher is None else watcher.packing(tensor):
                return watched(tensor)

        make(self, pack, unpack_hook)

    return init


@contextmanager
def watched_steps() -> Iterator[None]:
    """Notify watchers of every step of a `torch.optim.Optimizer` on their threads, inside the block."""

    def stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if (watcher := current()) is not None:
            watcher.stepped(optimizer)

    handle = register_optimizer_step_post_hook(untraced(stepped))
    try:
        yield
    finally:
        handle.remove()
