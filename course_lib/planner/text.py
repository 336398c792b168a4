"""Numbers and tables as text. GB is 10^9 bytes here, as everywhere in the course; GiB is never meant."""

from collections.abc import Sequence


def size(nbytes: float) -> str:
    """Format bytes: `31.4 GB`, with three digits or a few more, in decimal units."""
    if nbytes == 1:
        return "1 byte"
    return _scaled(nbytes, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 0})


def duration(seconds: float) -> str:
    """Format seconds: `120 ms`."""
    return _scaled(seconds * 1e6, {"s": 1e6, "ms": 1e3, "µs": 0})


def _scaled(value: float, units: dict[str, float]) -> str:
    unit, factor = next((unit, factor or 1) for unit, factor in units.items() if abs(value) >= factor)
    scaled = value / factor
    return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f} {unit}"


def count(number: float | str, what: str) -> str:
    """Return a number of things, perhaps formatted already: `1 GPU`, `1,024 GPUs`."""
    return f"{number} {what}{'s' * (str(number) != '1')}"


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table as lines of text; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)
