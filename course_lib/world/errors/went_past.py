"""Lines that a rank went past without the call that other ranks make there."""

import ast
import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from ...errors import who
from ...meter import SourceLine
from ..collectives.call import Call
from ..collectives.fault import RankReport
from .rank_error import hidden, written


def parting(one: Call, other: Call) -> tuple[SourceLine, SourceLine] | None:
    """Return the two lines at which the ways to two calls part: different lines of one function; None if they part
    elsewhere."""
    lines = next((pair for pair in zip(one.stack, other.stack, strict=False) if pair[0] != pair[1]), None)
    if lines is None or _function(lines[0]) != _function(lines[1]):
        return None
    if one.line == other.line and not all("(" in line.source for line in lines):
        return None  # Python ends a generator, which makes the call, at any line, such as a `break`
    return lines


def way_to(call: Call, others: Iterable[Call]) -> SourceLine:
    """Return the call's line, with the line at which its way parts from the ways to the `others` as its caller."""
    parts = [pair[0] for other in others if (pair := parting(call, other)) is not None]
    first = min(parts, key=call.stack.index, default=None)
    return call.line if first is None or first == call.stack[-1] else call.line._replace(caller=first)


def _function(line: SourceLine) -> tuple[str, str]:
    return line.filename, line.function


def left_out(raiser: RankReport, reports: Sequence[RankReport], calls: Sequence[Sequence[Call]]) -> str:
    """Return a sentence on the line where ranks wait, and that the one that raised went past; empty if none is known.

    For a send or a recv, ranks often call from lines of their own.
    """
    now_at = raiser.raised.source_line if raiser.raised is not None else None
    now_at = now_at and (now_at.caller or now_at)
    waiting = {report.rank: report.call for report in reports if report.call is not None}
    for call in waiting.values():
        line = next((one for one in call.stack if now_at is not None and _function(one) == _function(now_at)), None)
        message = call.op in ("send", "recv") and line == call.line
        if now_at is not None and line is not None and not message and went_past(line, now_at, calls[raiser.rank]):
            there = [rank for rank, other in waiting.items() if line in other.stack]
            waits = f"{who(there)} wait{'s' if len(there) == 1 else ''}"
            return f"Rank {raiser.rank} made no call at {line}, where {waits}: is that meant?"
    return ""


def without_a_call(meeting: Mapping[int, Call], calls: Sequence[Sequence[Call]]) -> str:
    """Return advice if ranks came to their call of `meeting` without one that other ranks make in it; or empty."""
    found: list[tuple[bool, str]] = []
    for call in meeting.values():
        without: dict[SourceLine, list[int]] = {}
        came_round = False
        for rank, other in sorted(meeting.items()):
            lines = parting(call, other)
            if lines is not None and went_past(*lines, calls[rank], other.issued):
                without.setdefault(lines[0], []).append(rank)
                came_round = came_round or lines[0].line >= lines[1].line
            elif _is_inside(call, other.line, calls[rank]):
                without.setdefault(call.stack[-1], []).append(rank)
        for line, ranks in without.items():
            advice = make_inside(call, line, f"{who(ranks)} went on without")
            other = meeting[ranks[0]]
            lines = parting(call, other)
            if call.inside == "backward" and lines is not None:
                advice += f" If {who(ranks)} accumulated gradients there (`no_sync`), {_order(other, lines[1])}."
            found.append((came_round, advice))
    return max(found, key=lambda one: one[0], default=(False, ""))[1]  # who came round is in a later step


def make_inside(call: Call, line: SourceLine, why: str) -> str:
    """Return the advice to make `call`, which was made inside `line`, on every rank or on none."""
    if line != call.stack[-1]:
        return f"{_order(call, line)}: {why} any."
    inside = hidden([call])  # the rank may have called that function, which made no collective
    return f"{_order(call, line)}: {why} {'a collective there' if inside else 'it'}.{inside}"


def _order(call: Call, line: SourceLine) -> str:
    if line != call.stack[-1]:  # it calls a function of the program's
        make = "make the collectives inside"
    else:
        make = f"{'call' if hidden([call]) else 'make the'} {written(call)} at"
    return f"{make} {line} on every rank or on none"


