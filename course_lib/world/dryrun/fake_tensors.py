"""The tensors of a dry run: they have a shape, a dtype and a number of bytes, and no memory.

torch's `FakeTensorMode` makes them: it computes only the shape of each result. Values that are known without computing
stay known: `torch.tensor(3.0).item()` is 3.0. So does the order in which a sampler visits samples. Code that needs an
unknown value, or a shape that depends on one, raises `NoNumbers`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import CourseError
from ...meter import current, tensors_in, watched_again
from ..pickling.kernel_classes import KernelUnpickler
from ..torch_hooks.dispatch import collective_kernel
from ..torch_hooks.private import VALUE_ASKED, FakeTensor, FakeTensorMode, cpu_kernels


class NoNumbers(CourseError):
    """Code needs a number that a dry run has not computed; `asked` describes the operation."""

    def __init__(self, asked: str) -> None:
        super().__init__(f"a dry run has no numbers, and this line asks for one ({asked})")


_ASKED = {
    "_local_scalar_dense": "item(), float(), int(), tolist(), an `if` on a tensor, or a collective of objects",
    "equal": "whether two tensors are equal",
    "allclose": "whether two tensors are close",
}
"""Code that leads to these operators. The other operators that raise have a result whose shape depends on numbers."""


KNOWN_NUMEL = 2**16  # integer tensors up to this size keep their known values; a mesh of ranks needs this
_COUNTING = {"arange", "zeros", "ones", "full"}  # operators that make integers without any input tensor


class WithoutNumbers(FakeTensorMode):
    """The mode in which tensors that the thread makes have no memory."""

    def __init__(self) -> None:
        super().__init__()
        self._within_ddp = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "_c10d_functional":  # runs c10d operators, which are counted
            with self:  # its result is made inside, where autograd's kernels exclude the meter's key
                return watched_again(lambda: func.redispatch(cpu_kernels, *args, **kwargs))()
        if func.namespace == "c10d":  # reached where autograd's kernels exclude the rank's key
            return collective_kernel(func)(None, *args)
        if self._within_ddp and _counts(args, kwargs):
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        try:
            result: Any = super().__torch_dispatch__(func, types, args, kwargs)
        except VALUE_ASKED as error:
            asked = _ASKED.get(name, f"{name}: the shape of its result depends on numbers")
            raise NoNumbers(asked) from error
        if name == "lift_fresh" and (watcher := current()) is not None:  # the last operator of torch.tensor(...)
            watcher.made(result, name, args)
        small = name in _COUNTING and result.constant is None and _is_small_integer(result)
        if small or (name == "randperm" and "out" not in kwargs):  # a sampler's order may be of any length
            self._know(result, func(*args, **kwargs))
        elif name == "random_" and not result.dim() and _is_small_integer(result):
            self._know(result, func(torch.empty((), dtype=result.dtype), *args[1:], **kwargs))  # its seed
        return result

    def _know(self, result: Any, values: Tensor) -> None:
        """Let a fake tensor have these values until an operator writes to it."""
        result.constant = values
        self.fake_tensor_converter.add_constant_storage_mapping(result)

    def may_turn_const(self, t: Tensor) -> bool:
        return super().may_turn_const(t) or (type(t) is Tensor and t.device.type == "cpu" and _is_small_integer(t))

    @contextmanager
    def numbers_for_ddp(self) -> Iterator[None]:
        """Give integers memory inside the block: DDP's C++ part reads exchanged sizes from it."""
        self._within_ddp = True
        try:
            yield
        finally:
            self._within_ddp = False

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Forget the known values of these tensors, because a collective has written to them."""
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and tensor.constant is not None:
                self.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)


def _counts(args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operator makes integers from no tensor, or from tensors that have memory."""
    tensors = list(tensors_in([args, *kwargs.values()]))
    if not tensors:
        return kwargs.get("dtype") in (torch.int32, torch.int64)
    return all(type(tensor) is Tensor for tensor in tensors)


def _is_small_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= KNOWN_NUMEL


class FakeUnpickler(KernelUnpickler):
    """An unpickler for a dry run's rank, whose tensors are fake. It makes each with `mode`, and calls `made` with
    it."""

    def __init__(self, packed: bytes, mode: WithoutNumbers, made: Callable[[Tensor], None]) -> None:
        super().__init__(packed, own_classes=True)
        self._mode, self._tensor_made = mode, made

    def find_class(self, module: str, name: str) -> Any:
        return self._rebuild if name == "_rebuild_tensor_v2" else super().find_class(module, name)

    def _rebuild(self, *args: Any) -> Tensor:
        fake = self._mode.from_tensor(torch._utils._rebuild_tensor_v2(*args))
        self._tensor_made(fake)
        return fake
