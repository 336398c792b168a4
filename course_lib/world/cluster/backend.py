"""A cluster: an ipyparallel engine on each machine, with a `host.Host` in it. This kernel drives the hosts' workers.

ipyparallel finds the engines and starts the hosts. The kernel and the workers then have connections of their own. Ranks
reach each other directly, and find each other in a store on rank 0's machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import ipyparallel

from ...errors import CourseError
from ..processes.placement import LOOPBACK, Machine, Place
from ..processes.pool import Pool
from ..processes.protocol import Group
from ..processes.worker_handle import WorkerHandle
from .remote import RemoteMachine

OPENING = 120.0  # seconds in which a machine must load torch
SILENCE = 30.0  # seconds without an answer from this kernel's machine after which a machine ends its ranks


class Cluster(Pool):
    """The machines of one `ipyparallel.Client`."""

    local = False

    def __init__(self, client: ipyparallel.Client) -> None:
        super().__init__()
        self._client = client
        self._known: set[int] = set()  # engines
        self._hosts: dict[str, RemoteMachine] = {}

    @property
    def machines(self) -> list[Machine]:
        present = [host.machine for _, host in sorted(self._hosts.items()) if not host.lost]
        if not present:
            raise CourseError(
                "World(cluster=...): the cluster has no engine. Start one on each machine, and wait for them: "
                "client.wait_for_engines(n)."
            )
        return present

    def prepare(self) -> None:
        new = sorted(set(self._client.ids) - self._known)
        first: dict[str, int] = {}  # engine of each machine
        for engine, name in zip(new, self._call(new, "machine_name"), strict=True):
            first.setdefault(name, engine)
        for name, host in list(self._hosts.items()):
            with suppress(CourseError):
                host.compare_clocks()
            if host.lost:
                print(f"[world] the machine {name!r} is lost: {host.lost}")
                self._hosts.pop(name).connection.close()
        opened = {name: engine for name, engine in first.items() if name not in self._hosts}
        access = self._call(list(opened.values()), "open_host", SILENCE)
        for (name, engine), of_host in zip(opened.items(), access, strict=True):
            self._hosts[name] = RemoteMachine(engine, *of_host)
            self._hosts[name].compare_clocks()
        self._known |= set(new)
        check([host.machine for host in self._hosts.values()])

    def _call(self, engines: Sequence[int], function: str, *arguments: Any) -> list[Any]:
        """Call a function of the module `host` in each of the engines."""
        if not engines:
            return []
        try:
            view = self._client[engines]
            view.execute("from course_lib.world.cluster import host as course_host").get(OPENING)
            results: list[Any] = view.apply(ipyparallel.Reference(f"course_host.{function}"), *arguments).get(OPENING)
        except (ipyparallel.RemoteError, ipyparallel.TimeoutError, IndexError, OSError, RuntimeError) as error:
            raise CourseError(
                f"World(cluster=...): an engine cannot be used ({type(error).__name__}: {error}). Every engine needs "
                "course_lib, as it is here: install it in the Python that the engine is started with."
            ) from None
        return results

    def spawn(self, machines: Sequence[str]) -> list[WorkerHandle]:
        spawned = {name: self._hosts[name].spawn(number) for name, number in Counter(machines).items()}
        return [spawned[name].pop(0) for name in machines]

    def new_group(self, number: int, first: Place) -> Group:
        host = self._hosts[first.machine]
        return Group(name=f"group {number}", store=(host.machine.address, host.ask("listen")))

    def confirm(self) -> None:
        for host in self._hosts.values():
            with suppress(CourseError):  # the machine is lost
                host.ask("clock")  # deaths arrive before the answer

    def close(self) -> None:
        super().close()
        for host in self._hosts.values():
            host.connection.close()
        self._hosts.clear()
        self._known.clear()


def check(machines: Sequence[Machine]) -> None:
    """Raise a CourseError if the machines cannot work together."""
    here = Machine.here(LOOPBACK)
    for machine in machines:
        if machine.versions != here.versions:
            raise CourseError(
                f"World(cluster=...): {machine.name} has Python {' and torch '.join(machine.versions)}, and this "
                f"kernel Python {' and torch '.join(here.versions)}. Install the same on all machines."
            )
    alone = [machine.name for machine in machines if machine.address == LOOPBACK]
    if alone and len({machine.hostname for machine in machines}) > 1:
        raise CourseError(
            f"World(cluster=...): {', '.join(alone)} reached the controller through the loopback, as through a tunnel, "
            "where no other machine can reach it. Name the network interface that they reach it by: start the engine "
            "there with GLOO_SOCKET_IFNAME=eth0, for example (`ip addr` lists them)."
        )


pool_of = cache(Cluster)
"""Returns the pool of workers of an `ipyparallel.Client`."""
