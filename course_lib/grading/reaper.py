"""The parent of a process in which a learner's code runs: `python reaper.py COMMAND ...`, on Linux.

A detached process becomes a child of the nearest ancestor that has asked for orphans, which is this process. A cleared
environment or a second fork does not help it to escape. When the command ends, or the grader does, this process kills
all of its children. A command that kills its parent kills this process, not the grader.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of linux/prctl.h


def main() -> None:
    """Run the command given by the arguments."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, lambda *_: None)  # the signal is for the kernel, which is in the same group
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    try:
        command = subprocess.Popen(sys.argv[1:])
        while os.wait()[0] != command.pid:
            pass  # an orphan
    finally:
        end_children()


def end_children() -> None:
    """Kill all processes that were started, including those that appear meanwhile."""
    with suppress(ChildProcessError):  # no child is left
        while True:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            os.wait()


if __name__ == "__main__":
    main()
