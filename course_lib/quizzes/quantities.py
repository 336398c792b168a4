"""Numbers as people write them: `7B`, `38.5 GB`, `35.9 GiB`, `2e9`, `7 · 10⁹`, `2^-8`, `1/4`, `87.5 %`, `1,000`.

A quantity is an exact `Fraction` in its base unit: bytes for memory, a share of one for "%", and a plain count for
everything else, where the unit is only a label ("elements", "ranks", or nothing at all). A time is in the unit of the
question. Case does not matter: kB, KB and kb are the same unit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..errors import CourseError

_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_PREFIXES = {"kilo": 3, "mega": 6, "giga": 9, "tera": 12}
_TWINS = {f"{prefix}B": f"{prefix.upper()}iB" for prefix in _SI}  # units that are mistaken for each other
_BYTES = (
    {"B": 1, "byte": 1, "bytes": 1}
    | dict(zip(_TWINS, _SI.values(), strict=True))
    | {unit: 1024**power for power, unit in enumerate(_TWINS.values(), start=1)}
    | {f"{name}byte{end}": 10**power for name, power in _PREFIXES.items() for end in ("", "s")}
)
_COUNTS = _SI | {"B": 10**9, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_TIMES = (  # how many are in a second
    dict.fromkeys(("s", "sec", "second", "seconds"), 1)
    | dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 10**3)
    | dict.fromkeys(("µs", "us", "microsecond", "microseconds"), 10**6)
)

_NUMBER = r"[+-]?(?:\d{1,3}(?:[, ]\d{3})+|\d*)(?:\.\d*)?(?:e[+-]?\d{1,2})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*(?:/\s*({_NUMBER})\s*)?([a-zµ%×][a-zµ/ ]*)?", re.IGNORECASE)
_ALIKE = str.maketrans("−–\u00a0\u202f⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--  -0123456789")  # signs, spaces and digits of typeset text
_RAISED = re.compile(r"\s*(?:\*\*|\^)\s*|(?<=\d)(?=[⁻⁰¹²³⁴-⁹])")
_TIMES_TEN = re.compile(r"\s*[*x·×]\s*10\^(?=-?\d)")
_POWER = re.compile(r"(?<![\d.,])(\d{1,3})\^(-?)(\d{1,2})")
_LONGEST = 40  # characters: keeps every value far inside the range of a float


class Unreadable(CourseError, ValueError):
    """The text is not a quantity of the required kind; the message is for the learner."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The meaning of a learner's text: `value` in the base unit, and the same in words."""

    value: Fraction
    text: str


def read(text: str, unit: str) -> Reading:
    """Read `text` as the answer to a question asked in `unit`. A number without a unit is in that unit.

    Raises `Unreadable` for anything else, including a unit that cannot be converted to the required one.
    """
    text = text.strip()
    number, is_fraction, suffix = _split(text)
    if unit == "%" and not suffix and not is_fraction and 0 < number < 1:
        both = f"{write(number, unit)} or {write(number / 100, unit)}"
        raise Unreadable(f"`{text}` could be a share of one or a percentage. Write {both}.")
    factors = _factors(unit)
    if is_fraction and unit == "%":
        factors[""] = Fraction(1)  # 7/8 is a share; nobody writes it for 0.875 %
    if suffix.casefold() not in factors or suffix.endswith("b/s"):  # 8 Gb/s are 1 GB/s
        asked = f"the answer in {unit}" if unit else "a plain number"
        raise Unreadable(f"`{suffix}` does not fit this question. Give {asked}.")
    size = factors[suffix.casefold()]
    as_typed = "" if size == factor(unit) and not is_fraction else f"{text}, which is "
    return Reading(value=number * size, text=as_typed + write(number * size, unit))


def write(value: Fraction | float, unit: str, *, rounded: bool = False) -> str:
    """Return `value`, in the base unit, as people write it in `unit`: `write(38.5e9, "GB") == "38.5 GB"`.

    It has at most six digits, or three if `rounded`; but all digits before the point.
    """
    number = float(value / factor(unit))
    large = f"{number:,.0f}" if rounded else f"{number:,.1f}".removesuffix(".0")
    digits = large if 1000 <= abs(number) < 1e15 else f"{number:.{3 if rounded else 6}g}"
    label = unit.removesuffix("s") if digits == "1" and len(unit) > 2 else unit
    return f"{digits} {label}".strip()


def factor(unit: str) -> Fraction:
    """Return the number of base units in one `unit`: `factor("KiB") == 1024`."""
    return _factors(unit)[""]


def mistaken_byte_unit(unit: str) -> str | None:
    """Return the unit that `unit` is often confused with: GB for GiB, GiB for GB; None if there is none."""
    return (_TWINS | {binary: decimal for decimal, binary in _TWINS.items()}).get(unit)


def _split(text: str) -> tuple[Fraction, bool, str]:
    """Return the number, whether it was written as a fraction, and the unit after it."""
    if not text:
        raise Unreadable("Type a number first.")
    plain = _without_powers(text)
    match = _QUANTITY.fullmatch(plain)
    try:
        if match is None or len(plain) > _LONGEST:
            raise ValueError
        top, bottom, suffix = match.groups()
        number = _number(top) / (_number(bottom) if bottom is not None else 1)
    except (ValueError, ZeroDivisionError):
        raise Unreadable(
            f"`{text[:_LONGEST]}` cannot be read as a number. Write it like 38.5, 7B, 2e9, 1/4 or 1,000 "
            "(the comma separates thousands), with or without the unit."
        ) from None
    return number, bottom is not None, suffix or ""


def _without_powers(text: str) -> str:
    """Return `text` in ASCII's signs and digits, with `7 · 10⁹` as `7e9`, and any other power worked out."""
    text = _TIMES_TEN.sub("e", _RAISED.sub("^", text).translate(_ALIKE))
    return _POWER.sub(lambda power: "1/" * bool(power[2]) + str(int(power[1]) ** int(power[3])), text)


def _number(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def _factors(unit: str) -> dict[str, Fraction]:
    """Return the suffixes that a number may have, in lower case, and the number of base units of each."""
    if unit == "%":
        return dict.fromkeys(("", "%", "percent"), Fraction(1, 100))
    in_bytes = _folded(_BYTES)
    if unit.casefold() in in_bytes:
        return _folded(_SI) | in_bytes | {"": in_bytes[unit.casefold()]}
    if unit in _TIMES:
        return {name.casefold(): Fraction(_TIMES[unit], many) for name, many in ({"": _TIMES[unit]} | _TIMES).items()}
    counts = {"": 1} | _COUNTS
    names = (unit, unit.removesuffix("s")) if unit else ("", "times", "time", "x", "×")
    factors = _folded(counts | {f"{scale} {name}".strip(): size for scale, size in counts.items() for name in names})
    return factors if unit else factors | {"%": Fraction(1, 100)}


def _folded(sizes: Mapping[str, int]) -> dict[str, Fraction]:
    return {suffix.casefold(): Fraction(size) for suffix, size in sizes.items()}
