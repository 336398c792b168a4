"""Compare a solution's behaviour with the reference's, and report each difference and its probable cause."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from difflib import SequenceMatcher

from .failures import NO_FUNCTION, asks_for_a_function, failure
from .findings import Finding, Row
from .forms import recognise_form
from .observe import Trial
from .patterns import ranks_differ, recognise_not_combined, recognise_order, recognise_pattern
from .plain import Array, Cause, Gap, Opaque, Path, Plain, at, difference
from .texts import first_character, first_element, kind, pair, short


def findings(trial: Trial) -> list[Finding]:
    """Return what is wrong with a trial; empty if nothing is."""
    return differences(trial) or broken_rules(trial)


def differences(trial: Trial) -> list[Finding]:
    """Return how the results differ from the reference's, or why there are none."""
    if trial.yours.error is not None:
        return [failure(trial, trial.yours.error)]
    return [*_warnings(trial)] or [*_values(trial), *_inputs(trial)]


def broken_rules(trial: Trial) -> list[Finding]:
    """Return which rules a trial with right results breaks."""
    return [found for rule in trial.exercise.rules for found in rule(trial)]


def _warnings(trial: Trial) -> Iterator[Finding]:
    """Yield the operations that nobody waited for. Results and memory then depend on when they ended."""
    if trial.expected.warnings:
        return
    for warning in trial.yours.warnings:
        observed, _, action = warning.partition(" Next: ")
        yield Finding(observed=observed, action=action[0].upper() + action[1:])


# -- results -----------------------------------------------------------------------------------------------------


def _values(trial: Trial) -> Iterator[Finding]:
    expected, yours = trial.expected.values, trial.yours.values
    if all(value is None for value in expected):  # the result is in the arguments
        return
    gap = Gap(expected=expected, given=yours, before=trial.yours.before, tolerance=trial.exercise.tolerance)
    if not gap.ranks:
        return
    if (found := _handed_on(trial, gap)) is not None:
        yield found
        return
    inner = _innermost(gap)
    cause = _cause(trial, gap, inner)
    observed = _sentence(trial, inner)
    more = "" if cause.likely else _more(gap, inner)
    yield Finding(
        observed=observed + more, likely=cause.likely, action=cause.action, table=_table(trial, inner, observed)
    )


def _handed_on(trial: Trial, gap: Gap) -> Finding | None:
    """Return a finding if the exercise's `trial` handed on what a rank returned, because it is of the wrong type.

    A trial names what it looked at in a dict, or calls the function that a learner was asked for.
    """
    returns = inspect.signature(trial.exercise.stub).return_annotation
    asked = getattr(returns, "__name__", "") if isinstance(returns, type) else str(returns)
    ranks = [rank for rank in gap.ranks if not isinstance(gap.given[rank], dict)]
    uncalled = asks_for_a_function(trial) and bool(ranks) and isinstance(gap.given[ranks[0]], Opaque | None)
    named = isinstance(gap.expected[0], dict) and not asked.startswith("dict")
    if trial.exercise.trial is None or not ranks or not (named or uncalled):
        return None
    wanted, given = "a function" if uncalled else f"a result of type {asked}", gap.given[ranks[0]]
    cause = (NO_FUNCTION if uncalled else recognise_form(gap)) if given is None else None
    return Finding(
        observed=f"{trial.who(ranks[:1])} returned {kind(given)}, expected {wanted}.",
        likely=cause.likely if cause else "",
        action=cause.action if cause else f"Return {wanted}.",
    )


def _innermost(gap: Gap) -> Gap:
    """Return the same gap at the first named part that differs on any rank; in a list of steps, at the first step."""
    paths = [difference(expected, given, gap.tolerance) or () for expected, given in gap.pairs]
    names = list(gap.expected[0]) if isinstance(gap.expected[0], dict) else []

    def order(path: Path) -> tuple[int, int]:
        part = names.index(path[0]) if path and path[0] in names else 0
        return part, next((step for step in path if isinstance(step, int)), 0)

    path = min(paths, key=order)
    expected, given = ([at(value, path) for value in values] for values in (gap.expected, gap.given))
    return Gap(expected=tuple(expected), given=tuple(given), before=gap.before, tolerance=gap.tolerance, path=path)


def _cause(trial: Trial, gap: Gap, inner: Gap) -> Cause:
    # If a named part is wrong in the same way on all ranks, or is a count or a word, the cause is not in the
    # distribution over ranks, whatever the other parts are.
    named = isinstance(gap.expected[0], dict)
    whole = inner.path and not (named and (inner.alike or inner.decided))
    form = recognise_form(inner)
    found = form and (recognise_order(gap, inner.path) or form)
    gaps = [gap, inner] if whole else [inner]
    for recognise in (recognise_pattern, recognise_not_combined):
        found = found or next((cause for one in gaps if (cause := recognise(one)) is not None), None)
    return found or _next_step(trial, gap, inner)


