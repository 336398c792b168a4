"""The ranks' histories of collectives, compared: where they first differ, and which rank is behind."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import inf

from ...errors import grouped, who
from ..collectives.call import Call
from ..collectives.fault import Fault, Kind
from .headline import ADVICE
from .rank_error import hidden, is_named, quoted
from .steps import first_step
from .went_past import in_its_loops, make_inside, parting, share_a_loop, way_to, without_a_call

Histories = dict[int, list[Call]]
"""The collectives that each member of a group has called in it, by rank."""

Key = tuple[str, Hashable, tuple[tuple[int, ...], ...]]
"""The name of a call, its line or the way to it, and the shapes. Calls with equal keys may belong together."""

Keys = dict[int, list[Key]]
"""The histories, with a key for each call."""

_OTHERS = ("send", "recv", "new_group", "init_process_group")
"""What is matched by peer, by name or for itself, and not by its number among a rank's calls."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A finding: a line of the message, and advice. Empty texts are left to the rest of the message."""

    line: str = ""
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Members:
    """The ranks of a group in which calls of a `fault` were made, their `histories` in it, and all `calls`, by rank."""

    fault: Fault
    call: Call
    histories: Histories
    calls: Sequence[Sequence[Call]]


def compared(fault: Fault, calls: Sequence[Sequence[Call]]) -> Difference:
    """Return how the histories in a group of the `fault` differ, by the first finder that any group answers.

    `calls` are all calls, by rank. Those without a match were made while the run was stopped.
    """
    groups = {call.group_name: call for call in fault.calls.values() if call.ranks and call.op not in _OTHERS}
    members = []
    for group_name, call in groups.items():
        histories = {
            rank: [one for one in calls[rank] if one.group_name == group_name and one.op not in _OTHERS and one.match]
            for rank in call.ranks
        }
        members.append(Members(fault=fault, call=call, histories=histories, calls=calls))
    found = (find(group) for find in _FINDERS[fault.kind] for group in members)
    return next(filter(None, found), Difference())


def passed_before(fault: Fault, calls: Sequence[Sequence[Call]]) -> str:
    """Return how many messages have passed at the lines in which ranks wait for one; empty if that is no reason."""
    waiting = fault.calls.values()
    if fault.kind != "deadlock" or not {call.op for call in waiting} <= {"send", "recv"}:
        return ""
    if len({call.tag for call in waiting}) > 1 or not any(map(is_named, waiting)):  # or torch makes them
        return ""
    verbs, passed = {"send": "sent {} to", "recv": "received {} from"}, []
    for rank, call in fault.calls.items():
        done = [(one.op, one.root, one.line) for one in calls[rank] if one.done < inf]
        if count := done.count((call.op, call.root, call.line)):
            messages = verbs[call.op].format(_counted(count, "message"))
            passed.append(f"rank {rank} had {messages} rank {call.root} at that line")
    return "; ".join(passed)


def _left_out(members: Members) -> Difference | None:
    """Return advice if ranks came to their call of the fault without one that other ranks make in it."""
    fault = members.fault
    collectives = {rank: call for rank, call in fault.calls.items() if call.op not in _OTHERS}
    if len({call.group_name for call in collectives.values()}) > len({call.ranks for call in collectives.values()}):
        return None  # two groups of the same ranks, in a different order
    advice = without_a_call(collectives, members.calls)
    if advice and fault.detail in ADVICE:
        advice = f"{advice} If the two calls belong together: {ADVICE[fault.detail]}"
    return Difference(advice=advice) if advice else None


def _first_difference(members: Members) -> Difference | None:
    """Return where ranks first called from lines that do not belong together; None if they never did.

    Ranks in the two branches of an `if` call from different lines, too. So a rank must have called from both. The lines
    of a function that calls are compared first: two lines may call a function that makes the calls.
    """
    found = _first_difference_by(members, lambda call: call.stack)
    found = found or _first_difference_by(members, lambda call: call.line)
    return None if found == Difference() else found


def _first_difference_by(members: Members, where: Callable[[Call], Hashable]) -> Difference | None:
    """Return where ranks first differ; an empty difference if the message shows these lines, and no reason is known."""
    histories = members.histories
    keys: Keys = {
        rank: [(call.variant, where(call), call.shapes if call.splits is None else ()) for call in history]
        for rank, history in histories.items()
    }
    called = [(set(theirs), {key[:2] for key in theirs}) for theirs in keys.values()]
    in_message = {call.match for call in members.fault.calls.values()}  # the message shows their lines
    for place in range(max(map(len, keys.values()))):
        here = {rank: theirs[place] for rank, theirs in keys.items() if place < len(theirs)}
        (usual, _), *others = Counter(here.values()).most_common()
        for other, _ in others:
            if any(_called_from_both(*theirs, usual, other) for theirs in called):
                sides = [[rank for rank in here if here[rank] == key] for key in (usual, other)]
                order = _in_order(keys, place, *sides)
                reason = _reason(keys, place, *order) if order else ""
                if any(histories[rank][place].match in in_message for rank in here):
                    if order is None or not reason:
                        return Difference()
                    fits, differs = map(who, order)
                    line = f"the call of {fits} fits the order of the other calls, that of {differs} does not"
                    return Difference(line=line, advice=f"{_ADVICE} Or the order of the calls differs.")
                at_place = {rank: histories[rank][place] for rank in here}
                line = _difference([(side, at_place[side[0]]) for side in sides], reason)
                advice = "" if reason else without_a_call(at_place, members.calls)
                return Difference(line=line, advice=advice or _ADVICE)
    return None


