"""Short texts for plain data, for findings and their tables."""

from __future__ import annotations

from itertools import islice, product

from .plain import Array, Path, Plain, at, difference, same

_SHOWN = 8
"""The number of items of a tensor or a list that are shown."""

_LONGEST = 72
"""The number of characters of a text that are shown."""


def kind(value: Plain) -> str:
    """Return the kind of `value`: `a float32 tensor of shape [4]`, `a list or tuple of 3`, `None`."""
    if isinstance(value, tuple):  # plain data has no lists
        return f"a list or tuple of {len(value)}"
    names = {bool: "True or False", int: "a number", float: "a number", str: "a string", dict: "a dict"}
    return names.get(type(value)) or str(value)


def short(value: Plain, *, start: int = 0, digits: int = 6) -> str:
    """Return `value` on one line; of a long tensor or string, the part that begins at item `start`."""
    if isinstance(value, Array):
        text = _array(value, start, digits)
    elif isinstance(value, tuple):
        items = [short(item, digits=digits) for item in value[:_SHOWN]] + ["…"] * (len(value) > _SHOWN)
        text = f"[{', '.join(items)}]"
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{key!r}: {short(item, digits=digits)}' for key, item in value.items())}}}"
    elif isinstance(value, str):
        text = "…" * (start > 0) + repr(value[start:])
    else:
        text = _number(value, digits)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def pair(expected: Plain, given: Plain, tolerance: float) -> tuple[str, str]:
    """Return both on one line each: the same text if they are the same, different texts if they differ."""
    if same(expected, given, tolerance):
        return short(expected), short(expected)
    start = _start(expected, given, tolerance)
    for digits in (6, 17):
        texts = short(expected, start=start, digits=digits), short(given, start=start, digits=digits)
        if texts[0] != texts[1]:
            return texts
    if element := first_element(expected, given, tolerance):  # too long to be shown
        texts = pair(*element[1:], tolerance)
        return f"at {element[0]}: {texts[0]}", f"at {element[0]}: {texts[1]}"
    if path := difference(expected, given, tolerance):  # too deep inside to be shown
        texts = pair(at(expected, path), at(given, path), tolerance)
        return _at(path, texts[0]), _at(path, texts[1])
    return kind(expected), kind(given)


def _at(path: Path, text: str) -> str:
    return f"at {''.join(f'[{key!r}]' for key in path)}: {text}"


def first_element(expected: Plain, given: Plain, tolerance: float) -> tuple[list[int], float, float] | None:
    """Return the index of the first element that differs, and its two values; None if they are not alike tensors."""
    if not (isinstance(expected, Array) and isinstance(given, Array) and expected.shape == given.shape):
        return None
    path = difference(expected.numbers, given.numbers, tolerance)
    if not path:
        return None
    index = next(islice(product(*map(range, expected.shape)), path[0], None))
    return list(index), expected.numbers[path[0]], given.numbers[path[0]]


def first_character(expected: str, given: str) -> int:
    """Return the index of the first character that differs; where one text ends, if that is the only difference."""
    unlike = (i for i, (a, b) in enumerate(zip(expected, given, strict=False)) if a != b)
    return next(unlike, min(len(expected), len(given)))


def _start(expected: Plain, given: Plain, tolerance: float) -> int:
    """Return the item to begin with, so that the first difference is visible."""
    if isinstance(expected, str) and isinstance(given, str):
        return max(0, first_character(expected, given) - _LONGEST // 2)
    if isinstance(expected, Array) and isinstance(given, Array) and len(expected.numbers) > _SHOWN:
        path = difference(expected.numbers, given.numbers, tolerance)
        return max(0, path[0] - _SHOWN // 2) if path else 0
    return 0


def _array(array: Array, start: int, digits: int) -> str:
    if not array.shape:
        return f"tensor({_number(array.numbers[0], digits)})"
    if len(array.shape) == 2 and 0 < len(array.numbers) <= 2 * _SHOWN:
        width = array.shape[1]
        rows = [array.numbers[i : i + width] for i in range(0, len(array.numbers), width)]
        return f"[{', '.join(_list(row, digits) for row in rows)}]"
    more = len(array.numbers) > start + _SHOWN
    return _list(array.numbers[start : start + _SHOWN], digits, "… " * (start > 0), " …" * more)


def _list(numbers: tuple[float, ...], digits: int, before: str = "", after: str = "") -> str:
    return f"[{before}{', '.join(_number(number, digits) for number in numbers)}{after}]"


def _number(value: Plain, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
