"""ipyparallel's engines for tests, on this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ipyparallel
import zmq

from course_lib.world.cluster.backend import pool_of
from course_lib.world.processes.placement import LOOPBACK

ROOT = Path(__file__).parents[2]


class Engines:
    """A controller, and engines that are started by hand, as with srun or ssh.

    Args:
        folder: for their files.
        address: where the controller listens.
        prefix: of the command that starts an engine, by the engine's name.

    Attributes:
        file: how clients find the controller.
        client: one.
        running: their processes, by name.
    """

    def __init__(self, folder: Path, address: str = LOOPBACK, prefix: dict[str, list[str]] | None = None) -> None:
        self._folder, self._prefix = folder, prefix or {}
        self._files = folder / "security"
        self.running = {"controller": self._start(["controller", f"--ip={address}"])}
        self.file = str(self._files / "ipcontroller-client.json")
        while not (Path(self.file).exists() and Path(self.file).stat().st_size):  # it is made first, then written
            assert self.running["controller"].poll() is None
            time.sleep(0.05)
        self._context = zmq.Context()  # its threads are where this one is
        self.client = ipyparallel.Client(self.file, context=self._context)

    def add(self, *names: str) -> None:
        """Start an engine of each name, and wait for them."""
        while len(self.client) >= len(self.running):  # the hub has not noticed yet that an engine was killed
            time.sleep(0.05)
        number = len(self.client) + len(names)
        for name in names:
            file = f"--file={self._files / 'ipcontroller-engine.json'}"
            self.running[name] = self._start(["engine", file], name, self._prefix.get(name, []))
        self.client.wait_for_engines(number, timeout=60)

    def _start(self, arguments: list[str], name: str = "", prefix: list[str] | None = None) -> subprocess.Popen:
        kind, *rest = arguments
        command = [*(prefix or []), sys.executable, "-m", f"ipyparallel.{kind}", f"--profile-dir={self._folder}", *rest]
        environ = os.environ | {"COURSE_HOST": name, "IPYTHONDIR": str(self._folder)}
        with (self._folder / f"{kind} {name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """End an engine; its ranks end with it."""
        self.running[name].kill()
        self.running.pop(name).wait(10)

    def close(self) -> None:
        pool_of(self.client).close()
        self.client.close()
        self._context.term()
        for one in self.running.values():
            os.killpg(one.pid, signal.SIGKILL)  # with the children of a controller, which would outlive it
            one.wait(10)
