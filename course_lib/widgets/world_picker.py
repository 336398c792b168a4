"""A choice of where the ranks of a notebook live. `World` reads it from `$COURSE_WORLD`."""

from __future__ import annotations

import os

import torch
from ipywidgets import HTML, Layout, RadioButtons, VBox

from ..errors import CourseError
from ..world import World
from .style import alert, display_with_text, note, sheet

VARIABLE = "COURSE_WORLD"
WORLDS = {
    "simulated": "simulated: threads of this kernel, on the CPU",
    "processes": "processes: one for each rank, on the CPU",
    "nccl": "nccl: a GPU for each rank",
}


class WorldPicker(VBox):
    """Radio buttons for the kind of worlds that this notebook makes. `choose` does what a click does."""

    def __init__(self) -> None:
        self.options = RadioButtons(
            options=[(_label(name), name) for name in WORLDS],
            value=_current(),
            description="Ranks are",
            layout=Layout(width="auto"),
        )
        self.message = HTML(note("Now:", self.standing))
        self.options.observe(lambda change: self._apply(change["new"]), names="value")
        super().__init__([sheet(), self.options, self.message])
        for name in ("course-widget", "course-card"):
            self.add_class(name)

    @property
    def standing(self) -> str:
        """The chosen kind, in a sentence."""
        return f"`World(4)` makes ranks that are {os.environ.get(VARIABLE) or 'simulated'}, from the next cell on."

    def choose(self, name: str) -> None:
        """Choose "simulated", "processes", "nccl", or "nccl:4" for four GPUs.

        Raises:
            CourseError: there is no such kind, or this machine does not support it.
        """
        kind = World(1, backend=name).backend
        if kind not in WORLDS:
            raise CourseError(
                f"choose_world({name!r}): its ranks do not all run, which the lessons need. Choose one of "
                f"{', '.join(WORLDS)} here, and say World(n, backend={name!r}) where you want one."
            )
        os.environ[VARIABLE] = name
        self.options.value = kind
        self.message.value = alert("Now:", self.standing)

    def show(self) -> None:
        """Show the choice, with a text for places that cannot show widgets."""
        calls = ", ".join(f'choose_world("{name}")' for name in WORLDS)
        text = f"Ranks are simulated where nothing else is chosen. To choose by name: {calls}."
        display_with_text(self, text=text, summary="Where ranks live: run this cell to choose.")

    def _apply(self, name: str) -> None:
        if name == _current():
            return
        try:
            self.choose(name)
        except CourseError as error:
            self.options.value = _current()
            self.message.value = alert("Not here.", str(error), tone="wrong")


def _current() -> str:
    kind = os.environ.get(VARIABLE, "").partition(":")[0]
    return kind if kind in WORLDS else "simulated"


def _label(name: str) -> str:
    if name != "nccl":
        return WORLDS[name]
    return f"{WORLDS[name]} ({torch.cuda.device_count()} here)"