def _is_inside(call: Call, line: SourceLine, theirs: Sequence[Call]) -> bool:
    """Return whether `call` was made in a hook inside `line`, and the rank that is at `line` made no such call.

    `theirs` are all calls of that rank.
    """
    return line._replace(caller=None) == call.hooked and all(one.line != call.line for one in theirs)


def went_past(line: SourceLine, now_at: SourceLine, calls: Sequence[Call], since: float = inf) -> bool:
    """Return whether a rank went past `line` without a call there. It has made `calls`, and is `now_at` a line, since
    the moment `since`.

    The two branches of an `if` are written one after the other, and a rank takes one of them. So lines of two branches
    prove nothing. A rank that is before `line` went past it if it is there for the second time.
    """
    if _function(line) != _function(now_at) or any(line in call.stack for call in calls):
        return False
    tree = _tree(line.filename)
    if line.line >= now_at.line and not _came_round(tree, line, now_at, calls, since):
        return False
    for node in ast.walk(tree):
        both = [_spans(node, line), _spans(node, now_at)] if isinstance(node, ast.stmt) else [False]
        if all(both) and isinstance(node, ast.With | ast.For) and line.line < node.body[0].lineno:
            return False  # the call may come at the end, as that of `model.join()` does, or of a generator's
        if all(both) and not hasattr(node, "body"):
            return False  # it is one statement, of several lines
        if any(both) and not all(both) and isinstance(node, ast.FunctionDef):
            return False  # two functions have the same name
    return bool(tree.body) and not any(_parts(branches, *sorted((line, now_at))) for branches in _branches(tree))


def _came_round(tree: ast.Module, line: SourceLine, now_at: SourceLine, calls: Sequence[Call], since: float) -> bool:
    """Return whether a rank is `now_at` a line for the second time, and `line` comes between the two.

    That is certain if its call before was further down, or if each visit makes one call there: it calls directly. And
    it does so in no loop that ends before `line`, unless it made the call before after that loop.
    """
    here = [call for call in calls if now_at in call.stack]
    direct = all(call.stack[-1] == now_at and call.variant in now_at.source for call in here)
    before = [one for call in calls if call.issued < since for one in call.stack]
    last = next((one for one in reversed(before) if _function(one) == _function(now_at)), now_at)
    if now_at.line < last.line < line.line and in_its_loops(line, last, tree):
        return True
    return ((len(here) > 1 and direct) or last.line > now_at.line) and in_its_loops(line, now_at, tree)


def in_its_loops(line: SourceLine, now_at: SourceLine, tree: ast.Module | None = None) -> bool:
    """Return whether `line` is in every loop that `now_at`, a line of the same function, is in."""
    nodes = ast.walk(_tree(line.filename) if tree is None else tree)
    return all(_spans(node, line) for node in nodes if isinstance(node, _LOOPS) and _spans(node, now_at))


def share_a_loop(one: SourceLine, other: SourceLine) -> bool:
    """Return whether a loop contains both lines of a function."""
    nodes = ast.walk(_tree(one.filename))
    return any(_spans(node, one) and _spans(node, other) for node in nodes if isinstance(node, _LOOPS))


_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _tree(filename: str) -> ast.Module:
    """Return the file's statements; none if its source is unknown or not Python."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return ast.Module([], [])


def _branches(tree: ast.Module) -> Iterator[list[list[ast.stmt]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            yield [node.body, node.orelse]
        elif isinstance(node, ast.Match):
            yield [case.body for case in node.cases]


def _parts(branches: list[list[ast.stmt]], one: SourceLine, other: SourceLine) -> bool:
    """Return whether at most one of two lines, in their order, can run, because of these branches."""
    own = next((branch for branch in branches if _holds(branch, one)), None)
    if own is None or _holds(own, other):
        return False
    leaves = isinstance(own[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
    return leaves or any(_holds(branch, other) for branch in branches)


def _holds(branch: Sequence[ast.stmt], line: SourceLine) -> bool:
    return any(_spans(statement, line) for statement in branch)


def _spans(node: ast.stmt | ast.expr, line: SourceLine) -> bool:
    return node.lineno <= line.line <= (node.end_lineno or node.lineno)
