"""The content of the planner's page. A browser runs `shown`; the build writes the form and the first plan with it."""

import json
from html import escape
from typing import Any

from course_lib.planner import HARDWARE, MODELS, plan, shortage, size, verdict
from course_lib.plots.plan import plot_plan

LONGEST = 4096
"""Tokens in a sequence, unless the model was made for fewer."""

MOST = {"world_size": 14, "tensor_parallel": 4, "pipeline_parallel": 5, "batch": 6, "micro_batches": 10}
"""The end of each slider, as a power of two."""

LOADING = "The settings can be changed once the page has loaded Python: 14 MB, and JavaScript has to be on."


def shown(model: str, hardware: str, **settings: Any) -> tuple[str, str]:
    """Return whether the plan fits, as a sentence, and its figure as HTML; or why there is no plan."""
    machine = HARDWARE[hardware]
    try:
        chosen = plan(model=model, sequence=min(LONGEST, MODELS[model].context), attention="flash", **settings)
        picture = plot_plan(chosen, machine)
    except ValueError as refusal:
        return f"Cannot be planned: {refusal}", ""
    short, where = shortage(chosen, machine)
    held = f"rank 0 holds at most {size(chosen.peak_bytes)}"
    if short > 0:
        held = f"{size(short)} short on rank 0, {where}"
    return f"{verdict(chosen, machine).capitalize()}: {held}.", picture.html


def page(fields: dict[str, tuple[str, dict[str, Any] | None]], start: dict[str, Any]) -> str:
    """Return the form, with a slider for each number, and the plan that it starts with.

    Args:
        fields: the label of each setting, and its choices; without choices it is a number.
        start: the first value of each.
    """
    boxes = "".join(_field(name, label, choices, start[name]) for name, (label, choices) in fields.items())
    sentence, figure = shown(**start)
    return (
        f'<form id="planner"><fieldset disabled><legend>Settings</legend>{boxes}</fieldset></form>'
        f'<p id="loading">{LOADING}</p>'
        f'<p id="verdict" role="status">{escape(sentence)}</p><div id="plan">{figure}</div>'
    )


def _field(name: str, label: str, choices: dict[str, Any] | None, value: Any) -> str:
    if choices is None:
        field = (
            f'<input type="range" name="{name}" min="0" max="{MOST[name]}" value="{value.bit_length() - 1}">'
            f"<output>{value}</output>"
        )
    else:
        options = "".join(
            f'<option value="{escape(json.dumps(choice))}"{" selected" * (choice == value)}>{escape(text)}</option>'
            for text, choice in choices.items()
        )
        field = f'<select name="{name}">{options}</select>'
    return f"<label><span>{label}</span>{field}</label>"
