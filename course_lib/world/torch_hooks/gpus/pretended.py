"""The context in which GPUs are pretended."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from ..patching import Replacement, replaced


@contextmanager
def pretended(count: int, nbytes: int | None) -> Iterator[None]:
    """Pretend inside the block that this machine has `count` GPUs with so many bytes each; none if `nbytes` is None.

    It holds for the whole process: for ranks that are threads, for the one rank of a process, and for a process that
    starts ranks. A `MemoryMeter` with `gpu_bytes` counts what a rank puts on its GPU; nothing else does.
    """
    with replaced([] if nbytes is None else _replacements(count, nbytes)):
        yield


def _replacements(count: int, nbytes: int) -> list[Replacement]:
    from . import cuda, devices, groups, tensors, training  # here: they load FSDP, which takes most of a second

    machine = devices.Gpus(count, nbytes)
    made = [one for module in (tensors, cuda, training, groups) for one in module.replacements(machine)]
    for owner, name, new in made:
        if not isinstance(new, type) and hasattr(new, "__code__"):  # a function, which is pickled by its name
            functools.update_wrapper(new, getattr(owner, name), updated=())
    return [*made, training.scripted(made)]
