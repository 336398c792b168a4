"""A cluster: an ipyparallel engine on each machine, with a `host.Host` in it. This kernel drives the hosts' ranks.

All data between kernel and machines goes through ipyparallel's channels, which are signed, and encrypted if the
controller was started with Curve. Ranks reach each other directly, and meet in a store on rank 0's machine.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid4

from ...errors import CourseError
from ..processes.messages import Group
from ..processes.placement import LOOPBACK, Machine, Place
from ..processes.pool import Pool
from ..processes.worker_handle import WorkerHandle
from .relay import Ask, Relay

try:
    import ipyparallel
except ImportError:
    raise CourseError(
        "World(cluster=...): ipyparallel, through which a notebook drives several machines, is not installed here. "
        "Install it on all of them, from the course's folder: pip install '.[cluster]'."
    ) from None

OPENING = 120.0
"""Seconds in which a machine must load torch."""

SILENCE = 30.0
"""Seconds without a message from this kernel after which a machine ends its ranks."""


class Engine:
    """One engine, with functions to call in it."""

    def __init__(self, client: ipyparallel.Client, number: int) -> None:
        self._client, self._number = client, number
        self._view = client[number]

    def execute(self, code: str) -> None:
        """Run `code` in the engine; raise a CourseError if it fails."""
        self._wait(self._view.execute(code), OPENING)

    def call(self, name: str, *arguments: Any, timeout: float = OPENING) -> Any:
        """Call the function `name` in the engine, and return its result.

        Raises:
            CourseError: it failed, the engine does not exist, or `timeout` seconds passed.
        """
        try:
            asked = self._view.apply_async(ipyparallel.Reference(name), *arguments)
        except (IndexError, OSError, RuntimeError) as error:  # the engine has left, or the client is closed
            raise CourseError(f"its engine {self._number} has ended ({error})") from None
        return self._wait(asked, timeout)

    def _wait(self, asked: ipyparallel.AsyncResult, timeout: float) -> Any:
        try:
            return asked.get(timeout=timeout)
        except ipyparallel.TimeoutError:
            raise CourseError(f"its engine {self._number} has not answered for {timeout:g} s") from None
        except ipyparallel.RemoteError as error:
            if error.ename == "EngineError":
                raise CourseError(f"its engine {self._number} has ended") from None
            raise CourseError(f"its engine {self._number} tells {error.ename}: {error.evalue}") from None
        finally:
            for history in (self._client.history, self._view.history):  # ipyparallel would keep every id forever
                with suppress(ValueError):
                    history.remove(asked.msg_ids[0])


class Cluster:
    """The machines of one `ipyparallel.Client`; see `pool.Source`."""

    kernel = None

    def __init__(self, client: ipyparallel.Client) -> None:
        self._client = client
        self._host = f"course_host_{uuid4().hex}"  # its name in the engines; each kernel's differs
        self._known: set[int] = set()  # engines
        self._machines: dict[str, Machine] = {}
        self._relays: dict[str, Relay] = {}

    @property
    def machines(self) -> list[Machine]:
        present = [machine for name, machine in sorted(self._machines.items()) if not self._relays[name].lost]
        if not present:
            raise CourseError(
                "World(cluster=...): the cluster has no engine. Start one on each machine, and wait for them: "
                "client.wait_for_engines(n)."
            )
        return present

    def start(self) -> None:
        for name, relay in list(self._relays.items()):
            if relay.lost:
                print(f"[world] the machine {name!r} is lost: {relay.lost}")
                relay.close()
                del self._relays[name], self._machines[name]
        new = [number for number in self._client.ids if number not in self._known]
        engines = [Engine(self._client, number) for number in new]
        with ThreadPoolExecutor(max(1, len(new))) as threads:
            first: dict[str, Engine] = {}  # of each machine
            for name, engine in zip(threads.map(_machine_of, engines), engines, strict=True):
                if name not in self._relays:
                    first.setdefault(name, engine)
            list(threads.map(self._open, first.values()))
        self._known |= set(new)
        check(list(self._machines.values()))

    def _open(self, engine: Engine) -> None:
        engine.execute(f"from course_lib.world.cluster.host import Host; {self._host} = Host({SILENCE})")
        machine: Machine = engine.call(f"{self._host}.machine")
        self._relays[machine.name] = Relay(machine.name, self._ask(engine))
        self._machines[machine.name] = machine

    def _ask(self, engine: Engine) -> Ask:
        return lambda name, *arguments, timeout: engine.call(f"{self._host}.{name}", *arguments, timeout=timeout)

    def spawn(self, machines: Sequence[str]) -> list[WorkerHandle]:
        numbers = Counter(machines)
        with ThreadPoolExecutor(len(numbers)) as threads:  # torch may still load, for seconds
            born = dict(zip(numbers, threads.map(lambda name: self._spawn(name, numbers[name]), numbers), strict=True))
        return [born[name].pop(0) for name in machines]

    def _spawn(self, name: str, number: int) -> list[WorkerHandle]:
        relay = self._relays[name]
        try:
            with relay.request_lock:
                pids = relay.ask("spawn", number, timeout=OPENING)
        except CourseError as error:
            relay.lose(str(error))
            raise CourseError(
                f"World: the machine {name!r} is lost: {error}. Run again, to go on without it."
            ) from None
        return [relay.adopt(pid) for pid in pids]

    def group(self, number: int, first: Place) -> Group:
        relay = self._relays[first.machine]
        with relay.request_lock:
            port = relay.ask("listen", timeout=OPENING)
        return Group(name=f"group {number}", store=(self._machines[first.machine].address, port))

    def confirm(self) -> None:
        for relay in self._relays.values():
            relay.confirm()

    def forget(self) -> None:
        raise CourseError(
            "World(cluster=...): this process was forked from the kernel that drives the cluster, and shares its "
            "connections. Use the cluster there, or make a client of your own here."
        )

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()
        self._relays.clear()
        self._machines.clear()
        self._known.clear()


def _machine_of(engine: Engine) -> str:
    try:
        engine.execute("from course_lib.world.processes.placement import machine_name as course_machine_name")
    except CourseError as error:
        raise CourseError(
            f"World(cluster=...): {error}. Every engine needs course_lib, as it is here: install it in the Python that "
            "the engine is started with."
        ) from None
    name: str = engine.call("course_machine_name")
    return name


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


class Clusters:
    """A pool of processes for each client."""

    def __init__(self) -> None:
        self._pools: dict[int, tuple[ipyparallel.Client, Pool]] = {}

    def pool(self, client: Any) -> Pool:
        """Return the pool of `client`.

        Raises:
            CourseError: `client` is no ipyparallel.Client.
        """
        if not isinstance(client, ipyparallel.Client):
            raise CourseError(
                f"World(cluster=...): it takes an ipyparallel.Client, and was given a {type(client).__name__}. For "
                "example cluster=ipyparallel.Client()."
            )
        if id(client) not in self._pools:
            self._pools[id(client)] = (client, Pool(Cluster(client)))
        return self._pools[id(client)][1]

    def close(self) -> None:
        """End every rank of every cluster."""
        for _, pool in self._pools.values():
            pool.close()


clusters = Clusters()
atexit.register(clusters.close)
