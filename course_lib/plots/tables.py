"""Tables: rows of numbers, aligned, with thousands separated."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

NUMBER = re.compile(r"(below )?[-+−]?[\d,.]+(e[-+]?\d+)?( ?%| [A-Za-zµ]+)?|")


@dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """A table that shows itself as the last value of a cell. Columns of numbers are aligned to the right.

    Attributes:
        head: the names of the columns.
        rows: the cells, as text.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def right(self) -> list[bool]:
        """For each column, whether all its cells are numbers, with or without a unit."""
        return [all(map(NUMBER.fullmatch, column)) for column in zip(*self.rows, strict=True)]

    def __repr__(self) -> str:
        columns = zip(zip(self.head, *self.rows, strict=True), self.right, strict=True)
        aligned = [
            [f"{cell:{'>' if right else '<'}{max(map(len, cells))}}" for cell in cells] for cells, right in columns
        ]
        return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))

    @property
    def html(self) -> str:
        """The table as HTML."""
        sides = ["right" if right else "left" for right in self.right]
        lines = []
        for number, row in enumerate((self.head, *self.rows)):
            kinds = ['th scope="row"', *["td"] * (len(row) - 1)]
            if number == 0:  # a corner without a name heads nothing
                kinds = ['th scope="col"' if cell else "td" for cell in row]
            cells = zip(kinds, sides, map(escape, row), strict=True)
            shown = "".join(f'<{kind} style="text-align: {side}">{cell}</{kind[:2]}>' for kind, side, cell in cells)
            lines.append(f"<tr>{shown}</tr>")
        return f"<table>{''.join(lines)}</table>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


def table(rows: Iterable[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]], name: str = "") -> Table:
    """Return a table of `rows`.

    Args:
        rows: for each row, its cells by the name of their column; or rows by their own name, which is their first cell.
            A row may lack cells. Integers get separators, and other numbers four digits.
        name: the name of the first column, if `rows` have names.

    Raises:
        ValueError: there is no row.

    Example:
        >>> table({"Adam": {"bytes": 947304}, "SGD": {"bytes": 0}})
                bytes
        Adam  947,304
        SGD         0
    """
    if isinstance(rows, Mapping):
        rows = [{name: label} | dict(cells) for label, cells in rows.items()]
    rows = list(rows)
    if not rows:
        raise ValueError("table: there is no row. Give at least one: [{'ranks': 4, 'bytes': 1_024}].")
    head = tuple(dict.fromkeys(column for row in rows for column in row))
    return Table(head=head, rows=tuple(tuple(_cell(row.get(column, "")) for column in head) for row in rows))


def _cell(value: Any) -> str:
    if isinstance(value, Fraction):
        value = int(value) if value.denominator == 1 else float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
