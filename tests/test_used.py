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
from course_lib.commands import cli

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "course_lib").rglob("*.py"))
PAGES = [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "docs/planner/page.py"]
SHOWN = {"lessons", "commands", "widgets", "plots", "validation.py"}  # the last is the work of `course validate`
PACKAGES = [module for name in course_lib.__all__ if inspect.ismodule(module := getattr(course_lib, name))]
RECORDS = (meter.Communication, meter.MemoryReport, meter.Replay, meter.Snapshot, meter.Timeline)
HANDED_OUT = (world.World, world.Run, world.RankError, planner.Plan, planner.Settings, *RECORDS)

KEPT = {
    "first_stage": "the public interface: a question to the planner",
    "longest_sequence": "the public interface: a question to the planner",
    "cheapest(most_ranks)": "the public interface: a question to the planner",
    "Stage1(replicate_group)": "hybrid sharding, which lesson 09 explains",
    "Stage2(replicate_group)": "hybrid sharding",
    "Stage3(replicate_group)": "hybrid sharding",
    "LossScaler(growth_interval)": "an option of torch's GradScaler",
    "Settings(pipeline_stage)": "the planner sets it, to plan the last stage of a pipeline",
    "course lab --notebooks": "the author of a lesson opens it so, and so do the tests in the browser",
}
"""What stays although nobody names it yet, with the reason."""


def words(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the names in the code and in the backticks of a file, and whether each may be the name of an option."""
    text, code = path.read_text("utf-8"), ""
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text, code = (
            "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code")
        )
    elif path.suffix == ".py":
        text, code = "", text
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text += f"\n\n{node.value}"
            yield node.value, True  # the key of a setting
        elif isinstance(node, ast.keyword):
            yield str(node.arg), True
        elif isinstance(node, ast.Name | ast.Attribute | ast.alias):
            yield getattr(node, "id", None) or getattr(node, "attr", None) or node.name, False
    for span in re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL):
        yield from ((word, True) for word in re.findall(r"(?:(?<!\w)--)?[A-Za-z]\w*", span))


class Words(NamedTuple):
    """The words of the pages; of everything that readers see, and those of them that may be options; of all code."""

    on_pages: set[str]
    named: set[str]
    passed: set[str]
    in_code: set[str]


@cache
def found() -> Words:
    """Return all words. They are read when the test runs, not when it is collected."""
    by_path = {path: set(words(path)) for path in (*PAGES, *LIBRARY) if path.name != "__init__.py"}
    shown = {word for path in by_path if path in PAGES or SHOWN & {*path.parts} for word in by_path[path]}
    return Words(
        on_pages={word for path in PAGES for word, _ in by_path[path]},
        named={word for word, _ in shown},
        passed={word for word, is_option in shown if is_option},
        in_code={word for path in by_path for word, _ in by_path[path]},
    )


def options(owner: str, called: object) -> set[str]:
    """Return the parameters of a function with a default that nobody passes."""
    given = [one.name for one in inspect.signature(called).parameters.values() if one.default is not one.empty]
    return {f"{owner}({name})" for name in given if name not in found().passed}


def of_class(cls: type) -> set[str]:
    """Return the public members of a class that nobody names, and the options of its methods that nobody passes."""
    members = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    methods = {name: value for name, value in members.items() if inspect.isfunction(value)}
    properties = {name for name, value in members.items() if isinstance(value, property | cached_property)}
    unnamed = {f"{cls.__name__}.{name}" for name in {*methods, *properties} - found().in_code}
    return unnamed.union(*(options(f"{cls.__name__}.{n}", m) for n, m in methods.items() if cls in HANDED_OUT))


def of_commands() -> set[str]:
    """Return the options of the `course` command that no page names."""
    parsers = argparse.ArgumentParser().add_subparsers()
    cli.add_subcommands(parsers)
    named = {(name, flag) for name, parser in parsers.choices.items() for flag in parser._option_string_actions}
    return {f"course {name} {flag}" for name, flag in named if flag not in {*found().on_pages, "-h", "--help"}}


def unused() -> Iterator[str]:
    """Yield the public names, members and options that nobody names."""
    public = {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
    classes = {one for one in public.values() if inspect.isclass(one)}.union(HANDED_OUT)
    for cls in classes:
        yield from of_class(cls)
        if cls is planner.Settings or ("__init__" in vars(cls) and not is_dataclass(cls)):  # records are not made
            yield from options(cls.__name__, cls)
    for name, one in public.items():
        if not inspect.isclass(one) and name not in found().named:
            yield name
        if inspect.isfunction(one):
            yield from options(name, one)
    yield from of_commands()


@pytest.mark.slow
def test_what_nobody_names_goes() -> None:
    assert set(unused()) == set(KEPT)