def _next_step(trial: Trial, gap: Gap, inner: Gap) -> Cause:
    """Return the cause, or where to look, if the numbers follow no known pattern."""
    if trial.world_size > 1 and any(trial.expected.calls) and not any(trial.yours.calls):
        return Cause(
            likely="No rank called a collective, a send or a recv, so no rank received data from a different rank.",
            action="Which ranks' values belong in the result of one rank? Find the call that moves them there.",
        )
    if not inner.decided and (found := ranks_differ(inner)):
        return found
    return Cause(likely="", action=_where_to_look(trial, gap, inner))


def _where_to_look(trial: Trial, gap: Gap, inner: Gap) -> str:
    whose = f" on {trial.who(inner.ranks[:1])}" if trial.case.world_size else ""
    if count := _right_before(gap, inner.path):
        items = f"The {count} items before it are" if count > 1 else "The item before it is"
        where = " on every rank" if trial.world_size > 1 else ""
        return f"{items} right{where}. Which line makes this one different? It may run before them, too."
    if inner.decided:
        return f"Go through your code with this case in mind{whose}, and find the line that decides this value."
    if arguments := _arguments(trial, inner.ranks[0]):
        return f"Work it out by hand for {arguments}, and print each step of yours{whose}. Where do they first differ?"
    if _calls_of_its_own(trial) and trial.yours.call_forms == trial.expected.call_forms:
        around = f"Look at what is computed around them. Print what goes into each{whose}, and what comes out."
        return f"Your calls match the reference's in kind, group, size and order. {around}"
    return f"Find the line that first sets this value{whose}, and print it after each line that changes it."


def _calls_of_its_own(trial: Trial) -> bool:
    """Return whether the solution made a call, and not only the exercise's `trial`."""
    file = getattr(getattr(trial.exercise.trial, "__code__", None), "co_filename", "")
    return any(call.line.filename != file for calls in trial.yours.calls for call in calls)


def _arguments(trial: Trial, rank: int) -> str:
    """Return what the solution was called with; empty if it is long, or not only numbers and words."""
    values, names = trial.yours.before[rank], list(inspect.signature(trial.exercise.stub).parameters)
    if trial.exercise.trial is not None or not all(isinstance(v, int | float | str | tuple | Array) for v in values):
        return ""
    text = ", ".join(f"`{name} = {short(value)}`" for name, value in zip(names, values, strict=False))
    return text if len(text) < 200 and "…" not in text else ""


def _right_before(gap: Gap, path: Path) -> int:
    """Return how many items come before the difference in its list; 0 unless all of them are right on every rank.

    A pair, or items of different kinds, are no sequence in time.
    """
    for depth in reversed(range(len(path))):
        lists = [at(value, path[:depth]) for value in (*gap.expected, *gap.given)]
        if path[depth] and all(isinstance(one, tuple) and _is_sequence(one) for one in lists):
            heads = [one[: path[depth]] for one in lists]
            right = all(map(gap.same, heads[: gap.world_size], heads[gap.world_size :]))
            return path[depth] if right else 0
    return 0


def _is_sequence(items: tuple[Plain, ...]) -> bool:
    return len(items) > 2 and len(set(map(kind, items))) == 1


def _sentence(trial: Trial, gap: Gap) -> str:
    rank = gap.ranks[0]
    expected, given = gap.expected[rank], gap.given[rank]
    if recognise_form(gap) is not None:
        words = kind(given), kind(expected)
        words = words if words[0] != words[1] else (short(given), short(expected))
    else:
        words = pair(expected, given, gap.tolerance)[::-1]
    place = _place(trial, gap.path)
    element = first_element(expected, given, gap.tolerance)
    if element is not None and ("…" in "".join(words) or words[0].startswith("at [")):  # too long to be shown whole
        index, wanted, got = element
        place, words = f"{place}{index}", pair(wanted, got, gap.tolerance)[::-1]
    verb = "returned" if trial.exercise.trial is None or given is None else "has"
    what = f"{trial.who([rank])} {verb}" if place == "result" else f"{place} of {trial.who([rank])} is"
    return f"{what} {words[0]}, expected {words[1]}."


def _place(trial: Trial, path: Path) -> str:
    """Return a path in words: `result[1]`, or `losses[1]` if the exercise's trial gave a name to what it looked at."""
    name, *keys = path if trial.exercise.trial and path and isinstance(path[0], str) else ("result", *path)
    return _named(name) + "".join(f"[{key!r}]" for key in keys)


