"""The field in which a learner types a number, with or without its unit."""

from __future__ import annotations

from collections.abc import Callable

from ipywidgets import Layout, Text


class NumberField(Text):
    """A field for a number.

    Python has it when it is left, or at the Enter key. Were it sent with each key, ipywidgets would hold the second
    back until a busy kernel has dealt with the first, and let a button's click pass.

    Args:
        label: what is asked for.
        unit: what a bare number is in; may be empty.
        value: what stands in the field at first.
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
