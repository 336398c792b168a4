"""The supervisor of ranks that are threads: it waits for all, ends the run at a fault, the time limit or an interrupt,
and closes their groups. It is the thread that called `World.run`."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..collectives.coordinator import HELD, LOOK, SETTLE
from ..collectives.fault import Fault, RankReport, State
from ..learner_code import importing, position_of, stack_of
from ..torch_hooks import gloo, private
from .coordinator import ThreadCoordinator
from .printing import Lines
from .process_state import collect_garbage
from .rank_thread import RankThread
from .stopping import stop_looking

STOP_EVERY = 0.02  # seconds between two looks at the ranks that must stop
UNWINDING = 0.1  # seconds that a rank has for its `finally` blocks, before it is asked to stop again
GRACE = 0.4  # seconds in which ranks must stop, before they are left behind
DELIVERING = 0.4  # seconds in which results that no rank waits for may still be delivered
SILENT = 5.0  # seconds after which a run shows what its ranks print; a shorter one prints all of a rank, then the next
IMPORTING = 10.0  # seconds that a rank may take to finish an import before it is stopped there


def run_ranks(
    coordinator: ThreadCoordinator, ranks: Sequence[RankThread], timeout: float, late: list[Any], lines: Lines
) -> list[RankReport]:
    """Run the ranks until they have left or are stopped, and close their groups. Return a report of each if they fail.

    `late` contains an interrupt as soon as it arrives; `lines` prints what the ranks print.
    """
    for rank in ranks:
        rank.start()
    silent = time.monotonic() + (SILENT if lines.every else 0.0)
    by_number = {rank.rank: rank for rank in ranks}
    reports: list[RankReport] = []
    try:
        _supervise(
            coordinator, ranks, timeout, late, lambda: _show(ranks, lines) if time.monotonic() > silent else None
        )
    except BaseException:  # a signal handler's: the ranks would go on
        coordinator.fail("interrupted")
        raise
    finally:
        if coordinator.fault is not None:
            reports = _end(coordinator, coordinator.fault, by_number, late)
        _close_groups(coordinator, ranks)
        _show(ranks, lines)
        lines.close()
    ended = [(report, by_number[report.rank]) for report in reports]
    return [report.ended(rank.raised, stopped=not rank.is_alive()) for report, rank in ended]


def _show(ranks: Sequence[RankThread], lines: Lines) -> None:
    for rank in ranks:
        for text, errors in rank.rank_state.new_output():
            lines.add(rank.rank, text, errors=errors)
    lines.update()


def _end(
    coordinator: ThreadCoordinator, fault: Fault, ranks: Mapping[int, RankThread], late: list[Any]
) -> list[RankReport]:
    """Stop the ranks after a fault. Return what each was doing at it."""
    if not fault.from_outside:
        with coordinator.changed:
            coordinator.changed.wait_for(lambda: not coordinator.busy(State.RUNNING), SETTLE)
    with coordinator.changed:
        reports = coordinator.reports({number: position_of(rank) or rank.exited_at for number, rank in ranks.items()})
    _stop(coordinator, list(ranks.values()))
    if fault.kind == "interrupted":
        late.clear()
    return reports


def _supervise(
    coordinator: ThreadCoordinator,
    ranks: Sequence[RankThread],
    timeout: float,
    late: list[Any],
    show: Callable[[], None],
) -> None:
    """Wait until the run is over, and `show` its output. Fail it after `timeout` seconds, or when `late` holds an
    interrupt."""
    deadline = time.monotonic() + timeout
    next_look = time.monotonic() + LOOK
    with coordinator.changed:
        while not coordinator.over:
            left = deadline - time.monotonic()
            if late:
                coordinator.fail("interrupted")
            elif left <= 0:
                coordinator.fail("timeout")
            else:
                coordinator.changed.wait(min(left, 0.1))  # short, to notice `late`
                show()
                if time.monotonic() > next_look:
                    next_look = time.monotonic() + LOOK
                    _look(coordinator, ranks)


def _look(coordinator: ThreadCoordinator, ranks: Sequence[RankThread]) -> None:
    """Record which ranks wait in C++."""
    for rank in ranks:
        if coordinator.states[rank.rank] is State.RUNNING and (held := rank.held_by(HELD)):
            coordinator.waits_in_cpp(rank.rank, held.ticket)


def _stop(coordinator: ThreadCoordinator, ranks: Sequence[RankThread]) -> None:
    """Stop the ranks that have not left by themselves. A rank that imports a module has longer."""
    coordinator.stop()
    began = time.monotonic()
    deadline = began + GRACE
    asked = {rank: began for rank in ranks if coordinator.states[rank.rank] is State.WAITING}  # by their waits
    while coordinator.busy(State.RUNNING, State.WAITING) and (now := time.monotonic()) < deadline:
        for rank in ranks:
            if coordinator.states[rank.rank] not in (State.RUNNING, State.WAITING):
                continue
            if now < began + IMPORTING and importing(stack_of(rank)):
                deadline = now + GRACE
            elif now > asked.get(rank, 0.0) + UNWINDING and rank.stop():
                asked[rank] = now
        with coordinator.changed:
            coordinator.changed.wait(STOP_EVERY)
    stop_looking()


def _close_groups(coordinator: ThreadCoordinator, ranks: Sequence[RankThread]) -> None:
    """Let all ranks that have left close their groups, at the same time."""
    deadline = time.monotonic() + DELIVERING
    while any(rank.delivering for rank in ranks) and time.monotonic() < deadline:
        time.sleep(1e-4)
    private.forget_running_ddp()
    private.forget_wrappers()
    with coordinator.changed:
        left = [rank for rank in ranks if coordinator.states[rank.rank] in (State.RETURNED, State.RAISED)]
        for rank in ranks:
            if rank not in left:  # a rank inside gloo may still leave: it is freed when a peer closes its end
                rank.finish.set()
    collect_garbage()  # models and frames that hold groups are in reference cycles
    with gloo.loopback.hurried() if len(ranks) > 1 else contextlib.nullcontext():  # one rank has no connections
        for rank in left:
            rank.finish.set()
        for rank in ranks:
            rank.join(timeout=5 if rank in left else 0.2)
