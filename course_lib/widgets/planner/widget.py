"""The planner as a widget: `show_planner()`, the site's page in a notebook."""

from collections.abc import Mapping
from typing import Any

from ipywidgets import HTML, VBox
from traitlets import Unicode

from ...planner import Plan, hardware, page
from ..card import Card
from ..style import STATIC, display_with_text, sheet, title
from .fields import planned
from .page import Planner

SHEET = (STATIC / "planner.css").read_text("utf-8")


class _Form(HTML):
    """HTML that a page is not sent again when it is set as if it came from the page, with `set_state`."""

    value = Unicode("").tag(sync=True, echo_update=False)


class PlannerWidget(VBox):
    """The cost of training a model, with a field for each setting.

        planner = show_planner(model="llama-70b", world_size=64, hardware="h100-infiniband")
        planner.plan.peak_bytes                         # the plan that is shown

    Its repr is the page of the plan in words.
    """

    def __init__(self, **given: Any) -> None:
        self._planner = Planner(**given)
        self.plan  # noqa: B018  # raises for settings that do not go together
        self.form, self.verdict, self.drawing = _Form(self._form), HTML(), HTML(self._planner.drawing)
        self.verdict.add_class("plan-verdict")
        self.verdict.value = self._planner.verdict
        card = Card([self.form, self.verdict, self.drawing], {"plan": self.choose})
        card.add_class("plan")
        super().__init__([sheet(), HTML(f"<style>{SHEET}</style>"), card])
        self.add_class("course-widget")

    def choose(self, texts: Mapping[str, str]) -> None:
        """Plan what the fields say: their texts, by name."""
        self._planner.choose(texts)
        # For a page that is loaded again. The page that shows the form has it already, and would lose the focus.
        self.form.set_state({"value": self._form})
        self.verdict.value = f'<div role="alert">{self._planner.verdict}</div>'
        self.drawing.value = self._planner.drawing

    @property
    def _form(self) -> str:
        fields = f'<form data-action="plan" data-on="change"><fieldset>{self._planner.form}</fieldset></form>'
        return title("Planner", "What would it cost?") + fields

    @property
    def plan(self) -> Plan:
        """The plan of what is chosen.

        Raises:
            ValueError: the chosen settings do not go together.
        """
        return planned(self._planner.chosen)

    def __repr__(self) -> str:
        """Return the page of the plan, without the defaults, which the form shows; or why there is none."""
        machine = self._planner.chosen["hardware"]
        try:
            head, _, *rest = page(self.plan, hardware(machine))
        except ValueError as refusal:
            return f"Cannot be planned: {refusal}"
        return "\n\n".join([head, *rest, f"Byte by byte: planner.plan.explain({machine!r})"])

    def _ipython_display_(self) -> None:
        display_with_text(self, title="Planner", state=repr(self).partition("\n")[0])


def show_planner(**given: Any) -> PlannerWidget:
    """Return the planner widget. As the last line of a cell it is shown.

    Args:
        given: the first values of the fields, by name: model, hardware, and any of `Settings`, such as world_size,
            stage, precision or offload.

    Raises:
        ValueError: a field has no such value, there is no such field, or two values do not go together.
    """
    return PlannerWidget(**given)
