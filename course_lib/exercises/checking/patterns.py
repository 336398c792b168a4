"""Recognise results of the right form with wrong numbers: scaled, swapped between ranks, not combined, ..."""

from __future__ import annotations

import ctypes
import itertools
import math
from fractions import Fraction

from .plain import Cause, Gap, Path, Plain, Recogniser, at, close, leaves, numbers


def recognise_pattern(gap: Gap) -> Cause | None:
    """Return the cause if the numbers follow a known pattern."""
    if gap.decided:
        return None
    return next((cause for recogniser in _RECOGNISERS if (cause := recogniser(gap)) is not None), None)


def recognise_order(gap: Gap, path: Path) -> Cause | None:
    """Return the cause if a list on the way to `path` has the right items in a different order."""
    for depth in range(len(path)):
        lists = [(at(expected, path[:depth]), at(given, path[:depth])) for expected, given in gap.pairs]
        if all(_same_items(expected, given, gap) for expected, given in lists):
            return Cause(likely="The right items, in a different order.", action="Look at where each item is put.")
    return None


def _same_items(expected: Plain, given: Plain, gap: Gap) -> bool:
    if not (isinstance(expected, tuple) and isinstance(given, tuple) and len(expected) == len(given)):
        return False
    left = list(given)
    for item in expected:
        place = next((place for place, one in enumerate(left) if gap.same(item, one)), None)
        if place is None:
            return False
        del left[place]
    return True


def _scaled(gap: Gap) -> Cause | None:
    ratio = _ratio(gap)
    if ratio is None:
        return None
    if ratio == -1:
        return Cause(likely="The sign is reversed: exactly -1 times the expected value.", action="Look for the sign.")
    size = gap.world_size
    values = {(numbers(expected), numbers(given)) for expected, given in gap.pairs}
    first, *more = [number for number in numbers(gap.expected[gap.ranks[0]]) or () if number] or [0]
    small = first == round(first) and abs(first) < 100
    if len(gap.ranks) == 1 < size and not more and small:
        return None  # as below: a rank's number times the world size is no sum over ranks
    if size > 1 and ratio in (size, Fraction(1, size)):
        return _by_the_world_size(size, ratio)
    terms = abs(ratio.numerator), ratio.denominator
    if len(values) == 1 and not more and (small or min(terms) > 1 or max(terms) > 8):
        return None  # two numbers always have some ratio, and two small whole numbers often a simple one
    if min(terms) > 1 and (max(terms) > 5 or abs(terms[0] - terms[1]) > 1):
        return None  # some fraction is near every ratio; one of N and N ± 1 may come from the number of ranks
    where = "" if size == 1 else ", everywhere" if len(gap.ranks) == size else ", on each rank that is wrong"
    return Cause(likely=f"Exactly {ratio} times the expected value{where}.", action=f"Look for a factor of {ratio}.")


def _by_the_world_size(size: int, ratio: Fraction) -> Cause:
    if ratio == size:
        return Cause(
            likely=f"Exactly {size} times the expected value, and there are {size} ranks.",
            action="Look at each sum over the ranks: is it asked for, is it taken once, and should it be a mean?",
        )
    return Cause(
        likely=f"Exactly 1/{size} of the expected value, and there are {size} ranks.",
        action="Look for a division by the world size, or a mean over the ranks, that is not needed.",
    )


def _ratio(gap: Gap) -> Fraction | None:
    """Return the one simple ratio of given to expected in all numbers that differ, or None."""
    found: Fraction | None = None
    for expected, given in gap.pairs:
        expected_numbers, given_numbers = numbers(expected), numbers(given)
        if not expected_numbers or not given_numbers or len(expected_numbers) != len(given_numbers):
            return None
        largest = max(range(len(expected_numbers)), key=lambda i: abs(expected_numbers[i]))
        top, bottom = given_numbers[largest], expected_numbers[largest]
        if not math.isfinite(bottom) or bottom == 0 or not math.isfinite(top / bottom):
            return None
        ratio = found or Fraction(top / bottom).limit_denominator(64)
        if ratio in (0, 1) or abs(ratio.numerator) > 64:
            return None
        scaled = tuple(number * float(ratio) for number in expected_numbers)
        if not close(scaled, given_numbers, min(gap.tolerance, 1e-5)):  # a cause says "exactly"
            return None
        found = ratio
    return found


