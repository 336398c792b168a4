"""The planner's page. A browser runs `Planner`, and so does a notebook's widget; the site's build writes `page()`."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ...planner import HARDWARE, Hardware, Plan, shortage, size, verdict
from ...planner.explain import band, fuller, notes
from ...planner.fit import MARGIN, holder, tightest
from .drawing import Shown, drawing, ends
from .fields import START, address, entry, form, labelled, planned, value

LOADING = "The settings can be changed once the page has loaded Python: 14 MB, and JavaScript has to be on."
LONG = 80
"""The letters of a name or a value in an address; what is longer is cut."""

TONES = {"fits": ("right", "✓"), "may fit": ("note", "?"), "does not fit": ("wrong", "✗")}


class Planner:
    """What is chosen, its plan, and the plan before it.

    Args:
        given: the first value of a field, instead of the one in `START`.

    Raises:
        ValueError: there is no such field, or it has no such value.
    """

    def __init__(self, **given: Any) -> None:
        self.start = START | {name: value(name, what) for name, what in given.items()}
        self.now: Shown | None = None
        self.before: Shown | None = None
        self._begun: Shown | None = None  # the plan when the change began
        self._axes: dict[str, float] = {}
        self.chosen = self.start
        self.choose({})

    def choose(self, texts: Mapping[str, str], step: bool = True) -> None:
        """Choose what these texts mean, by the name of the field, and plan it.

        A text that means nothing becomes a sentence in `notes`, and its field keeps its value.

        Args:
            texts: of fields that differ from their first value, or of all.
            step: whether a change begins here, so that the plan so far becomes the plan before. A number that is being
                typed is one change.
        """
        self._begun = self.now if step else self._begun
        kept, self.chosen, self.notes, self.refusal = self.chosen, dict(self.start), [], ""
        for name, text in texts.items():
            try:
                self.chosen[name] = value(name, text[:LONG])
            except ValueError as error:
                if name not in START:
                    self.notes.append(f"There is no setting {name[:LONG]!r}: it is left out.")
                    continue
                self.chosen[name] = kept[name]
                self.notes.append(f"{labelled(str(error))} The setting stays {entry(kept[name]) or 'automatic'}.")
        try:
            shown = Shown(planned(self.chosen), HARDWARE[self.chosen["hardware"]])
            shown.plan.timeline(shown.hardware)
        except ValueError as refusal:
            self.refusal = labelled(str(refusal))
            return
        if shown != self._begun:
            self.before = self._begun
        self.now = shown
        self._axes = ends(self.now, self.before, self._axes)

    def show(self, query: str, step: bool = True) -> str:
        """Choose what an address says, or all fields in the same form, and return what changes on the page, as JSON."""
        self.choose(dict(parse_qsl(query.lstrip("#"), keep_blank_values=True)), step)
        texts = {name: entry(setting) for name, setting in self.chosen.items()}
        changed = address(self.chosen, self.start)
        return json.dumps({"values": texts, "address": changed, "verdict": self.verdict, "plan": self.drawing})

    @property
    def form(self) -> str:
        """The fields, with what is chosen."""
        return form(self.chosen)

    @property
    def verdict(self) -> str:
        """Whether the plan fits, as HTML, what was wrong with an address, and how far its seconds may be off."""
        tone, word, text = "wrong", "✗ Cannot be planned", self.refusal
        cautions: list[str] = []
        if not self.refusal and self.now:
            plan, machine = self.now
            fits, (short, where), most = verdict(plan, machine), shortage(plan, machine), tightest(plan, machine)
            tone, sign = TONES[fits]
            word = f"{sign} {fits.capitalize()}"
            who, there = holder(plan).capitalize(), size(machine.memory_bytes)
            text = f"{who} holds at most {size(plan.peak_bytes)} of {there}, {plan.peak_moment}.{fuller(plan)}"
            lacking = f"{size(short)} short on {holder(most)}"
            if short > 0 and short == most.reserved_bytes - machine.memory_bytes:
                taken = f"torch reserves {size(most.reserved_bytes)}"
                text = f"{lacking}: {taken} for a peak of {size(most.peak_bytes)}, and the device has {there}."
                if fits == "may fit":
                    more = f"{size(short)} more than the device has"
                    text = f"{_close(plan, machine)} On {holder(most)}, {taken}, {more}."
            elif short > 0:
                text = f"{lacking}, {where}."
            cautions = [*map(labelled, notes(plan)), *band((plan, machine))]
        before, after = ("".join(f"<p>{escape(one)}</p>" for one in lines) for lines in (self.notes, cautions))
        return f'{before}<p class="plan-{tone}"><strong>{word}</strong> {escape(text)}</p>{after}'

    @property
    def drawing(self) -> str:
        """The plan as HTML; the last one that there was, in grey, if the settings do not go together."""
        if self.now is None:
            return ""
        text = escape(self.now.plan.explain(self.now.hardware))
        return (
            f"<div{' inert' * bool(self.refusal)}>{drawing(self.now, self.before, self._axes)}"
            f'<details><summary>The plan as text</summary><pre tabindex="0">{text}</pre></details></div>'
        )


def _close(plan: Plan, machine: Hardware) -> str:
    """Return what decides whether a plan may fit: its peak, which is at most a plan's error above the memory."""
    peak, there = plan.fullest.peak_bytes, f"the device's {size(machine.memory_bytes)}"
    near = f"not above {there}"
    if peak > machine.memory_bytes:
        above = size(peak - machine.memory_bytes)
        near = f"{above} above {there}, within a plan's error of {100 * MARGIN:.0f} %"
    return f"The peak on {holder(plan.fullest)}, {size(peak)}, is {near}: a dry run and a trial decide."


def page() -> str:
    """Return the site's page, as it is until a browser has loaded Python."""
    planner = Planner(hardware="h100-infiniband")
    style = (Path(__file__).parents[1] / "static" / "planner.css").read_text("utf-8")
    return (
        f'<style>{style}</style><div class="plan">'
        f'<form id="settings"><fieldset disabled>{planner.form}</fieldset></form>'
        f'<p id="loading">{LOADING}</p><div id="verdict" class="plan-verdict" role="status">{planner.verdict}</div>'
        f'<div id="plan">{planner.drawing}</div></div>'
    )
