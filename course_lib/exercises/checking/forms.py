"""Recognise results of a wrong form: no result, the wrong type, the wrong shape or dtype."""

from __future__ import annotations

import math

from .plain import HUGE, Array, Cause, Gap, Opaque, Plain, Recogniser, close, leaves, numbers
from .texts import kind


def recognise_form(gap: Gap) -> Cause | None:
    """Return the cause if the form is wrong."""
    expected, given = next(gap.pairs)
    if type(expected) in (int, float) and given == HUGE:  # a wrong number of the right form
        return None
    return next((cause for recogniser in _RECOGNISERS if (cause := recogniser(gap)) is not None), None)


def _nothing(gap: Gap) -> Cause | None:
    if gap.path or any(given is not None for _, given in gap.pairs):
        return None
    return Cause(
        likely="The function ended without a `return`, or returned None.",
        action="Return the result: did you forget `return`?",
    )


def _opaque(gap: Gap) -> Cause | None:
    expected, given = next(gap.pairs)
    if not isinstance(given, Opaque) or given == HUGE:
        return None
    if given.type_name.endswith("Work"):
        return Cause(
            likely="An asynchronous operation hands back a handle to wait for; its result is in the tensor.",
            action="Call `.wait()` on the handle, then return the tensor.",
        )
    if given.type_name in ("function", "method", "builtin_function_or_method"):
        return Cause(likely="A function was returned, and not called.", action="Call it: add the parentheses.")
    likely = f"Its type is {given.type_name}, which is not what was asked for."
    return Cause(likely=likely, action=f"Return {kind(expected)}.")


def _kind(gap: Gap) -> Cause | None:
    expected, given = next(gap.pairs)
    if type(expected) is type(given) or {type(expected), type(given)} <= {int, float}:
        return None
    if isinstance(given, tuple) and len(given) == 1 and gap.same(expected, given[0]):
        return Cause(
            likely="The right result is the only item of a list or a tuple.",
            action="Return the item itself, or all items joined, if there are more on other ranks.",
        )
    items = expected if isinstance(expected, tuple) else ()
    if (place := next((i for i, item in enumerate(items) if gap.same(item, given)), None)) is not None:
        return Cause(
            likely=f"This is item {place} of the result, which is a list or tuple of {len(items)}.",
            action="Return all of it.",
        )
    if given is None and any("grad" in str(key) for key in gap.path):
        return Cause(
            likely="There is no gradient where one was asked for.",
            action="Which line should store it, and does it run here? Or which one sets it to None, or stops backward, "
            "such as `detach`, `no_grad` or a plain collective into a new tensor?",
        )
    if given is None:
        return Cause(
            likely=f"There is None where {kind(expected)} was asked for.",
            action="Find the line that should make this result. Does it run, and is its result returned or stored?",
        )
    if expected is None and gap.path:
        return Cause(likely=f"There is {kind(given)} where nothing should be left.", action="Set it to None.")
    one = isinstance(given, Array) and len(given.numbers) == 1
    in_number = "Take the number out of the tensor with `.item()`." if one else None
    in_list = "Make a list of it with `.tolist()` or `list(...)`."
    in_tensor = "Make one tensor of it, with `torch.tensor`, `torch.cat` or `torch.stack`."
    steps = {int: in_number, float: in_number, tuple: in_list, Array: in_tensor}
    return Cause(
        likely=f"The result is {kind(given)}, and {kind(expected)} was asked for.",
        action=steps.get(type(expected)) or f"Return {kind(expected)}.",
    )


def _length(gap: Gap) -> Cause | None:
    expected, given = next(gap.pairs)
    if isinstance(expected, dict) and expected.keys() != given.keys():
        wrong = {"too many": given.keys() - expected.keys(), "missing": expected.keys() - given.keys()}
        found = [f"{', '.join(sorted(map(repr, keys)))} {what}" for what, keys in wrong.items() if keys]
        likely = f"The parts are not those asked for: {'; '.join(found)}."
        return Cause(likely=likely, action="Compare with the task: which parts should there be?")
    if isinstance(expected, tuple) and len(expected) != len(given):
        return _other_count(expected, given, gap)
    return None


