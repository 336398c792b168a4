"""The context in which GPUs are pretended."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from ....meter import gpu_bytes
from ..patching import Replacement, replaced
from . import cuda, devices, groups, tensors, training


@contextmanager
def pretended(count: int, gpus: bool | float = True) -> Iterator[None]:
    """Pretend inside the block that this machine has `count` GPUs; `gpus` is as in `World(gpus=...)`.

    It holds for the whole process: for ranks that are threads, for the one rank of a process, and for a process that
    starts ranks. What a rank puts on its GPU is counted by a `MemoryMeter` with `gpu_bytes`; without one, nothing is.
    """
    with replaced(replacements(count, gpus) if gpus else []):
        yield


def replacements(count: int, gpus: bool | float) -> list[Replacement]:
    """Return the replacements of `pretended`.

    Raises:
        CourseError: this machine has GPUs.
    """
    machine = devices.Gpus(count, gpu_bytes(gpus) or 0)
    made = [one for module in (tensors, cuda, training, groups) for one in module.replacements(machine)]
    for owner, name, new in made:
        if not isinstance(new, type) and hasattr(new, "__code__"):  # a function, which is pickled by its name
            functools.update_wrapper(new, getattr(owner, name), updated=())
    return [*made, training.scripted(made)]
