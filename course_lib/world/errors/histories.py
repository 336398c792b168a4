"""The ranks' histories of collectives, compared: where their lines first differ, and how often each was called."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import torch.distributed as dist

from ...errors import grouped, who
from ..collectives.call import Call
from ..collectives.fault import Fault
from .rank_error import quoted, way_to

Histories = dict[int, list[Call]]
"""The collectives that each member of a group has called in it, by rank."""

_OTHERS = ("send", "recv", "new_group", "init_process_group")
"""What is matched by peer, by name or for itself, and not by its number among a rank's calls."""

_JOIN = re.compile(r"with\b.*\b[jJ]oin\w*\(")
"""The line at whose end torch's Join repeats the calls of models and optimizers."""


def first_difference(fault: Fault, calls: Sequence[Sequence[Call]]) -> str:
    """Return where ranks first called from lines that do not belong together; empty if that is not known.

    `calls` are all calls, by rank.
    """
    at_fault = {call.match for call in fault.calls.values()}
    return next(filter(None, (_first_difference(one, at_fault) for one in _in_groups(fault, calls))), "")


def _first_difference(histories: Histories, at_fault: set[int]) -> str:
    """Return where ranks of a group first differ; empty if this is `at_fault`, whose lines the message shows.

    Ranks in the two branches of an `if` call from different lines, too. So a rank must have called from both, and the
    line of a root does not count: each rank can be the root of a different step.
    """
    called = [{call.stack for call in theirs} for theirs in histories.values()]
    for calls in zip(*histories.values(), strict=False):
        together = [call for call in calls if call.rank != call.root]
        ways = dict.fromkeys(call.stack for call in together)
        if any(theirs.issuperset(two) for two in combinations(ways, 2) for theirs in called):
            if together[0].match in at_fault:
                return ""
            lines = {call.rank: quoted(way_to(call, together)) for call in together}
            shown = "; ".join(f"{who(ranks)} {line}" for ranks, line in grouped(lines))
            return f"the lines first differ at {together[0].name}: {shown}"
    return ""


def own_in_join(fault: Fault, calls: Sequence[Sequence[Call]]) -> tuple[list[Call], list[Call]]:
    """Return the first collectives that the program itself called on some ranks while others had reached the end of a
    `with model.join():`, after the calls of these others. Both lists are empty if there are none."""
    for histories in _in_groups(fault, calls):
        for together in zip(*histories.values(), strict=False):
            ended = [call for call in together if _JOIN.match(call.line.source)]
            own = [call for call in together if call not in ended and hasattr(dist, call.inside or "-")]
            if ended and own:
                return ended, own
    return [], []


def counts(fault: Fault, calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield how often each member of a group has called at a line of the `fault`, if not all did equally often.

    In the branches of an `if`, some ranks never call at a line. Such lines are left out.
    """
    lines = dict.fromkeys((call.variant, call.line) for _, call in sorted(fault.calls.items()))
    for histories in _in_groups(fault, calls):
        for variant, line in lines:
            here = {
                rank: [call for call in theirs if (call.variant, call.line) == (variant, line)]
                for rank, theirs in histories.items()
            }
            made = {rank: len(theirs) for rank, theirs in here.items()}
            if all(made.values()) and len(set(made.values())) > 1:
                shown = "; ".join(f"{who(ranks)}: {count}" for ranks, count in grouped(made))
                yield f"calls of {variant} at {line} until then: {shown}{_first_step(here)}"


def groups_made(fault: Fault, calls: Sequence[Sequence[Call]]) -> Iterator[str]:
    """Yield the groups that ranks made at the line of a `new_group` for which others wait, before they returned."""
    first = next(iter(fault.calls.values()))
    if fault.kind != "absent" or first.op != "new_group":
        return
    here = {
        rank: [call.name for call in calls[rank] if (call.op, call.line) == (first.op, first.line)]
        for rank in fault.ranks
    }
    texts = {rank: ", ".join(names[:3]) + ", …" * (len(names) > 3) for rank, names in here.items() if names}
    for ranks, names in grouped(texts):
        yield f"{who(ranks)} also called {first.inside or first.op} at {first.line}: {names}"


def _in_groups(fault: Fault, calls: Sequence[Sequence[Call]]) -> Iterator[Histories]:
    """Yield the histories in each group of the `fault`, up to its calls. Calls without a match were made later."""
    groups = {call.group_name: call.ranks for call in fault.calls.values() if call.op not in _OTHERS}
    last = max((call.match for call in fault.calls.values()), default=0)
    for group_name, ranks in groups.items():
        yield {
            rank: [
                call
                for call in calls[rank]
                if call.group_name == group_name and call.op not in _OTHERS and 0 < call.match <= last
            ]
            for rank in ranks
        }


def _first_step(calls: Mapping[int, Sequence[Call]]) -> str:
    """Return the end of a sentence about the first values of a variable that was equal on all ranks until then: `. The
    first call in different steps: rank 0 with i = 3; rank 1 with i = 4`. Return nothing if there is none.

    `calls` belong together, by rank and in order. A `World(replay=True)` keeps the whole numbers in their variables.
    """
    equal: set[str] | None = None
    for together in zip(*calls.values(), strict=False):
        counters = [dict(call.values.counters) if call.values is not None else {} for call in together]
        names = set.intersection(*map(set, counters))
        differ = {name for name in names if len({one[name] for one in counters}) > 1}
        for name in sorted(differ & (equal or set())):
            texts = {rank: f"with {name} = {one[name][0]}" for rank, one in zip(calls, counters, strict=True)}
            steps = "; ".join(f"{who(ranks)} {text}" for ranks, text in grouped(texts))
            return f". The first call in different steps: {steps}"
        equal = names - differ if equal is None else equal & names - differ
    return ""
