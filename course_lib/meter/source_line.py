"""The lines of the learner's code."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

_FOLDERS = {
    os.path.dirname(torch.__file__),
    os.path.dirname(os.path.dirname(__file__)),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platstdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
}
_LIBRARY = (*(os.path.join(path, "") for path in _FOLDERS), "<frozen", "<eval_with_key>")  # the last: torch.compile's

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class SourceLine(NamedTuple):
    """A line of the learner's code."""

    filename: str
    line: int
    function: str
    caller: SourceLine | None = None  # the line in the file or cell where the program began, if that is a different one

    @staticmethod
    def of(frame: FrameType) -> SourceLine:
        """Return the line that `frame` is at. A comprehension belongs to the function around it, as in Python 3.12."""
        function = frame
        while function.f_code.co_name in _COMPREHENSIONS and function.f_back is not None:
            function = function.f_back
        return SourceLine(frame.f_code.co_filename, frame.f_lineno, function.f_code.co_name)

    @property
    def source(self) -> str:
        """The line's text without indentation; empty if the source is unknown."""
        return linecache.getline(self.filename, self.line).strip()

    def __str__(self) -> str:
        return f"{_file_label(self.filename)}line {self.line}"


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _file_label(filename: str) -> str:
    """Return `cell [5], ` for a notebook's cell, `train.py ` for a file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    label = shell.compile.format_code_name(filename) if shell is not None else None
    return f"{os.path.basename(filename)} " if label is None else f"cell {label[1]}, "


def is_learners(code: CodeType) -> bool:
    """Return whether the learner wrote `code`, and not torch, this course or another library."""
    return is_learners_code(code.co_filename, code.co_name)


@lru_cache(maxsize=1024)  # of each frame of each call's stack
def is_learners_code(filename: str, function: str) -> bool:
    """Return whether the learner wrote this function of this file."""
    # Code that is executed from a string, such as a dataclass's methods, has no line to show.
    return is_learners_file(filename) and (filename, function) != ("<string>", "<module>")


@lru_cache(maxsize=4096)  # of each imported module, in each run
def is_learners_file(filename: str) -> bool:
    """Return whether `filename` is the learner's, and not a library's."""
    if filename.startswith(_LIBRARY) or "torchinductor" in filename:
        return False
    path = Path(filename)
    return not any(path.relative_to(folder).parts[0] in _installed_in(folder) for folder in path.parents)


@lru_cache(maxsize=1024)
def _installed_in(folder: Path) -> frozenset[str]:
    """Return the packages and modules that `pip install --target` has put into `folder`, by their file names."""
    names: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        names.update(line.partition("/")[0].partition(",")[0] for line in record.read_text("utf-8").splitlines())
    return frozenset(names)
