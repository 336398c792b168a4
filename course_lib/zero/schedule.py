"""The schedule of stage 3: gathers units before they compute, and frees them afterwards.

Every rank passes through all units, used or not, in the order of their numbers: up in forward, down in backward. So the
collectives are the same on every rank.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from .backward import after_backward, before_backward, check_finished, tensors_in, weakly
from .buckets import FlatBucket
from .engine import Ranks
from .units import Unit, blocks, materialize, parameters_by_unit


class Units:
    """Gathers each unit before its forward and before its backward, and frees it after each.

    Args:
        model, units: see Stage3.
        ranks: those that share the parameters.
        prefetch: how many units are gathered ahead of the one in use.
        reduce: a method that starts the reduction of a trained bucket, when backward is done with the bucket's unit.
        finish: a method, called when backward has ended.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Iterable[nn.Module] | None,
        ranks: Ranks,
        prefetch: int,
        reduce: Callable[[FlatBucket], None],
        finish: Callable[[], None],
    ) -> None:
        by_unit = parameters_by_unit(model, blocks(model) if units is None else units)
        inner = {module for unit in list(by_unit)[1:] for module in unit.modules()}
        self.units = []
        for number, (module, params) in enumerate(by_unit.items()):
            ranks.share(materialize(module, params, others=() if number else inner))
            self.units.append(Unit(number, params, ranks))
            # First of the pre-hooks, last of the forward hooks: those that the model has may use its parameters.
            module.register_forward_pre_hook(partial(self._before_forward, self.units[-1]), prepend=True)
            module.register_forward_hook(partial(self._after_forward, self.units[-1]))
            for param in params:
                if param.requires_grad:
                    param.register_hook(partial(weakly(self._on_gradient), number))
        self._prefetch, self._reduce, self._finish = prefetch, weakly(reduce), weakly(finish)
        self._in_backward = False
        self.running: list[Unit] = []  # units whose forward has begun and not ended
        self._at = 0  # in backward: the number of the unit in use; later units are done
        self._gathered = 0  # in forward: units below this number have been gathered; in backward: those from it on

    @property
    def buckets(self) -> Iterator[FlatBucket]:
        """Return all units' buckets."""
        return (bucket for unit in self.units for bucket in unit.buckets)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Return a context in which all units are gathered."""
        self._free()
        for unit in self.units:
            unit.ready()
        try:
            yield
        finally:
            self._free()

    def _free(self) -> None:
        """Free all units: also those that a forward has left gathered because it failed."""
        for unit in self.units:
            unit.free()

    # -- forward: a unit is gathered before it and freed after it ------------------------------------------------------

    def _before_forward(self, unit: Unit, module: nn.Module, args: Any) -> None:
        check_finished(self._in_backward)
        if not self._in_backward:
            if unit.number == 0:
                self._gathered = 0
                self.running.clear()
                self._free()
            self._gather_up_to(unit.number + self._prefetch)
            inputs = [tensor for tensor in tensors_in(args) if tensor.requires_grad]
            if unit.number > 0 and len(inputs) == 1:  # backward is done with the unit when it comes to its only input
                before_backward(inputs, partial(self._come_to, unit.number - 1))
        unit.ready()
        self.running.append(unit)

    def _after_forward(self, unit: Unit, module: nn.Module, args: Any, output: Any) -> None:
        self.running.remove(unit)
        if self._in_backward:
            return  # activation checkpointing has run it again, for the backward that is to come
        before_backward(output, partial(self._before_backward, unit))
        last = unit.number
        if unit.number == 0:
            last = len(self.units) - 1
            self._gather_up_to(last)  # also the units that this rank did not use: other ranks may have
        for done in self.units[: last + 1]:
            if done not in self.running:
                done.free()

    def _gather_up_to(self, number: int) -> None:
        while self._gathered <= min(number, len(self.units) - 1):
            self.units[self._gathered].gather()
            self._gathered += 1

    # -- backward: a unit is gathered before it, freed after it, and its gradients reduced -----------------------------

    def _before_backward(self, unit: Unit) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._at = self._gathered = len(self.units)
            after_backward(self._end_backward)
            self.units[0].gather()
        if unit.number > 0:
            self._come_to(unit.number)
        unit.ready()

    def _on_gradient(self, number: int, grad: Tensor) -> None:
        # If a unit returns an object, backward has not come through its output's tensors.
        self._before_backward(self.units[number])

    def _come_to(self, number: int) -> None:
        """Go back through the units as far as `number`."""
        while self._at > number:
            self._at -= 1
            if self._at + 1 < len(self.units):
                self._leave(self.units[self._at + 1])
            while self._gathered > max(1, self._at - self._prefetch):
                self._gathered -= 1
                self.units[self._gathered].gather()

    def _leave(self, unit: Unit) -> None:
        unit.free()
        for bucket in unit.buckets:
            if bucket.trained:
                self._reduce(bucket)

    def _end_backward(self) -> None:
        self._come_to(0)
        self._leave(self.units[0])
        for unit in self.units:  # a unit that forward used twice, or out of order, got gradients after it was left
            if any(param.grad is not None for bucket in unit.buckets for param in bucket.places):
                self._leave(unit)
            unit.free()
        self._in_backward = False
        self._finish()
