"""The list of backends, by name. A backend's module is imported when a world first uses that backend."""

import importlib
import inspect
import os
import re
from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import CourseError
from .run import Order, Run

BACKENDS = {
    "simulated": "simulated.Simulated",
    "processes": "cluster.processes.on_cpus",
    "nccl": "cluster.processes.on_gpus",
    "dryrun": "dryrun.backend.DryRun",
}
"""The function or class that makes each backend, by its path in this package.

It takes the number of ranks, and as keyword arguments the options of a world that make sense for it. It raises a
CourseError if it cannot provide what was asked. `at_most` is the number in `nccl:8`.
"""

_OPTIONS = {
    "rank": "only a dry run shows one rank out of many",
    "share_gpu": "only the backend 'nccl' has GPUs to share",
    "cluster": "only processes can be on several machines",
    "gpus": "only the backends 'simulated' and 'processes' pretend GPUs",
}
"""Why the other backends do not take an option."""


class Backend(Protocol):
    """The place where the ranks of one world live."""

    def run(self, order: Order) -> Run:
        """Call the function on every rank at once, and show what the ranks print.

        Raises:
            RankError: a rank failed, or the run took longer than `order.timeout` seconds.
            KeyboardInterrupt: the run was interrupted.
        """


def chosen(world_size: int, backend: str | None, options: dict[str, Any]) -> tuple[str, Backend]:
    """Return the chosen backend's name, and the backend. `options` are those that were passed to the world."""
    asked = backend if backend is not None else os.environ.get("COURSE_WORLD") or "simulated"
    matched = re.fullmatch(r"([a-z]+)(?::([1-9][0-9]*))?", asked) if isinstance(asked, str) else None
    name, gpus = (matched[1], matched[2]) if matched else ("", None)
    taken: Mapping[str, Any] = {}
    if name in BACKENDS:
        module, _, attribute = BACKENDS[name].rpartition(".")
        make = getattr(importlib.import_module(f".{module}", __package__), attribute)
        taken = inspect.signature(make).parameters
    if not taken or (gpus and "at_most" not in taken):
        raise CourseError(
            f"World(backend={asked!r}): there is no such backend here; there is {', '.join(BACKENDS)}, and nccl:8 for "
            "8 GPUs. Leave the argument out, and unset $COURSE_WORLD, for simulated ranks."
        )
    for option, value in options.items():
        if option not in taken:
            raise CourseError(
                f"World({option}={value!r}): {_OPTIONS[option]}; the backend here is {name!r}. Leave {option}= out, or "
                "choose a backend that takes it with backend=."
            )
    if gpus:
        options = options | {"at_most": int(gpus)}
    return name, make(world_size, **options)
