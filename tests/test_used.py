"""What nobody names goes: public names, members and options that no lesson, page, figure, widget or command needs."""

import argparse
import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

import course_lib
from course_lib import meter, planner, world
from course_lib.commands import arguments, cli

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "course_lib").rglob("*.py"))
PAGES = (*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md")
SHOWN = (*PAGES, *(p for p in LIBRARY if {"lessons", "commands", "widgets", "plots", "validation.py"} & {*p.parts}))
"""What readers see; validation.py is the work of `course validate`."""
PACKAGES = [module for name in course_lib.__all__ if inspect.ismodule(module := getattr(course_lib, name))]
RECORDS = (meter.Communication, meter.MemoryReport, meter.Replay, meter.Snapshot, meter.Timeline)
HANDED_OUT = (world.World, world.Run, world.RankError, planner.Plan, planner.Settings, *RECORDS)

KEPT = {
    "LossScaler(growth_interval)": "an option of torch's GradScaler",
    "Settings(pipeline_stage)": "the planner sets it, to plan the last stage of a pipeline",
    "plot_timeline(between)": "lessons pass `after` to a run's method of this name, which passes it",
    "course lab --notebooks": "the author of a lesson opens it so, and so do the tests in the browser",
}
"""What stays although nobody names it yet, with the reason."""


class Words(NamedTuple):
    """The names in the code and in the backticks of files, and those of them that may be names of options."""

    named: set[str]
    passed: set[str]


@cache
def words(path: Path) -> Words:
    """Return the words of a file."""
    text, code = path.read_text("utf-8"), ""
    if path.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        text, code = (
            "\n\n".join(source for kind, source in cells if kind == wanted) for wanted in ("markdown", "code")
        )
    elif path.suffix == ".py":
        text, code = "", text
    nodes = list(ast.walk(ast.parse(code)))
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    spans = re.findall(r"```.*?```|`[^`\n]+`", "\n\n".join([text, *strings]), re.DOTALL)
    passed = {*strings, *re.findall(r"(?<![\w-])--?[a-z][\w-]*|[A-Za-z]\w*", "\n".join(spans))}
    passed |= {str(node.arg) for node in nodes if isinstance(node, ast.keyword)}
    names = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "name")}
    return Words({*map(str, names), *passed}, passed)


@cache
def found(paths: tuple[Path, ...]) -> Words:
    """Return the words of files."""
    read = [words(path) for path in paths if path.name != "__init__.py"]
    return Words(set().union(*(one.named for one in read)), set().union(*(one.passed for one in read)))


def options(owner: str, called: object) -> set[str]:
    """Return the parameters of a function with a default that nobody passes."""
    given = [one.name for one in inspect.signature(called).parameters.values() if one.default is not one.empty]
    return {f"{owner}({name})" for name in given if name not in found(SHOWN).passed}


def of_class(cls: type) -> set[str]:
    """Return the public members of a class that nobody names, and the options of its methods that nobody passes."""
    members = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    methods = {name: value for name, value in members.items() if inspect.isfunction(value)}
    properties = {name for name, value in members.items() if isinstance(value, property | cached_property)}
    unnamed = {f"{cls.__name__}.{name}" for name in {*methods, *properties} - found((*PAGES, *LIBRARY)).named}
    return unnamed.union(*(options(f"{cls.__name__}.{n}", m) for n, m in methods.items() if cls in HANDED_OUT))


def of_commands() -> set[str]:
    """Return the options of the `course` command that no page names. Those of `Settings` are judged there."""
    parsers = argparse.ArgumentParser().add_subparsers()
    cli.add_subcommands(parsers)
    ways = [(name, one.option_strings) for name, parser in parsers.choices.items() for one in parser._actions]
    named = {"-h", *found(PAGES).named, *map(arguments.flag, arguments.SETTINGS)}
    return {f"course {name} {flags[0]}" for name, flags in ways if flags and named.isdisjoint(flags)}


def unused() -> Iterator[str]:
    """Yield the public names, members and options that nobody names."""
    public = {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
    classes = {one for one in public.values() if inspect.isclass(one)}.union(HANDED_OUT)
    for cls in classes:
        yield from of_class(cls)
        if cls is planner.Settings or (
            "__init__" in vars(cls) and not is_dataclass(cls) and not issubclass(cls, Exception)
        ):
            yield from options(cls.__name__, cls)
    for name, one in public.items():
        if not inspect.isclass(one) and name not in found(SHOWN).named:
            yield name
        if inspect.isfunction(one):
            yield from options(name, one)
    yield from of_commands()


@pytest.mark.slow
def test_what_nobody_names_goes() -> None:
    assert set(unused()) == set(KEPT)
