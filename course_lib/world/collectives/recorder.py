"""The recorder of a rank's calls: it reads each call from the arguments of a `c10d` operator."""

import sys
import threading
import time
from collections import Counter
from typing import Any

import torch.distributed as dist

from ..error_report import Unfinished
from ..learner_code import in_program, learner_line, learner_lines, library_function
from ..torch_hooks import private
from .call import DEFAULT_GROUP, OPS, Call, Progress, described
from .validation import check
from .values import least_finite, values_of

_WITH_NEUTRAL_INFINITY = ("max", "min")
"""Reductions to which a rank without values brings infinity."""


class CallRecorder:
    """The calls of one rank, in order. `keeps_values` is whether the values of small tensors are kept as well.

    The learner's function runs on `thread`, and torch's callbacks on threads of their own.
    """

    def __init__(self, rank: int, started: float, thread: threading.Thread) -> None:
        self.made: list[Progress] = []
        self.keeps_values = False
        self._rank, self._started, self.thread = rank, started, thread
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._lock = threading.RLock()  # callbacks make calls on threads of their own

    @property
    def calls(self) -> list[Call]:
        return [progress.record for progress in self.made]

    def collective(self, operator: Any, arguments: dict[str, Any], devices: tuple[str, ...]) -> Progress:
        """Record a collective or a message, a `c10d` operator and its arguments, and return it.

        `devices` are the device types that the group's backend supports. Raise a ValueError if the arguments are wrong
        on this rank, independently of its peers.
        """
        name = operator._schema.name.split("::")[1]
        group = dist.ProcessGroup.unbox(arguments["process_group"])
        op, group_name, ranks = OPS.get(name, name), group.group_name, private.group_ranks(group)
        details = described(op, ranks, arguments)
        if "reduce_op" in arguments:
            details["reduce_op"] = private.reduce_op_name(arguments["reduce_op"])
        is_root = details["root"] == self._rank
        check(op, len(ranks), is_root, arguments, devices)
        if details.get("reduce_op") not in _WITH_NEUTRAL_INFINITY:
            details["least_finite"] = least_finite(op, is_root, arguments, whole=self.keeps_values)
        if self.keeps_values:
            details["values"] = values_of(op, is_root, arguments)
        with self._lock:
            self._numbers[group_name, op] += 1
            return self._kept(self.made_here(op, group_name, ranks, number=self._numbers[group_name, op], **details))

    def new_group(self, group_name: str, ranks: list[int]) -> Progress:
        return self._kept(self.made_here("new_group", group_name, tuple(ranks)))

    def _kept(self, call: Call) -> Progress:
        with self._lock:
            progress = Progress(call=call, index=len(self.made), started=self._started, values=call.values)
            self.made.append(progress)
        return progress

    def init_process_group(self, world_size: int, number: int) -> Progress:
        return self._kept(self.made_here("init_process_group", DEFAULT_GROUP, tuple(range(world_size)), number=number))

    def made_here(self, variant: str, group_name: str, ranks: tuple[int, ...], **details: Any) -> Call:
        """Return a call that the calling thread makes now, at the learner's line."""
        stack = learner_lines()
        line, thread = in_program(stack) or learner_line(self.thread), threading.current_thread()
        return Call(
            variant=variant,
            rank=self._rank,
            ranks=ranks,
            group_name=group_name,
            line=line,
            inside=library_function(line),
            stack=stack,
            issued=time.perf_counter() - self._started,
            in_thread=thread is not self.thread and not isinstance(thread, threading._DummyThread),  # one of C++
            unfinished=Unfinished.of(sys.exception()),
            **details,
        )


def is_asynchronous(call: Call, arguments: dict[str, Any]) -> bool:
    """Return whether the rank goes on and waits later."""
    return call.op in ("send", "recv") or (
        call.variant != "monitored_barrier" and bool(arguments.get("async_op", True))
    )
