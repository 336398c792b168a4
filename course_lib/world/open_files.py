"""How many files this process may have open: each two ranks have a connection, and each end of it is one."""

from __future__ import annotations

import psutil

from ..errors import CourseError

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

SPARE = 256
"""As many may be opened meanwhile by somebody else."""


def make_room(ranks: int) -> None:
    """Let this process connect each two of `ranks` ranks. Where it cannot, gloo would end it, kernel and all.

    Raises:
        CourseError: it may not have so many files open.
    """
    if resource is None:
        return
    ends, open_now = ranks * (ranks - 1), psutil.Process().num_fds()
    needed = open_now + ends + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError) as error:
        raise CourseError(
            f"A group of {ranks} simulated ranks has connections with {ends:,} ends in this process, each an open "
            f"file. It has {open_now:,} open, keeps {SPARE} for other uses, and may have {max(soft, hard):,}. Take "
            "fewer ranks, or make groups once and keep them; or raise the limit where JupyterLab is started, with "
            f"`ulimit -Hn {needed}` as root, or in the settings of the container."
        ) from error
