"""The ranks' histories of collectives, compared: where they first differ, and which rank is behind."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ...meter import SourceLine
from ..collectives.call import Call
from ..collectives.fault import Fault
from .mismatch import ADVICE
from .rank_error import grouped, quoted, who
from .went_past import own_line, went_past

Histories = dict[int, list[Call]]
"""The collectives that each member of a group has called in it, by rank."""

Key = tuple[str, SourceLine, tuple[tuple[int, ...], ...]]
"""What was called, at which line, and the shapes. Calls with equal keys may belong together."""

Keys = dict[int, list[Key]]
"""The histories, with a key for each call."""

_OTHERS = ("send", "recv", "new_group")
"""What is matched by peer or by name, and not by its number among a rank's calls."""


def compared(fault: Fault, calls: Sequence[Sequence[Call]]) -> tuple[str, str]:
    """Return how the histories in a group of the `fault` differ, and advice; empty if they show nothing new.

    `calls` are all calls, by rank. Those without a match were made while the run was stopped.
    """
    groups = {call.group_name: call for call in fault.calls.values() if call.ranks and call.op not in _OTHERS}
    without = _without(fault.calls, calls) if fault.kind == "mismatch" and groups else ""
    for group_name, call in groups.items():
        histories = {
            rank: [one for one in calls[rank] if one.group_name == group_name and one.op not in _OTHERS and one.match]
            for rank in call.ranks
        }
        line, advice = _first_difference(histories, fault, calls)
        if not line and fault.kind == "mismatch":
            line, advice = _left_a_loop(histories, fault) if not without else ("", "")
        elif not line:
            line, advice = _in_different_groups(calls, call)
            line, advice = (line, advice) if line else _behind(histories, call)
        if line:
            return line, advice
    if without and fault.detail in ADVICE:
        without = f"{without} If the two calls belong together: {ADVICE[fault.detail]}"
    return "", without


def _without(meeting: Mapping[int, Call], calls: Sequence[Sequence[Call]]) -> str:
    """Return advice if ranks came to their call of `meeting` without one that other ranks make in it."""
    for call in meeting.values():
        line = own_line(call.line)
        theirs = sorted((rank, own_line(other.line)) for rank, other in meeting.items())
        without = [rank for rank, other_line in theirs if went_past(line, other_line, calls[rank])]
        if without:
            return f"make the {call.variant} at {line} on every rank or on none: {who(without)} went on without it."
    return ""


def _first_difference(histories: Histories, fault: Fault, calls: Sequence[Sequence[Call]]) -> tuple[str, str]:
    """Return where ranks first called from lines that do not belong together, and advice; empty if they never did.

    Ranks in the two branches of an `if` call from different lines, too. So a rank must have called from both.
    """
    keys: Keys = {
        rank: [(call.variant, call.line, call.shapes if call.splits is None else ()) for call in history]
        for rank, history in histories.items()
    }
    in_message = {call.match for call in fault.calls.values()}  # the message shows their lines
    for place in range(max(map(len, keys.values()))):
        here = {rank: theirs[place] for rank, theirs in keys.items() if place < len(theirs)}
        (usual, _), *others = Counter(here.values()).most_common()
        for other, _ in others:
            if any(_called_from_both(theirs, usual, other) for theirs in keys.values()):
                sides = [[rank for rank in here if here[rank] == key] for key in (usual, other)]
                reason = _reason(keys, place, *sides)
                if any(histories[rank][place].match in in_message for rank in here):
                    return (f"by the order of the other calls, {reason} there", _ADVICE) if reason else ("", "")
                shown = _difference([(side, histories[side[0]][place]) for side in sides], reason)
                return shown, _ADVICE if reason else _without({rank: histories[rank][place] for rank in here}, calls)
    return "", ""


def _called_from_both(keys: list[Key], one: Key, other: Key) -> bool:
    """Return whether a rank with these `keys` called from both lines; of one line, also with both shapes."""
    same_line = one[:2] == other[:2]
    return {one, other} <= set(keys) if same_line else {one[:2], other[:2]} <= {key[:2] for key in keys}


_ADVICE = (
    "call that collective on every rank or on none: look for an `if`, a `continue` or a shorter loop that only some "
    "ranks meet."
)


def _difference(sides: list[tuple[list[int], Call]], reason: str) -> str:
    same_line = len({call.line for _, call in sides}) == 1
    shown = "; ".join(
        f"{who(ranks)} {f'{call.tensors} at ' if same_line else ''}{quoted(call.line)}" for ranks, call in sides
    )
    return f"the calls first differ at {sides[0][1].name}{reason and f', where {reason}'}: {shown}"


