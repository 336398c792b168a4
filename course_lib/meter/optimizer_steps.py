"""The steps of a rank's optimizers, with checksums of gradients and parameters that other ranks' are compared with."""

import ctypes
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from .source_line import SourceLine, is_learners, outward
from .tensors.storages import ORDINARY, plain

MOST_STEPS = 2000  # of an optimizer
MOST_PARAMETERS = 8  # of an optimizer: a checksum is as fast for a large model as for a small one
SAMPLE = 256  # bytes of each tensor
FEWEST = 4 * 4  # bytes below which a tensor may equal a different one by chance


class Step(NamedTuple):
    """One step of an optimizer."""

    seconds: float  # from the start of the run
    gradients: int  # a checksum, also of `_place`; 0 if each gradient has the same number everywhere
    parameters: int  # a checksum of the parameters with these gradients, after the step
    line: SourceLine | None  # the learner's line; None if a library makes the step


@dataclass(kw_only=True)
class OptimizerSteps:
    """The steps of one optimizer.

    Attributes:
        numel: the elements of its gradients, at the first step; of a DTensor, those that the rank holds.
        steps: at least one.
    """

    numel: int
    steps: list[Step] = field(default_factory=list)


class StepRecorder:
    """A recorder of the steps of a rank's optimizers."""

    def __init__(self) -> None:
        self._by_optimizer: WeakKeyDictionary[Optimizer, OptimizerSteps] = WeakKeyDictionary()
        self.optimizers: list[OptimizerSteps] = []

    def add(self, optimizer: Optimizer, seconds: float) -> None:
        """Record a step that has just ended, unless no gradient is in the CPU's memory."""
        params = [(p, g) for group in optimizer.param_groups for p in group["params"] if (g := p.grad) is not None]
        sampled = params[:: -(-len(params) // MOST_PARAMETERS) or 1]
        pairs = list(_local(sampled))
        if not pairs:
            return
        own = self._by_optimizer.get(optimizer)
        if own is None:
            numel = sum(getattr(grad, "_local_tensor", grad).numel() for _, grad in params)  # a DTensor has one
            own = self._by_optimizer[optimizer] = OptimizerSteps(numel=numel)
            self.optimizers.append(own)
        if len(own.steps) < MOST_STEPS:
            gradients = [_sample(grad) for _, grad in pairs]
            parameters = [_sample(param) for param, _ in pairs]
            varied = any(len(one) >= FEWEST and one[8:] != one[:-8] for one in gradients)
            gradients += [_place(param) for param, _ in sampled]
            line, before = _line(), own.steps[-1].line if own.steps else None
            line = before if line == before else line  # one object for all steps at a line: a report stays small
            own.steps.append(Step(seconds, _checksum(gradients) if varied else 0, _checksum(parameters), line))


def _local(params: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rank's own parts of parameters and gradients, where they are in the CPU's memory."""
    for pair in params:
        yield from (parts for parts in zip(*map(plain, pair), strict=False) if all(map(_is_readable, parts)))


def _is_readable(tensor: Tensor) -> bool:
    return type(tensor) in ORDINARY and tensor.is_cpu and tensor.numel() > 0 and tensor.data_ptr() != 0


def _sample(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), min(SAMPLE, tensor.nbytes) if tensor.is_contiguous() else 4)


def _place(param: Any) -> bytes:
    """Return which shard of a DTensor the rank holds; empty if its ranks hold the same. Shards may have equal gradients
    and differ, such as those of a layer whose outputs are only summed."""
    if not hasattr(param, "placements"):
        return b""
    coordinate = param.device_mesh.get_coordinate() or ()
    shards = [at for at, one in zip(coordinate, param.placements, strict=False) if not one.is_replicate()]
    return repr(shards).encode()


def _checksum(samples: list[bytes]) -> int:
    return zlib.crc32(b"".join(samples))


def _line() -> SourceLine | None:
    learners = (frame for frame in outward(sys._getframe(1)) if is_learners(frame.f_code))
    return next(map(SourceLine.of, learners), None)
