"""Load what torch imports at the first optimizer step and the first sharded module, while the learner reads.

These imports take more than a second of CPU time, which would be the first check's. A thread cannot make them: the cell
that runs next may import the same modules, and would find them half loaded. So the kernel's own loop makes them, one
after the other, when it waits for a cell.
"""

import asyncio
import importlib
from contextlib import suppress

MODULES = ("sympy", "torch.distributed.fsdp", "torch._dynamo", "torch.distributed.optim")
PAUSE_SECONDS = 0.5


def load_later(modules: tuple[str, ...] = MODULES) -> None:
    """Load `modules` after the running cell, with a pause before each. Outside a kernel, nothing is loaded."""
    with suppress(RuntimeError):  # no loop runs
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, _load, modules)


def _load(modules: tuple[str, ...]) -> None:
    first, *others = modules
    with suppress(ImportError):  # of another release of torch
        importlib.import_module(first)
    if others:
        load_later(tuple(others))