def _called_from_both(keys: set[Key], lines: set[tuple[str, Hashable]], one: Key, other: Key) -> bool:
    """Return whether a rank with these `keys`, and `lines` in them, called from both lines; of one line, also with both
    shapes."""
    return {one, other} <= keys if one[:2] == other[:2] else {one[:2], other[:2]} <= lines


_ADVICE = (
    "call that collective on every rank or on none: look for an `if`, a `continue`, an `except` or a shorter loop that "
    "only some ranks meet."
)


def _difference(sides: list[tuple[list[int], Call]], reason: str) -> str:
    ways = [way_to(call, [other for _, other in sides]) for _, call in sides]
    same_way = len(set(ways)) == 1
    shown = "; ".join(
        f"{who(ranks)} {f'{call.tensors} at ' if same_way else ''}{quoted(way)}"
        for (ranks, call), way in zip(sides, ways, strict=True)
    )
    in_lines_only = not reason and len({(call.variant, call.shapes) for _, call in sides}) == 1
    what = "lines" if in_lines_only else "calls"
    return f"the {what} first differ at {sides[0][1].name}{reason and f', where {reason}'}: {shown}"


def _in_order(keys: Keys, place: int, some: list[int], others: list[int]) -> tuple[list[int], list[int]] | None:
    """Return the ranks whose call at `place` fits the order of the other calls, and those whose call does not; None if
    these calls do not show it."""
    seen = _seen(keys, place, some, others)
    before, one, other = keys[some[0]][place - 1] if place else None, keys[some[0]][place], keys[others[0]][place]
    for first, second in (((before, one), (before, other)), ((one, other), (other, one))):
        if (first in seen) != (second in seen):
            return (some, others) if first in seen else (others, some)
        if first in seen:
            return None  # both orders have occurred: nothing shows which rank left out a call
    return None


def _seen(keys: Keys, place: int, *sides: list[int]) -> set[tuple[Key, Key]]:
    """Return which calls have followed each other on ranks of all sides, elsewhere than at `place`."""
    return set.intersection(
        *({pair for rank in side for at, pair in enumerate(pairwise(keys[rank]), 1) if at != place} for side in sides)
    )


def _reason(keys: Keys, place: int, usual: list[int], odd: list[int]) -> str:
    """Return which ranks skipped calls at `place` or made more; empty if the other calls do not show it."""
    theirs, mine = keys[usual[0]], keys[odd[0]]
    skipped, more = _until(mine[place], theirs[place:]), _until(theirs[place], mine[place:])
    skipped = skipped or int((theirs[place], mine[place]) in _seen(keys, place, usual, odd))
    if skipped and not (more and len(mine) > len(theirs)):
        explained = _continues_without(mine[place:], theirs[place:], skipped)
        return f"{who(odd)} skipped {_collectives(skipped)}" if explained else ""
    explained = more > 0 and _continues_without(theirs[place:], mine[place:], more)
    return f"{who(odd)} made {_collectives(more)} more" if explained else ""


def _continues_without(short: list[Key], long: list[Key], count: int) -> bool:
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
    return _counted(count, "collective")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _behind(members: Members) -> Difference | None:
    """Return how far ranks are behind; None where the name of the call, in which a rank waits, shows it."""
    histories = members.histories
    made = {rank: len(history) for rank, history in histories.items()}
    here = _made_at_the_line_of(members.call, histories)
    last, first = min(made, key=made.__getitem__), max(made, key=made.__getitem__)
    behind, ahead = ([rank for rank in made if made[rank] == made[one]] for one in (last, first))
    same_way = any(one.stack == members.call.stack for one in histories[last])
    missing, in_a_loop = made[first] - made[last], here[first] > here[last] > 0 and same_way
    if missing < (1 if in_a_loop else 2):
        return None
    behind_by = f"{who(behind)} {'is' if len(behind) == 1 else 'are'} {_collectives(missing)} behind"
    if in_a_loop:
        line = f"{behind_by}: {here[last]} at that line, {here[first]} on {who(ahead)}"
        line += first_step(_at_the_line_of(members.call, histories))
        return Difference(line=line, advice=_loop_advice(behind, ahead))
    return Difference(line=f"{behind_by}: {made[last]} in that group, {made[first]} on {who(ahead)}")


