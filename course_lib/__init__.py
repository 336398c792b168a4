"""Sharded: learn ZeRO by building it.

What imports what, from the top; the contracts in `pyproject.toml` are the whole table:

    lessons -> exercises -> world, meter;  widgets -> exercises, progress, plots, world
    world -> meter, plots, parallel, zero;  plots -> planner;  parallel -> data, zero
    planner -> errors alone;  zero -> torch alone

A public name is imported when it is first asked for. torch takes seconds to load, which `course progress` need not
pay, and `course doctor` has to say what is wrong where torch does not load at all.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import exercises, parallel, planner, plots, production, quizzes, zero
    from .data import TinyGPT, batch, digits, text
    from .errors import CourseError, CourseWarning
    from .exercises import incident
    from .meter import mark
    from .planner import plan
    from .plots import compare_memory, curve, report, table
    from .widgets import choose_world, course_map, exercise, my_results, predict, quiz, scoreboard, show_planner
    from .world import RankError, Run, World

__all__ = [
    "CourseError", "CourseWarning", "RankError", "Run", "TinyGPT", "World", "batch", "choose_world",
    "compare_memory", "course_map", "curve", "digits", "exercise", "exercises", "incident", "mark",
    "my_results", "parallel", "plan", "planner", "plots", "predict", "production", "quiz", "quizzes", "report",
    "scoreboard", "show_planner", "table", "text", "zero",
]  # fmt: skip

_NAMES = {
    "data": ("TinyGPT", "batch", "digits", "text"),
    "errors": ("CourseError", "CourseWarning"),
    "exercises": ("incident",),
    "meter": ("mark",),
    "planner": ("plan",),
    "plots": ("compare_memory", "curve", "report", "table"),
    "widgets": (
        "choose_world",
        "course_map",
        "exercise",
        "my_results",
        "predict",
        "quiz",
        "scoreboard",
        "show_planner",
    ),
    "world": ("RankError", "Run", "World"),
}
"""The public names of each package. The other names of `__all__` are packages themselves."""


def __getattr__(name: str) -> Any:
    if name == "compare":
        return _compare
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package, names in _NAMES.items():
        if name in names:
            return getattr(_package(package, name), name)
    return _package(name, name)


def _compare(*_: Any, **__: Any) -> None:
    """Say what replaces a function of version 2.0, which the first cell of its lesson 08 imports."""
    from .errors import CourseError

    raise CourseError("compare(a, b) was removed. Next: plots.plot_memory([a.memory[0], b.memory[0]], titles).")


def _package(package: str, name: str) -> ModuleType:
    try:
        return import_module(f".{package}", __name__)
    except ModuleNotFoundError as error:
        if package != "widgets":
            raise
        from .errors import CourseError

        raise CourseError(
            f"course_lib.{name} is for notebooks, and {error.name} is not installed. Worlds, exercises and `zero` do "
            "without. Next: python -m pip install sharded-course, with all that it needs; or check a function with "
            'exercises.get("ranks.hello").check(hello).'
        ) from error


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%%ranks 4`: `%load_ext course_lib` calls this."""
    shell.register_magic_function(import_module(".widgets.ranks_magic", __name__).ranks, "cell")


def __dir__() -> list[str]:
    return __all__
