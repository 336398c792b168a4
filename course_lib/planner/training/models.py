"""Models by name, from models.csv. Parameter counts are not stored: they follow from the shapes; tests compare them.

The ZeRO paper describes its models as similar to GPT-2, so they get GPT-2's vocabulary and context.
"""

import csv
from pathlib import Path
from typing import Any

from .shapes import Transformer


def _read() -> dict[str, Transformer]:
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("key"): Transformer(**{name: _value(text) for name, text in row.items()})
                for row in csv.DictReader(file)}  # fmt: skip


def _value(text: str) -> Any:
    return int(text) if text.isdecimal() else {"yes": True, "no": False}.get(text, text)


MODELS = _read()