def _left_a_loop(members: Members) -> Difference | None:
    """Return which ranks went on to a new line while others make one more call at an earlier line."""
    fault, histories = members.fault, members.histories
    one_line = len({call.line for call in fault.calls.values()}) == 1
    if (fault.detail != "collective" and one_line) or histories.keys() != fault.calls.keys():
        return None
    histories = {rank: _up_to(fault.calls[rank], history) for rank, history in histories.items()}
    for call in fault.calls.values():
        here = _made_at_the_line_of(call, histories)
        count = max(here.values()) - 1
        ahead, behind = ([rank for rank in here if here[rank] == made] for made in (count + 1, count))
        if count == 0 or not behind or len(ahead) + len(behind) < len(here):
            continue
        known = any(_made_at_the_line_of(fault.calls[rank], histories)[ahead[0]] for rank in behind)
        if not known or all(_goes_on_first(histories[rank], histories[ahead[0]], call) for rank in behind):
            line = f"{who(behind)} called {call.variant} at {call.line} only {_counted(count, 'time')}"
            line += first_step(_at_the_line_of(call, histories))
            new = fault.calls[behind[0]]
            or_a_call, lines = "" if known else _or_a_call(behind, fault.calls, call), parting(new, call)
            advice = or_a_call + _loop_advice(behind, ahead)
            if lines is not None and not known and not or_a_call and share_a_loop(*lines):
                advice += f" Or {who(ahead)} went on to the next round of a loop without the call at {lines[0]}."
            groups = {one.ranks for one in chain(*_at_the_line_of(new, dict(enumerate(members.calls))).values())}
            if is_named(new) and any(group != new.ranks and {*group} & {*new.ranks} for group in groups):
                advice += f" Or {who(new.ranks)} are not meant to share this group."
            return Difference(line=line, advice=advice)
    return None


def _goes_on_first(own: Sequence[Call], others: Sequence[Call], call: Call) -> bool:
    """Return whether a rank's last step, from the line of `call` to a different one, is new to it and to the others."""
    steps, theirs = ([*pairwise(one.line for one in calls)] for calls in (own, others))
    return any(step[0] == call.line and step not in [*steps[:-1], *theirs] for step in steps[-1:])


def _up_to(call: Call, history: Sequence[Call]) -> list[Call]:
    """Return a rank's calls without equal ones after this one: DDP starts several broadcasts before it waits."""
    return [
        one
        for one in history
        if (one.variant, one.group_name) != (call.variant, call.group_name) or one.number <= call.number
    ]


def _or_a_call(behind: list[int], calls: Mapping[int, Call], ahead: Call) -> str:
    """Return the other reason why ranks are not in a loop: they may be in it, at a call that the others leave out."""
    call = calls[behind[0]]
    lines = parting(call, ahead)
    if lines is None:
        return ""
    in_helper, in_one_loop = lines[0] != call.stack[-1], lines[1] == ahead.stack[-1] and in_its_loops(*lines)
    if not (in_helper or in_one_loop or hidden([call])):
        return ""
    return f"{make_inside(call, lines[0], f'perhaps only {who(behind)} made')} If every rank does, "


def _made_at_the_line_of(call: Call, histories: Histories) -> dict[int, int]:
    """Return how often each rank called the same op as `call` at its line."""
    return {rank: len(calls) for rank, calls in _at_the_line_of(call, histories).items()}


def _at_the_line_of(call: Call, histories: Mapping[int, Sequence[Call]]) -> dict[int, list[Call]]:
    """Return each rank's calls of the same op as `call` at its line."""
    here = call.variant, call.line
    return {rank: [one for one in calls if (one.variant, one.line) == here] for rank, calls in histories.items()}


def _loop_advice(behind: list[int], ahead: list[int]) -> str:
    if len(ahead) < len(behind):
        return f"look for a longer loop on {who(ahead)}, or an `if` with a call that the other ranks do not make."
    longer = f" or a longer one on {who(ahead)}" if len(ahead) == len(behind) else ""  # either can be meant
    statements = "an `if`, a `continue`, a `return` or an `except`"
    return f"look for a shorter loop on {who(behind)}{longer}, or {statements} in the loop."


def _in_different_groups(members: Members) -> Difference | None:
    """Return the groups in which ranks called at the line of the call, if members of its group went to other groups
    there, equally often."""
    call, here = members.call, _at_the_line_of(members.call, dict(enumerate(members.calls)))
    if any(len(here[rank]) != len(here[call.ranks[0]]) for rank in call.ranks):
        return None
    last = {rank: theirs[-1].ranks for rank, theirs in here.items() if theirs}
    if len({last[rank] for rank in call.ranks}) == 1:
        return None
    shown = "; ".join(f"{who(ranks)} in {group}" for ranks, group in grouped({r: str([*last[r]]) for r in last}))
    return Difference(
        line=f"ranks called at that line in groups that overlap: {shown}",
        advice="a call meets only calls in the same group: let all ranks use the same groups at that line, in the same "
        "order.",
    )


_FINDERS: dict[Kind, tuple[Callable[[Members], Difference | None], ...]] = {
    "mismatch": (_first_difference, _left_out, _left_a_loop),
    "absent": (_first_difference, _in_different_groups, _behind),
    "deadlock": (_first_difference, _in_different_groups, _left_out, _behind),
}
"""For each kind of fault, the functions that look for a difference. The first one that finds it counts."""