def _named(name: object) -> str:
    return str(name) if str(name).isidentifier() else repr(name)


def _more(gap: Gap, inner: Gap) -> str:
    """Return, as sentences: whether only one side's ranks differ, by how much a whole number is wrong, where similar
    texts differ, and which other named parts are right."""
    ((expected, given), *others), whole = inner.pairs, gap.expected[0]
    facts = ""
    alike = [gap.agreed(values) for values in (inner.given, inner.expected)]
    if alike == [True, False]:
        facts = " Every rank has the same, and the reference's ranks differ."
    if alike == [False, True] and None not in inner.given:
        facts = " The ranks differ, and all should have the same."
    if not others and type(expected) is type(given) is int and 100 <= max(expected, given) < 1e15:
        facts += f" That is {abs(given - expected):,} too {'much' if given > expected else 'little'}."
    if type(expected) is type(given) is str and SequenceMatcher(None, expected, given).ratio() > 0.9:
        facts += f" The texts first differ at character {first_character(expected, given) + 1}."
    if isinstance(whole, dict) and all(isinstance(one, dict) for one in gap.given):
        pairs = list(zip(gap.expected, gap.given, strict=True))
        right = [name for name in whole if all(gap.same(e.get(name), g.get(name)) for e, g in pairs)]
        words = map(str if all(str(name).isidentifier() for name in right) else repr, right)
        facts += f" Right: {', '.join(words)}." if right else ""
    return facts


def _table(trial: Trial, gap: Gap, observed: str = "") -> tuple[Row, ...]:
    """Return a row for each rank. Without ranks, there is one row, if it shows more than `observed`."""
    texts = [pair(expected, given, gap.tolerance) for expected, given in zip(gap.expected, gap.given, strict=True)]
    if trial.case.world_size:
        return tuple(Row(rank=rank, expected=expected, yours=yours) for rank, (expected, yours) in enumerate(texts))
    ((expected, yours),) = texts
    return () if expected in observed and yours in observed else (Row(rank=None, expected=expected, yours=yours),)


# -- arguments ---------------------------------------------------------------------------------------------------


def _inputs(trial: Trial) -> Iterator[Finding]:
    if not trial.exercise.inputs_matter:
        return
    for position in range(len(trial.expected.after[0])):
        before, expected, yours = (
            tuple(arguments[position] for arguments in by_rank)
            for by_rank in (trial.expected.before, trial.expected.after, trial.yours.after)
        )
        gap = Gap(expected=expected, given=yours, before=trial.yours.before, tolerance=trial.exercise.tolerance)
        if gap.ranks:
            untouched = all(gap.same(before[rank], yours[rank]) for rank in gap.ranks)
            kept = all(gap.same(before[rank], expected[rank]) for rank in gap.ranks)
            elsewhere = not all(map(gap.same, before, expected))
            changed = _changed_here if elsewhere else _changed
            cause = changed if kept else _not_changed if untouched else _cause(trial, gap, _innermost(gap))
            name = _argument(trial, position)
            what = "changed in place" if kept else "left as it was" if untouched else "left with other values"
            where = "on" if trial.case.world_size else "by"
            yield Finding(
                observed=f"{name} was {what} {where} {trial.who(gap.ranks)}.",
                likely=cause.likely,
                action=cause.action,
                table=_table(trial, gap),
            )


_changed = Cause(
    likely="An operation wrote into the argument: `+=`, a method whose name ends in `_`, an assignment to `x[...]`, "
    "a list's `pop` or `sort`, or a collective or `recv`, which writes into its tensor.",
    action="Work on a copy: `x = x.clone()`, or `list(x)` of a list.",
)
_changed_here = Cause(
    likely="The result belongs in the argument on other ranks only. Here an operation wrote into it: a collective or a "
    "`recv` writes into its tensor.",
    action="Which ranks should receive? Let nothing write into the argument on the others.",
)
_not_changed = Cause(
    likely="The result belongs in the argument, which still has its first values: nothing wrote into it (`x = ...` "
    "does not), or nothing waited for the operation that writes.",
    action="Write into it, with `x.copy_(result)` or a collective, and wait for each asynchronous operation.",
)


def _argument(trial: Trial, position: int) -> str:
    own = list(inspect.signature(trial.exercise.stub).parameters)
    through = trial.exercise.trial  # which may make the solution's arguments from its own
    given = own if through is None else list(inspect.signature(through).parameters)[1:]
    name = given[position] if position < len(given) else None
    return f"the argument {name}" if name in own else "an argument"
