"""A simulation of one step of torch's `fully_shard`, to find the bytes it holds in addition to the states.

It follows torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py and _fsdp_collectives.py. Memory is
allocated in the order in which the CPU issues work, whatever the streams. All sizes are numbers of elements. Each
tensor is cut by rows, and padded to a multiple of the ranks.

    whole        a unit's parameters, padded: from the copy-out before its forward to its reshard after it, and again
                 in backward. The outer unit's stay from its forward to the end of backward
    flat         the output of its all-gather. In forward it outlives the copy-out, until the next unit's copy-out
    cast         the shards that are gathered, if their dtype differs from the one they are kept in
    gradients    as autograd makes them, whole
    scattered    a unit's gradients, flat and padded: the input of its reduce-scatter, kept until the next unit's
    reduced      the output of the reduce-scatter, a shard, if its dtype differs from the one it is kept in
    averaged     the same as it is kept: shards of all gradients that are done
    padded       copies of gradients whose rows the ranks do not divide
    converted    the chunks of a gradient, on their way into a wider `scattered`. CUDA's kernel needs neither this nor
                 `padded`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..training.shapes import Unit
from .partition import rows

Sizes = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The tensors that exist at one moment, by size. The module explains the names.

    Attributes:
        layers: the number of first layers that keep all their activations.
    """

    layers: int
    whole: Sizes = ()
    flat: Sizes = ()
    cast: Sizes = ()
    gradients: Sizes = ()
    scattered: Sizes = ()
    reduced: Sizes = ()
    averaged: Sizes = ()
    padded: Sizes = ()
    converted: Sizes = ()


class Cut:
    """A unit, cut for a number of ranks."""

    def __init__(self, shapes: Unit, ranks: int) -> None:
        shards = rows([shapes], ranks)
        self.shard = sum(shards)
        self.gradients = [prod(shape) for shape in shapes]
        self.whole = [ranks * numel for numel in shards]
        self.flat = [sum(self.whole)] if ranks > 1 else []  # a single rank copies its shards
        self.padded = [size for size, numel in zip(self.whole, self.gradients, strict=True) if size > numel]


def forward(outer: Cut, layers: Sequence[Cut], reshard: bool) -> Iterator[Moment]:
    """Yield the moment when each unit is copied out, then the end. `flat` is freed before the loss is computed."""
    kept, before = list[int](), list[int]()
    for done, unit in enumerate([outer, *layers]):
        yield Moment(layers=max(0, done - 1), whole=[*kept, *unit.whole], flat=[*before, *unit.flat])
        before = unit.flat
        if unit is outer or not reshard:
            kept = [*kept, *unit.whole]
    yield Moment(layers=len(layers), whole=kept, flat=[] if layers else before)


class Backward:
    """Backward, layer by layer, and the outer unit last.

    Args:
        outer, layers: the units.
        reshard: whether the layers' parameters were freed after forward.
        prefetch: the number of units gathered ahead of the one in use.
        early: gradients of the outer unit that arrive before the layers'.
        again: those of them that get a second gradient after the layers.
        hybrid: whether reduced gradients are averaged with replicas, so that `reduced` is kept to the end.
        first_waits: whether the input of the first layer needs no gradient. Then nothing shows when the layer is done,
            and its gradients are reduced at the very end, after the outer unit's.
    """

    def __init__(
        self, outer: Cut, layers: Sequence[Cut], *, reshard: bool, prefetch: int,
        early: Sizes, again: Sizes, hybrid: bool, first_waits: bool,
    ) -> None:  # fmt: skip
        self._outer, self._layers, self._reshard, self._prefetch = outer, layers, reshard, prefetch
        self._early, self._again, self._hybrid, self._first_waits = early, again, hybrid, first_waits
        self._scattered: Sizes = ()
        self._reduced: Sizes = ()
        self._averaged: Sizes = ()

    def moments(self) -> Iterator[Moment]:
        """Yield the moments from the copy-out of the last layer to the last reduction."""
        for at in reversed(range(len(self._layers))):
            yield from self._compute(at)
            if at or not self._first_waits:
                yield from self._reduce(self._layers[at], self._now(at, self._early, flat=_flat(self._ahead(at))))
        last = [unit for unit in (self._outer, *self._layers[: self._first_waits]) if unit.gradients]
        sums = [*self._again, *self._again]  # the second gradient, and the sum of both
        yield self._now(0, [*_gradients(last), *sums], whole=_whole(last))
        for done, unit in enumerate(last, 1):
            yield from self._reduce(unit, self._now(0, _gradients(last[done:]), whole=_whole(last[done:])))

    def _compute(self, at: int) -> Iterator[Moment]:
        """Yield the moments when a layer is copied out, the next one is gathered, and the layer's gradients arrive."""
        unit, ahead = self._layers[at], self._ahead(at)
        whole = [*self._kept(at), *unit.whole]
        copied_from = [*self._ahead(at + 1)[:-1], unit] if self._reshard else []
        yield self._now(at + 1, self._early, whole=whole, flat=_flat(copied_from))
        yield self._now(at + 1, self._early, whole=whole, flat=_flat(ahead), cast=[cut.shard for cut in ahead[:1]])
        first = [*self._early, max(unit.gradients)]  # exists while the layer's activations still do
        yield self._now(at + 1, first, whole=whole, flat=_flat(ahead))
        yield self._now(at, [*self._early, *unit.gradients], whole=whole, flat=_flat(ahead))

    def _reduce(self, unit: Cut, now: Moment) -> Iterator[Moment]:
        """Yield the moments when a unit's parameters are freed and its gradients reduced.

        Its last gradient has a name, and therefore lives, until that is done.
        """
        flat = [sum(unit.whole)]
        yield replace(
            now, gradients=[*now.gradients, *unit.gradients], scattered=flat, padded=unit.padded,
            converted=[max(unit.whole)],
        )  # fmt: skip
        self._scattered, self._averaged, reduced = flat, [*self._averaged, unit.shard], [*self._reduced, unit.shard]
        yield replace(
            now, gradients=[*now.gradients, *unit.gradients[-1:]], scattered=flat, reduced=reduced,
            averaged=self._averaged,
        )  # fmt: skip
        self._reduced = reduced if self._hybrid else []

    def _now(self, layers: int, gradients: Sizes, whole: Sizes | None = None, **held: Sizes) -> Moment:
        """Return a moment with the given tensors and those that are held anyway."""
        whole = self._kept(layers) if whole is None else whole
        return Moment(
            layers=layers, gradients=gradients, whole=whole, scattered=self._scattered, reduced=self._reduced,
            averaged=self._averaged, **held,
        )  # fmt: skip

    def _kept(self, layers: int) -> list[int]:
        """Return parameters of the outer unit, and of the first `layers` layers unless they were freed."""
        return _whole([self._outer, *([] if self._reshard else self._layers[:layers])])

    def _ahead(self, at: int) -> Sequence[Cut]:
        """Return the layers that are gathered ahead of this one."""
        return self._layers[max(0, at - self._prefetch) : at] if self._reshard else []


def _whole(units: Sequence[Cut]) -> list[int]:
    return [size for unit in units for size in unit.whole]


def _flat(units: Sequence[Cut]) -> list[int]:
    return [size for unit in units for size in unit.flat]


def _gradients(units: Sequence[Cut]) -> list[int]:
    return [size for unit in units for size in unit.gradients]
