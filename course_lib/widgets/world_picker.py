"""A choice of where the ranks of a notebook live. `World` reads it from `$COURSE_WORLD`."""

import os
from html import escape

from IPython.display import display

from ..errors import CourseError
from ..world import World
from .style import LESSON, SAVED

VARIABLE = "COURSE_WORLD"
WORLDS = {
    "simulated": "threads of this kernel, on the CPU",
    "processes": "a process for each rank, on the CPU",
    "nccl": "a GPU for each rank",
}


def choose_world(name: str | None = None) -> None:
    """Choose where the ranks of this notebook live, from the next cell on, and show the choice.

    Args:
        name: "simulated", "processes", "nccl", or "nccl:4" for four GPUs. Without a name, nothing changes.

    Raises:
        CourseError: there is no such world, or this machine has no GPU for it.
    """
    if name is not None:
        if World(1, backend=name).backend not in WORLDS:
            raise CourseError(
                f"choose_world({name!r}): its ranks do not all run, which the lessons need. Choose one of "
                f"{', '.join(WORLDS)} here, and say World(n, backend={name!r}) where you want one."
            )
        os.environ[VARIABLE] = name
    chosen = os.environ.get(VARIABLE) or "simulated"
    ways = ", ".join(f'choose_world("{kind}") ({about})' for kind, about in WORLDS.items())
    text = f"World(4) makes ranks that are {chosen}. You can leave this as it is. To choose: {ways}."
    style = f"<style>{SAVED}{LESSON}</style>"  # for the whole lesson
    html = f'<div class="course-saved"><p><strong>Where ranks live</strong> {escape(text)}</p></div>{style}'
    display({"text/html": html, "text/plain": text}, raw=True)
