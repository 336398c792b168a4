"""The recorder of a rank's calls: it reads each call from the arguments of a `c10d` operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..torch_hooks import private
from .call import OPS, Call, describe
from .validation import check


class CallRecorder:
    """The calls of one rank, in order."""

    def __init__(self, rank: int) -> None:
        self.calls: list[Call] = []
        self._rank = rank
        self._numbers: Counter[tuple[str, str]] = Counter()

    def call(self, operator: Any, arguments: dict[str, Any], devices: tuple[str, ...] = ("cpu",)) -> Call:
        """Return the call of `operator` with `arguments`, checked and numbered.

        Args:
            operator: a `c10d` operator.
            arguments: by their names in its schema.
            devices: the device types that the group's backend supports.

        Raises:
            ValueError: the arguments are wrong on this rank, independently of its peers.
        """
        name = operator._schema.name.split("::")[1]
        group = private.group_of(arguments["process_group"])
        reduce_op = private.reduce_op_name(arguments["reduce_op"]) if "reduce_op" in arguments else None
        op, ranks = OPS.get(name, name), private.group_ranks(group)
        number = self._numbers[group.group_name, op] + 1
        call = describe(op, number, group.group_name, ranks, arguments, reduce_op)
        check(op, len(ranks), call.root == self._rank, arguments, devices)
        self._numbers[group.group_name, op] = number
        self.calls.append(call)
        return call


def is_asynchronous(call: Call, arguments: dict[str, Any]) -> bool:
    """Return whether the rank goes on and waits later. A recv from any rank does not: its peer is unknown at first."""
    if call.op in ("send", "recv"):
        return call.root is not None
    return call.op != "monitored_barrier" and bool(arguments.get("async_op", True))
