"""Sharded: learn ZeRO by building it.

What imports what, from the top; `tests/test_project.py` holds the whole table and proves it:

    widgets -> exercises -> zero, world, meter, planner;  widgets -> progress, plots, world;  world -> meter, plots
    plots -> planner;  parallel -> data;  zero -> torch alone;  planner -> nothing

A public name is imported when it is first asked for. torch takes seconds to load, which `course progress` need not
pay, and `course doctor` has to say what is wrong where torch does not load at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import exercises, parallel, planner, plots, production, quizzes, zero
    from .data import TinyGPT, batch, digits, text
    from .errors import CourseError, CourseWarning
    from .exercises import incident
    from .meter import cuda_snapshot, mark
    from .planner import plan
    from .plots import compare, compare_memory, curve, report, table
    from .widgets import choose_world, course_map, exercise, predict, quiz, scoreboard, show_planner
    from .world import RankError, Run, World

__all__ = [
    "CourseError",
    "CourseWarning",
    "RankError",
    "Run",
    "TinyGPT",
    "World",
    "batch",
    "choose_world",
    "compare",
    "compare_memory",
    "course_map",
    "cuda_snapshot",
    "curve",
    "digits",
    "exercise",
    "exercises",
    "incident",
    "mark",
    "parallel",
    "plan",
    "planner",
    "plots",
    "predict",
    "production",
    "quiz",
    "quizzes",
    "report",
    "scoreboard",
    "show_planner",
    "table",
    "text",
    "zero",
]

_HOMES = {
    "CourseError": "errors",
    "CourseWarning": "errors",
    "RankError": "world",
    "Run": "world",
    "TinyGPT": "data",
    "World": "world",
    "batch": "data",
    "choose_world": "widgets",
    "compare": "plots",
    "compare_memory": "plots",
    "course_map": "widgets",
    "cuda_snapshot": "meter",
    "curve": "plots",
    "digits": "data",
    "exercise": "widgets",
    "incident": "exercises",
    "mark": "meter",
    "plan": "planner",
    "predict": "widgets",
    "quiz": "widgets",
    "report": "plots",
    "scoreboard": "widgets",
    "show_planner": "widgets",
    "table": "plots",
    "text": "data",
}
"""Where each public name lives; those that are missing here are modules."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name)
    return import_module(f".{name}", __name__) if home is None else getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__
