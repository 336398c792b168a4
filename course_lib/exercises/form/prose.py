"""Triple-quoted Markdown, as declarations write it, without the indentation and the line ends of the source file."""

import inspect
import re

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
