"""The texts of a lesson's file: Markdown, and the source of a reference, of which edits make other solutions."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_CODE = re.compile(r"(```.*?```)", re.DOTALL)
_LINE_END = re.compile(r"(?<=\S) *\n(?!- )(?=[^\s|])")
"""A line end inside a paragraph: a list item (`- `) and a row of a table (`|`) begin on their own line."""


def prose(text: str) -> str:
    """Return `text` with one line for each paragraph. Code blocks stay as they are."""
    parts = _CODE.split(inspect.cleandoc(text))
    return "".join(part if part.startswith("```") else _LINE_END.sub(" ", part) for part in parts if part)


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the parts of `text` that blank lines separate, each as `prose`. Code blocks may contain blank lines."""
    parts = [""]
    for part in _CODE.split(prose(text)):
        first, *others = [part] if part.startswith("```") else re.split(r"\n\s*\n", part)
        parts[-1] += first
        parts += others
    return tuple(part.strip() for part in parts if part.strip())


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a function, without its decorators: `signature` and `docstring`, then `body`, all whole lines."""

    signature: str
    docstring: str
    body: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        """Return the source of `function`."""
        text = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.FunctionDef)
        lines = text.splitlines(keepends=True)
        start = end = node.body[0].lineno - 1
        if ast.get_docstring(node) is not None:
            end = node.body[0].end_lineno or start
        signature = "".join(lines[node.lineno - 1 : start])
        return cls(signature=signature, docstring="".join(lines[start:end]), body="".join(lines[end:]))


def edited(text: str, edits: Mapping[str, str]) -> str:
    """Return `text` with each key of `edits` replaced by its value.

    A key or a value of several lines is written as if it stood at the left margin: its later lines get the indentation
    of the line on which it begins.

    Raises:
        ValueError: a key does not occur exactly once in `text`, or ends a line and begins with a blank. The message
            begins with the key.
    """
    changes = []
    for old, new in edits.items():
        if old.startswith(" ") and old.endswith("\n"):
            raise ValueError(
                f"{old!r} begins with a blank and ends a line: leave out the indentation of its first line."
            )
        places = [match.span() for match in re.finditer(r"\n *".join(map(re.escape, old.split("\n"))), text)]
        if len(places) != 1:
            raise ValueError(f"{old!r} occurs {len(places)} times, and an edit needs exactly one place:\n{text}")
        line = text[text.rfind("\n", 0, places[0][0]) + 1 :]
        indentation = line[: len(line) - len(line.lstrip(" "))]
        (start, end), new = places[0], new.replace("\n", f"\n{indentation}")
        if old.endswith("\n") and new.endswith(f"\n{indentation}"):  # the next line keeps its own indentation
            end, new = text.rindex("\n", start, end) + 1, new.removesuffix(indentation)
        changes.append((start, end, new))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def compiled(text: str, like: Callable[..., Any], label: str) -> Callable[..., Any]:
    """Return the function of the source `text`, which has the name of `like` and uses the globals of its module.

    Tracebacks and `inspect.getsource` show the source: `linecache` keeps it, under a file name made of `label`. That is
    not the name of a file of the course, so errors and warnings treat the function as they treat a learner's.
    """
    file = f"<{label}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made: dict[str, Any] = {}  # apart from the globals, where the name belongs to the reference
    exec(compile(text, file, "exec"), like.__globals__, made)  # annotations stay strings, as in this module
    function: Callable[..., Any] = made[like.__name__]
    function.__qualname__ = f"{like.__name__} ({label})"  # so that it is never taken for the module's own function
    return function