def _other_count(expected: tuple[Plain, ...], given: tuple[Plain, ...], gap: Gap) -> Cause:
    """Return which items of a list are missing, or too many."""
    more, action = "", "Compare with the table: which are missing, and which too many?"
    flat = [tuple(leaf for leaf in leaves(value) if not isinstance(leaf, tuple)) for value in (expected, given)]
    if not given:
        action = "Which line should make the first of them? Does it run, and what is there when it runs?"
    elif gap.same(expected[: len(given)], given):
        more, action = "Yours are right, and end too early.", "Find what should make the rest."
    elif gap.same(*flat):
        more, action = "The values are right, and grouped differently.", "Group them as the table shows."
    count, wanted = len(given), len(expected)
    likely = f"The result has {count} item{'s' * (count != 1)}, and {wanted} were asked for. {more}"
    return Cause(likely=likely.strip(), action=action)


def _shape(gap: Gap) -> Cause | None:
    expected, given = next(gap.pairs)
    if not isinstance(expected, Array) or expected.shape == given.shape:
        return None
    shapes = f"Its shape is {list(given.shape)}, and should be {list(expected.shape)}"
    whole, part = expected.numbers, given.numbers
    if _transposed(expected, given, gap.tolerance):
        return Cause(likely=f"{shapes}: rows and columns are swapped.", action="Transpose it: `.t()`.")
    if close(whole, part, gap.tolerance):
        sizes = ", ".join(map(str, expected.shape)) or "()"
        how = "`.flatten()`" if len(expected.shape) == 1 else f"here, `.view({sizes})`"
        return Cause(likely=f"{shapes}; the numbers are right.", action=f"Reshape it: {how}.")
    alike = (expected.dtype == "bool") == (given.dtype == "bool")  # indices are no part of a mask
    if alike and len(part) > len(whole) > 0 and _holds(part, whole, gap.tolerance):
        return Cause(
            likely=f"{shapes}: it contains the right numbers, and {len(part) - len(whole)} more.",
            action="Is the rest padding, or does it belong to a different rank? Remove it.",
        )
    if alike and len(whole) > len(part) > 0 and _holds(whole, part, gap.tolerance):
        return Cause(
            likely=f"{shapes}: {len(whole) - len(part)} of the expected numbers are missing.",
            action="Look for what leaves them out: a slice that ends too early, a remainder that the world size does "
            "not divide, or the parts of different ranks.",
        )
    return Cause(likely=f"{shapes}.", action="Print the shape after each line, and find where it goes wrong.")


def _dtype(gap: Gap) -> Cause | None:
    expected, given = next(gap.pairs)
    if not isinstance(expected, Array) or expected.dtype == given.dtype:
        return None
    return Cause(
        likely=f"The dtype is {given.dtype}, and should be {expected.dtype}.",
        action="Which line makes it? New tensors get the input's dtype with `torch.empty_like(x)` or `dtype=x.dtype`. "
        "`/`, `.float()` and a sum with a different dtype can change it.",
    )


def _not_a_number(gap: Gap) -> Cause | None:
    if not any(_has_nan(given) and not _has_nan(expected) for expected, given in gap.pairs):
        return None
    if any(_has_nan(leaf) for arguments in gap.before for leaf in leaves(arguments)):
        return Cause(
            likely="NaN marks what must not be read: elements of the input, or an input that a rank does not have yet.",
            action="Leave those elements out, or receive the input first. Then compute.",
        )
    return Cause(
        likely="NaN results from 0/0, inf/inf, inf - inf or the root of a negative number, or from memory that was "
        "never written (`torch.empty`), which a check fills with NaN.",
        action="Print the tensor after each line, and find where NaN first appears.",
    )


_RECOGNISERS: tuple[Recogniser, ...] = (
    _nothing,
    _opaque,
    _kind,
    _length,
    _shape,
    _dtype,
    _not_a_number,
)


def _transposed(expected: Array, given: Array, tolerance: float) -> bool:
    """Return whether `given` is `expected` with its rows and columns swapped."""
    if len(expected.shape) != 2 or given.shape != expected.shape[::-1]:
        return False
    rows, columns = expected.shape
    swapped = tuple(expected.numbers[row * columns + column] for column in range(columns) for row in range(rows))
    return close(swapped, given.numbers, tolerance)


def _holds(whole: tuple[float, ...], part: tuple[float, ...], tolerance: float) -> bool:
    """Return whether `part` is one of the equal parts of that size in `whole`."""
    starts = range(0, len(whole) - len(part) + 1, len(part))
    return any(close(part, whole[start : start + len(part)], tolerance) for start in starts)


def _has_nan(value: Plain) -> bool:
    return any(math.isnan(number) for leaf in leaves(value) for number in numbers(leaf) or ())