def _permuted(gap: Gap) -> Cause | None:
    size = gap.world_size
    if gap.agreed(gap.expected):
        return None
    for order in itertools.permutations(range(size)) if size <= 4 else ():
        if all(gap.same(gap.expected[order[rank]], gap.given[rank]) for rank in range(size)):
            moved = [f"rank {rank} holds what rank {order[rank]} should" for rank in gap.ranks]
            return Cause(likely=f"{', '.join(moved)}.", action="Look at how a rank finds its own part.")
    return None


def _one_for_all(gap: Gap) -> Cause | None:
    if gap.world_size < 2 or not gap.agreed(gap.given) or gap.agreed(gap.expected):
        return None
    if _only_zeros(gap):  # they say nothing of a rank
        return None
    source = [rank for rank in range(gap.world_size) if gap.same(gap.expected[rank], gap.given[rank])]
    whose = f"what only rank {source[0]} should hold" if source else "the same"
    return Cause(
        likely=f"Every rank holds {whose}, and each should have a result of its own.",
        action="Use the rank's number where you choose what a rank works on or keeps. Or does a collective overwrite "
        "the rank's own value?",
    )


def _only_zeros(gap: Gap) -> bool:
    """Return whether every tensor and number that is wrong consists of zeros."""
    parts = [part for expected, given in gap.pairs for part in zip(leaves(expected), leaves(given), strict=False)]
    wrong = [
        given for expected, given in parts if not isinstance(given, tuple | dict) and not gap.same(expected, given)
    ]
    return bool(wrong) and not any(any(numbers(given) or (True,)) for given in wrong)


def recognise_not_combined(gap: Gap) -> Cause | None:
    """Return the cause if one rank has the result that all ranks should have. A different pattern says more."""
    right = [rank for rank in range(gap.world_size) if rank not in gap.ranks]
    if gap.decided or len(right) != 1 or ranks_differ(gap) is None:
        return None
    return Cause(
        likely=f"Only rank {right[0]} has the right result. All ranks should have it.",
        action="Follow the result to a different rank: which call brings it there, and does that rank wait for it?",
    )


def ranks_differ(gap: Gap) -> Cause | None:
    """Return the cause if all ranks should have the same result, and have not."""
    if gap.world_size < 2 or not gap.agreed(gap.expected) or gap.agreed(gap.given):
        return None
    return Cause(
        likely="",
        action="Print the value on each rank before and after each collective. Where do the ranks begin to differ?",
    )


def _rounded(gap: Gap) -> Cause | None:
    pairs = [(numbers(expected), numbers(given)) for expected, given in gap.pairs]
    for dtype, rounded in {"float32": lambda number: ctypes.c_float(number).value, "float64": float}.items():
        if all(ours is not None and tuple(map(rounded, ours)) == theirs for ours, theirs in pairs):
            return Cause(
                likely=f"The right numbers, rounded to the nearest that {dtype} has.",
                action=f"Look for a tensor in {dtype} on the way, such as one that was made without a dtype.",
            )
    return None


def _reordered(gap: Gap) -> Cause | None:
    for expected, given in gap.pairs:
        ours, theirs = numbers(expected), numbers(given)
        if ours is None or theirs is None or len(ours) < 2 or close(ours, theirs, gap.tolerance):
            return None
        if not close(tuple(sorted(ours)), tuple(sorted(theirs)), gap.tolerance):
            return None
    return Cause(likely="The right numbers, in a different order.", action="Look at where each part is put.")


_RECOGNISERS: tuple[Recogniser, ...] = (
    _scaled,
    _permuted,
    _one_for_all,
    _rounded,
    _reordered,
)
