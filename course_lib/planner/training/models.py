"""Models by name, from models.csv. Parameter counts are not stored: they follow from the shapes; tests compare them.

The ZeRO paper describes its models as similar to GPT-2, so they get GPT-2's vocabulary and context.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .checks import rows
from .shapes import Transformer


def described(row: Mapping[str, str]) -> Transformer:
    """Return the transformer whose attributes a row has as texts; an empty one has its default."""
    return Transformer(**{one.name: _value(text) for one in fields(Transformer) if (text := row.get(one.name))})


def _value(text: str) -> Any:
    return int(text) if text.isdecimal() else {"yes": True, "no": False}.get(text, text)


MODELS = {row["key"]: described(row) for row in rows(Path(__file__).with_suffix(".csv"))}
