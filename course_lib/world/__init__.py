"""Worlds: run a function on several ranks of `torch.distributed`, and report why a run failed."""

from .collectives.call import Call
from .collectives.fault import RankReport
from .errors.rank_error import RankError, quoted
from .pickling.calls import pack_call, unpack_call
from .program import Program
from .rank_threads.interrupts import put_off
from .run import Run
from .world import World

__all__ = [
    "Call",
    "Program",
    "RankError",
    "RankReport",
    "Run",
    "World",
    "pack_call",
    "put_off",
    "quoted",
    "unpack_call",
]
