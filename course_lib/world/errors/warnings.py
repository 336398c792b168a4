"""Warnings of a run that went through: what is legal, and yet very likely wrong."""

from collections.abc import Iterable, Iterator, Sequence

from ...errors import who
from ...meter import SourceLine
from ..collectives.call import Call
from .rank_error import quoted

Found = list[tuple[int, Call]]
"""Calls, each with its rank."""


def unwaited(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line for each of the learner's lines that drops a Work or uses tensors too early. `calls` are by rank."""
    of_all = [(rank, call) for rank, theirs in enumerate(calls) for call in theirs]
    for line, found in _by_line((call.line, rank, call) for rank, call in of_all if call.open_handle):
        if found[0][1].op == "init_process_group":
            continue
        use = "change" if found[0][1].op == "send" else "use"
        yield (
            f"{_names(found, len(calls))} never waited for {_call(found)}{_more(found)} at {quoted(line)}. Without "
            f"the wait, the tensor may still be on its way when you {use} it. Next: keep what the call returns, and "
            f"call wait() on it before you {use} the tensor."
        )
    for line, found in _by_line((call.used_at, rank, call) for rank, call in of_all):
        yield (
            f"{_names(found, len(calls))} used a tensor of {_call(found)}{_more(found)} before its wait, at "
            f"{quoted(line)}. The tensor may still be on its way. Next: move that line behind the wait()."
        )


def open_groups(calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield a line for each line of a program that made the default group, if nothing has destroyed it."""
    of_all = [(call.line, rank, call) for rank, theirs in enumerate(calls) for call in theirs if call.open_handle]
    for line, found in _by_line(one for one in of_all if one[-1].op == "init_process_group"):
        yield (
            f"{_names(found, len(calls))} never destroyed the group made at {quoted(line)}. With NCCL, a rank that "
            "ends first can then fail the others. Next: end the program with dist.destroy_process_group()."
        )


def shared_variables(names: Sequence[str], world_size: int) -> list[str]:
    """Return a line about the variables of modules that a run has set, and that its ranks share; none without any."""
    if not names:
        return []
    them, restored = ("it", "it has its old value") if len(names) == 1 else ("them", "they have their old values")
    return [
        f"{who(range(world_size), world_size)} share {', '.join(names)}, and this run has set {them}: simulated ranks "
        f"import a module once, so each reads what was set last. After the run, {restored} again. Next: use "
        f'World({world_size}, backend="processes"), or keep the value in the function.'
    ]


def _by_line(found: Iterable[tuple[SourceLine | None, int, Call]]) -> Iterable[tuple[SourceLine, Found]]:
    lines: dict[SourceLine, Found] = {}
    for line, rank, call in found:
        if line is not None:
            lines.setdefault(line, []).append((rank, call))
    return lines.items()


def _names(found: Found, world_size: int) -> str:
    return who(sorted({rank for rank, _ in found}), world_size)


def _call(found: Found) -> str:
    """Return the call's name. On a ring, one line sends to a different peer on each rank: then only what it does."""
    names = {call.name for call in dict(reversed(found)).values()}
    return found[0][1].name if len(names) == 1 else found[0][1].op


def _more(found: Found) -> str:
    count = sum(rank == found[0][0] for rank, _ in found) - 1
    return f" and {count} more" if count else ""
