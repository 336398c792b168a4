"""The planner as a widget: `show_planner()`. Each field is a setting of `plan`, and each change draws its plan."""

from collections.abc import Callable
from typing import Any

from ipywidgets import HTML, BoundedIntText, Dropdown, HBox, Layout, VBox

from ..planner import (
    CHECKPOINTING,
    HARDWARE,
    MODELS,
    PRECISIONS,
    Hardware,
    Plan,
    known,
    plan,
    shortage,
    size,
    verdict,
    whole,
)
from ..plots import plot_plan
from .style import alert, display_with_text, markup, note, sheet, title

STAGES = {
    "0: data parallel": 0,
    "1: optimizer states sharded": 1,
    "2: gradients sharded, too": 2,
    "3: parameters sharded, too": 3,
}
FIELDS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "model": ("Model", {model.name: name for name, model in MODELS.items()}),
    "hardware": ("Hardware", {machine.name: name for name, machine in HARDWARE.items()}),
    "world_size": ("GPUs", None),
    "stage": ("ZeRO stage", STAGES),
    "precision": ("Precision", {policy.what: name for name, policy in PRECISIONS.items()}),
    "tensor_parallel": ("Tensor parallel", None),
    "pipeline_parallel": ("Pipeline stages", None),
    "batch": ("Sequences of a micro-batch", None),
    "micro_batches": ("Micro-batches", None),
    "checkpointing": ("Activation checkpointing", {name: name for name in CHECKPOINTING}),
}
"""The label of each field, and its choices: the shown text and the value for `plan`. Without choices: a number."""

MOST = 10**6
"""The largest number that a field accepts."""

START = {
    "model": "llama-7b", "hardware": "h100", "world_size": 8, "stage": 3, "precision": "mixed",
    "tensor_parallel": 1, "pipeline_parallel": 1, "batch": 1, "micro_batches": 1, "checkpointing": "none",
}  # fmt: skip
KEYS = "Tab goes from field to field. Enter opens a list, the arrow keys choose in it, and Enter takes what is chosen."
HEAD = title("Planner", "What would it cost?") + markup(KEYS)
LONGEST = 4096
"""Tokens in a sequence, unless the model was made for fewer, or the length is given."""


class PlannerWidget(VBox):
    """The cost of training a model, with a field for each setting that matters most.

        planner = show_planner(model="llama-70b", world_size=64, hardware="h100-infiniband")
        planner.plan.peak_bytes                         # the plan that is shown

    Its repr is the plan in words.
    """

    def __init__(self, **given: Any) -> None:
        self._fixed = {"attention": "flash"} | {name: value for name, value in given.items() if name not in FIELDS}
        self.fields = {name: _field(name, given.get(name, START[name])) for name in FIELDS}
        self.plan  # noqa: B018  # raises for unknown settings, or two that do not go together
        self.verdict, self.figure = HTML(), HTML()
        boxes = HBox([*self.fields.values()], layout=Layout(flex_flow="row wrap"))
        self._card = VBox([HTML(HEAD), boxes, self.verdict, self.figure])
        self._card.add_class("course-card")
        super().__init__([sheet(), self._card])
        self.add_class("course-widget")
        self._show(note)
        for field in self.fields.values():
            field.observe(lambda _: self._show(alert), "value")

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of the fields, by name."""
        return {name: field.value for name, field in self.fields.items()}

    @property
    def plan(self) -> Plan:
        """The plan that is shown.

        Raises:
            ValueError: the chosen settings do not go together.
        """
        wanted = self.chosen
        del wanted["hardware"]
        length = {"sequence": min(LONGEST, MODELS[wanted["model"]].context)}
        return plan(**wanted | length | self._fixed)

    def _show(self, message: Callable[..., str]) -> None:
        """Draw the plan. Show whether it fits as a `message`: a note, or an alert, which screen readers read out."""
        machine = HARDWARE[self.fields["hardware"].value]
        try:
            chosen = self.plan
            picture = plot_plan(chosen, machine)
        except ValueError as refusal:
            self.verdict.value = message("Cannot be planned.", str(refusal), tone="wrong")
            self.figure.layout.visibility = "hidden"  # its space stays, and the page does not jump
            return
        self.figure.value, self.figure.layout.visibility = picture.html, "visible"
        *texts, tone = _verdict(chosen, machine)
        self.verdict.value = message(*texts, tone=tone)

    def text(self) -> str:
        """Return the plan in words, or why there is none."""
        try:
            return self.plan.explain(self.fields["hardware"].value)
        except ValueError as refusal:
            return f"Cannot be planned: {refusal}"

    def _ipython_display_(self) -> None:
        state = self.text().partition("\n")[0]
        display_with_text(self, title="Planner", state=state, text=self.text())

    def __repr__(self) -> str:
        return self.text()


def show_planner(**given: Any) -> PlannerWidget:
    """Return the planner widget. As the last line of a cell it is shown.

    Args:
        given: the initial values of the fields, by name: model, hardware, world_size, stage, precision,
            tensor_parallel, pipeline_parallel, batch, micro_batches, checkpointing; and any other setting of `plan`,
            such as sequence, optimizer or offload, which then stays fixed.

    Raises:
        ValueError: a field has no such choice, there is no such setting, or two do not go together.
    """
    return PlannerWidget(**given)


def _field(name: str, value: Any) -> Dropdown | BoundedIntText:
    label, choices = FIELDS[name]
    layout, style = Layout(width="auto", margin="0 1em 0.3em 0"), {"description_width": "auto"}
    if choices is None:
        whole(name, value, most=MOST)
        return BoundedIntText(value, min=1, max=MOST, description=label, layout=layout, style=style)
    known(name, value, choices.values())
    return Dropdown(options=list(choices.items()), value=value, description=label, layout=layout, style=style)


def _verdict(chosen: Plan, machine: Hardware) -> tuple[str, str, str]:
    """Return a headline, a message, and its tone."""
    short, where = shortage(chosen, machine)
    if short > 0:
        missing = f"{size(short)} short on rank 0, {where}."
        return f"{verdict(chosen, machine).capitalize()}:", missing, "wrong"
    peak, there = size(chosen.peak_bytes), size(machine.memory_bytes)
    return "Fits:", f"rank 0 holds at most {peak} of {there}, {chosen.peak_moment}.", "right"
