"""A field in which a learner types a number, with or without its unit."""

from __future__ import annotations

from collections.abc import Callable

from ipywidgets import Layout, Text


class NumberField(Text):
    """A field for a number.

    Python receives the text when the field loses focus, or at the Enter key. If each key were sent, ipywidgets would
    hold the second back until a busy kernel has handled the first, and a button's click would overtake it.

    Args:
        label: the name of the number.
        unit: the unit of a number without one; may be empty.
        value: the initial text.
        entered: called at the Enter key.
    """

    def __init__(self, label: str, *, unit: str, value: str, entered: Callable[[], None]) -> None:
        super().__init__(
            value=value,
            description=f"{label} in {unit}" if unit else label,
            placeholder=f"for example 12.5 {unit}".strip(),
            continuous_update=False,
            layout=Layout(width="100%"),
        )
        self._entered = entered
        self.on_msg(self._receive)

    def _receive(self, _widget: Text, content: dict[str, object], _buffers: object) -> None:
        if content.get("event") == "submit":  # the Enter key; ipywidgets' own on_submit is deprecated
            self._entered()
