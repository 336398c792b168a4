"""The pretended GPU of one rank, on which the meter counts memory, while all memory is the host's.

How a tensor was made decides whether its memory is the GPU's or the host's. The meter's ledger contains only the GPU's
storages, so a tensor is on the GPU if its storage is in the ledger.
"""

import math
import sys
from collections.abc import Callable

import torch

from ..errors import CourseError
from .ledger.ledger import Ledger
from .source_line import outward

GPU_BYTES = 80 * 10**9

_NEXT_TO_PARAMETERS = (
    "torch.distributed.",
    "torch.nn.parallel.",
    "torch.autograd.",
    "torch.nn.modules.linear_cross_entropy.",
)
"""Modules of torch that allocate buckets, gathered parameters, missing gradients, and logits in chunks."""

_CHECKPOINTS = "torch.distributed.checkpoint."  # on the host


def gpu_bytes(gpus: bool | float) -> int | None:
    """Return the memory of a pretended GPU, for `World(gpus=...)`; None if there is none.

    Raises:
        CourseError: `gpus` is not a number of bytes, or this machine has GPUs.
    """
    if gpus is False:
        return None
    if not isinstance(gpus, int | float) or not (gpus is True or 10**6 <= gpus < math.inf):
        raise CourseError(
            f"World(gpus={gpus!r}): say gpus=True, and each rank has a pretended GPU of 80 GB. Or say how many bytes "
            "each has, as in gpus=24e9."
        )
    if torch.cuda.is_available():
        raise CourseError(
            f"World(gpus={gpus!r}): this machine has GPUs, and they are pretended only where there are none. Leave "
            "gpus= out, and say backend='nccl' for ranks on the GPUs."
        )
    return GPU_BYTES if gpus is True else int(gpus)


class PretendedGpu:
    """A GPU with so many bytes of memory. `settle` waits until the backend has dropped the tensors of finished calls.

    Attributes:
        placing: whether the calling code puts new memory on the GPU (True) or on the host (False). None: memory goes
            where the operator's arguments are.
    """

    def __init__(self, nbytes: int, ledger: Ledger, settle: Callable[[], None]) -> None:
        self.nbytes = nbytes
        self.placing: bool | None = None
        self._ledger, self._settle = ledger, settle
        self._room = nbytes  # at least this much is free, whatever is recorded and not added up yet

    @property
    def used(self) -> bool:
        return self._room < self.nbytes

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many bytes are free, and reserve them. If they are not, the next call adds up again."""
        self._room -= nbytes
        if self._room < 0:
            self._ledger.add_up()
            self._room = self.nbytes - self._ledger.current - nbytes
        return self._room >= 0

    def reset_peak(self) -> None:
        """Start to measure `peak` again. The run's own peak stays."""
        self._ledger.highest = self.current

    @property
    def current(self) -> int:
        self._settle()
        self._ledger.add_up()
        return self._ledger.current

    @property
    def peak(self) -> int:
        """The most bytes that were held since the last `reset_peak`."""
        self._ledger.add_up()
        return self._ledger.highest


def made_by_torch_next_to_parameters() -> bool:
    """Return whether an operator that reads no tensor was called by a part of torch that makes memory where the
    parameters are."""
    for frame in outward(sys._getframe(1)):
        name = f"{frame.f_globals.get('__name__')}."
        if not name.startswith(("course_lib.meter.", "course_lib.world.")):
            return name.startswith(_NEXT_TO_PARAMETERS) and not name.startswith(_CHECKPOINTS)
    return False