def _reason(keys: Keys, place: int, some: list[int], others: list[int]) -> str:
    """Return which ranks skipped calls at `place` or made more; empty if the other calls do not show it."""
    seen_by = [
        {pair for rank in side for at, pair in enumerate(pairwise(keys[rank]), 1) if at != place}
        for side in (some, others)
    ]
    seen = seen_by[0] & seen_by[1]
    before, one, other = keys[some[0]][place - 1] if place else None, keys[some[0]][place], keys[others[0]][place]
    for first, second in (((before, one), (before, other)), ((one, other), (other, one))):
        if (first in seen) != (second in seen):
            usual, odd = (some, others) if first in seen else (others, some)
            break
    else:
        return ""
    theirs, mine = keys[usual[0]], keys[odd[0]]
    skipped, more = _until(mine[place], theirs[place:]), _until(theirs[place], mine[place:])
    skipped = skipped or int((theirs[place], mine[place]) in seen)
    if skipped and not (more and len(mine) > len(theirs)):
        explained = _is_without(mine[place:], theirs[place:], skipped)
        return f"{who(odd)} skipped {_collectives(skipped)}" if explained else ""
    explained = more > 0 and _is_without(theirs[place:], mine[place:], more)
    return f"{who(odd)} made {_collectives(more)} more" if explained else ""


def _is_without(short: list[Key], long: list[Key], count: int) -> bool:
    """Return whether `short` continues as `long` does without its first `count` calls, wherever they recur."""
    left_out, place = long[:count], 0
    for key in short:
        if [key] != long[place : place + 1] and long[place : place + count] == left_out:
            place += count
        if place >= len(long):
            break  # `long` ends here
        if key != long[place]:
            return False
        place += 1
    return True


def _until(key: Key, keys: list[Key]) -> int:
    return keys.index(key) if key in keys else 0


def _collectives(count: int) -> str:
    return f"{count} collective{'s' if count > 1 else ''}"


def _behind(histories: Histories, call: Call) -> tuple[str, str]:
    """Return how far ranks are behind, and advice; empty where the name of `call`, in which a rank waits, shows it."""
    made = {rank: len(history) for rank, history in histories.items()}
    here = _made_at_the_line_of(call, histories)
    last, first = min(made, key=made.__getitem__), max(made, key=made.__getitem__)
    behind, ahead = ([rank for rank in made if made[rank] == made[one]] for one in (last, first))
    missing, in_a_loop = made[first] - made[last], here[first] > here[last] > 0
    if missing < (1 if in_a_loop else 2):
        return "", ""
    behind_by = f"{who(behind)} {'is' if len(behind) == 1 else 'are'} {_collectives(missing)} behind"
    if in_a_loop:
        return f"{behind_by}: {here[last]} at that line, {here[first]} on {who(ahead)}", _loop_advice(behind, ahead)
    return f"{behind_by}: {made[last]} in that group, {made[first]} on {who(ahead)}", ""


def _left_a_loop(histories: Histories, fault: Fault) -> tuple[str, str]:
    """Return which ranks went on to a new line while others make one more call at an earlier line, and advice."""
    if fault.detail != "collective" or histories.keys() != fault.calls.keys():
        return "", ""
    for call in fault.calls.values():
        here = _made_at_the_line_of(call, histories)
        count = max(here.values()) - 1
        ahead, behind = ([rank for rank in here if here[rank] == made] for made in (count + 1, count))
        if count == 0 or not behind or len(ahead) + len(behind) < len(here):
            continue
        if not any(_made_at_the_line_of(fault.calls[rank], histories)[ahead[0]] for rank in behind):
            times = f"{count} time{'s' if count > 1 else ''}"
            line = f"{who(behind)} called {call.variant} at {call.line} only {times}"
            return line, _loop_advice(behind, ahead)
    return "", ""


def _made_at_the_line_of(call: Call, histories: Histories) -> dict[int, int]:
    """Return how often each rank called the same op as `call` at its line."""
    return {
        rank: sum((one.variant, one.line) == (call.variant, call.line) for one in history)
        for rank, history in histories.items()
    }


def _loop_advice(behind: list[int], ahead: list[int]) -> str:
    if len(ahead) < len(behind):
        return f"look for a longer loop on {who(ahead)}, or an `if` with a call that the other ranks do not make."
    return f"look for a shorter loop on {who(behind)}, or an `if`, a `continue` or a `return` in the loop."


def _in_different_groups(calls: Sequence[Sequence[Call]], call: Call) -> tuple[str, str]:
    """Return the groups in which ranks called at the line of `call`, and advice, if members of its group went to other
    groups there, equally often."""
    here = {
        rank: [one for one in calls[rank] if (one.variant, one.line) == (call.variant, call.line)]
        for rank in range(len(calls))
    }
    if any(len(here[rank]) != len(here[call.ranks[0]]) for rank in call.ranks):
        return "", ""
    last = {rank: theirs[-1].ranks for rank, theirs in here.items() if theirs}
    if len({last[rank] for rank in call.ranks}) == 1:
        return "", ""
    shown = "; ".join(f"{who(ranks)} in {group}" for ranks, group in grouped({r: str([*last[r]]) for r in last}))
    return (
        f"ranks called at that line in groups that overlap: {shown}",
        "a call meets only calls in the same group: let all ranks use the same groups at that line, in the same order.",
    )
