"""torch's `loss_parallel` on ranks that are threads: the last one to leave it removes its handlers.

It adds handlers to DTensor's table, which belongs to the process. torch's own exit removes them, also while other
threads are still inside.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from .dispatch import current
from .patching import Replacement

_inside = set[int]()
"""The threads that are inside."""

_lock = threading.RLock()
_disable: list[Callable[[], None]] = []
"""torch's own, once it is replaced."""


def replacements() -> Iterator[Replacement]:
    """Yield a `DeviceMesh` that counts threads from then on. A DTensor needs a mesh; importing `loss_parallel` before
    would take half a second."""
    init: Any = DeviceMesh.__init__

    @functools.wraps(init)
    def __init__(mesh: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        if current() is not None:
            _count_threads()
        init(mesh, *args, **kwargs)

    yield DeviceMesh, "__init__", __init__


def leave() -> None:
    """Let the calling thread leave: an exception inside of `loss_parallel` does not, with torch's own neither."""
    with _lock:
        if threading.get_ident() in _inside:
            _inside.remove(threading.get_ident())
            if not _inside:
                _disable[0]()


def _count_threads() -> None:
    from torch.distributed.tensor.parallel import loss

    module: Any = loss
    with _lock:
        if _disable:
            return
        enable = module._enable_custom_loss_ops
        _disable.append(module._disable_custom_loss_ops)

        def enter() -> None:
            with _lock:
                _inside.add(threading.get_ident())
                enable()

        module._enable_custom_loss_ops, module._disable_custom_loss_ops = enter, leave
