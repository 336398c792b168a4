"""A choice of where the ranks of a notebook live. `World` reads it from `$COURSE_WORLD`."""

import os
import re

import torch
from ipywidgets import HTML, VBox

from ..errors import CourseError
from ..world import World
from .card import Card, Fields
from .style import LESSON, SAVED, alert, display_with_text, form, note, options, sheet, title

VARIABLE = "COURSE_WORLD"
WORLDS = {
    "simulated": "simulated: threads of this kernel, on the CPU",
    "processes": "processes: one for each rank, on the CPU",
    "nccl": "nccl: a GPU for each rank",
}


class WorldPicker(VBox):
    """Radio buttons for the kind of worlds that this notebook makes."""

    def __init__(self) -> None:
        self.message = HTML(note("Now:", self.standing))
        self.choices = HTML()
        self._show_choices()
        super().__init__([sheet(), Card([self.choices, self.message], {"choose": self._clicked})])
        self.add_class("course-widget")

    @property
    def standing(self) -> str:
        """The chosen kind, in a sentence."""
        kind = os.environ.get(VARIABLE) or "simulated"
        return f"`World(4)` makes ranks that are {kind}, from the next cell on."

    def choose(self, name: str) -> None:
        """Do what a click does, as `choose_world` documents it."""
        self._set(name)
        self._show_choices()

    def show(self) -> None:
        """Show the choice, with a text for places that cannot show widgets."""
        style = SAVED + LESSON  # the first card of a lesson has the style of all
        display_with_text(self, title="Where ranks live", state="run this cell to choose", style=style)

    def __repr__(self) -> str:
        calls = ", ".join(f'choose_world("{name}")' for name in WORLDS)
        return f"Ranks are simulated where nothing else is chosen. To choose by name: {calls}."

    def _show_choices(self) -> None:
        labels = WORLDS | {"nccl": f"{WORLDS['nccl']} ({torch.cuda.device_count()} here)"}
        fields = options("You can leave this as it is.", labels, picked=[_current()])
        self.choices.value = title("World", "Where ranks live", level=2) + form("choose", fields)

    def _set(self, name: str) -> None:
        if not re.fullmatch(r"simulated|processes|dryrun|nccl(:[1-9][0-9]*)?", str(name)):
            raise CourseError(
                f"choose_world({name!r}): there is no such choice here; there is {', '.join(WORLDS)}, and nccl:4 for "
                'four GPUs. For example choose_world("processes").'
            )
        if name == "dryrun":
            raise CourseError(
                f"choose_world({name!r}): its ranks do not all run, which the lessons need. Choose one of "
                f"{', '.join(WORLDS)} here, and say World(n, backend={name!r}) where you want one."
            )
        World(1, backend=name)  # raises if this machine has no GPU for it
        os.environ[VARIABLE] = name
        self.message.value = alert("Now:", self.standing)

    def _clicked(self, fields: Fields) -> None:
        try:
            self._set(fields["answer"])
        except CourseError as error:
            self.choices.value = ""  # a change, or the browser would keep what was clicked
            self._show_choices()
            self.message.value = alert("Not here.", str(error), tone="wrong")


def choose_world(name: str | None = None) -> None:
    """Choose where the ranks of this notebook live. Without a name, show buttons for the choice.

    Args:
        name: "simulated", "processes", "nccl", or "nccl:4" for four GPUs.

    Raises:
        CourseError: there is no such choice, or this machine has no GPU for it.
    """
    picker = WorldPicker()
    if name is not None:
        picker.choose(name)
    picker.show()


def _current() -> str:
    kind = os.environ.get(VARIABLE, "").partition(":")[0]
    return kind if kind in WORLDS else "simulated"
