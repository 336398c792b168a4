"""A rank's part in a call that it does not wait for: what it gets, to come back for the result."""

from __future__ import annotations

from typing import Any

from . import torch_internals
from .calls import Call
from .meeting import Future, Identity, Meeting, delivered
from .sites import called_from_python


def promised(
    meeting: Meeting, rank: int, call: Call, operator: Any, arguments: dict[str, Any], identity: Identity
) -> tuple[Any, Any]:
    """What `operator` returns to `rank` before `meeting` takes place, and the Work in it. `identity` is for the thread
    that will deliver the result."""
    in_backward = torch_internals.at_end_of_backward(call.times.wait_begins, call.times.wait_ends)
    if not in_backward and not called_from_python():
        call.times.waited_from = call.times.issued
    future = meeting.futures[rank] = Future()
    meeting.identities[rank] = identity
    result, work = torch_internals.pending_result(operator, arguments, future.then(delivered))
    return result, work
