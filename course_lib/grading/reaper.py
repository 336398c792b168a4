"""The parent of a process in which a learner's code runs: `python keeper.py COMMAND ...`, on Linux.

Whoever detaches itself becomes a child of the nearest ancestor that has asked for orphans, and that is this process:
neither a cleaned environment nor a second fork leads past it. When the command ends, or the grader does, it ends all of
its children. And a command that ends its parent ends this process, and not the grader.
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
    """Run the command that the arguments are."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, lambda *_: None)  # it is for the kernel, which is in the same group
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
    """End all that has been started, also what comes meanwhile."""
    with suppress(ChildProcessError):  # there is none any more
        while True:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            os.wait()


if __name__ == "__main__":
    main()
