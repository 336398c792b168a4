"""The limit of open files. Every two ranks of a group share a connection, and each of its two ends is an open file.

gloo ends the process, the kernel included, when it may open no more files. So each group asks for room first.
"""

from contextlib import suppress

import psutil

from ...errors import CourseError

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

SPARE = 256  # files for other uses: the kernel's, the learner's, and those of groups that are made at the same moment


def make_room(ranks: int) -> None:
    """Raise the limit of open files if the connections of a new group of `ranks` need it."""
    if resource is None:
        return
    ends = ranks * (ranks - 1)
    needed = psutil.Process().num_fds() + ends + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if needed <= hard or hard == resource.RLIM_INFINITY:
        wanted = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
        with suppress(ValueError, OSError):  # macOS refuses some values below its limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
    raise CourseError(
        f"A group of {ranks} simulated ranks has connections with {ends:,} ends in this process, each an open "
        f"file. With the files that are open now, and {SPARE} for other uses, that is more than it may have open: "
        f"{soft:,}. Make groups once and keep them, or take fewer ranks; or raise the "
        "limit where JupyterLab is started (`ulimit -Hn`, as root, or the settings of the container)."
    )
