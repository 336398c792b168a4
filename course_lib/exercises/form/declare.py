"""The older form of a declaration: every solution is a function. The last lesson to be converted deletes this file."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from . import declaration, exercise
from .declaration import Case, Solution

__all__ = ["Case", "Exercise", "Mistake", "Solution"]


def Mistake(*, id: str, solution: Solution, told: str, action: str) -> declaration.Mistake:
    return declaration.Mistake(id=id, text=f"{told}\nNext: {action}", make=lambda: solution)


class Exercise(exercise.Exercise):
    def __init__(
        self,
        *,
        stub: Solution,
        reference: Solution,
        mistakes: Sequence[declaration.Mistake],
        variants: Mapping[str, Solution],
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        self.stub, self.reference, self.mistakes = stub, reference, list(mistakes)
        self.variants = {name: partial(_same, solution) for name, solution in variants.items()}

    @property
    def cell(self) -> str:
        return f'@exercise("{self.name}")\n{_source(self.stub)}'

    @property
    def solution(self) -> str:
        source = _source(self.reference)
        return source.replace(f"def {self.reference.__name__}(", f"def {self.stub.__name__}(")


def _same(solution: Solution) -> Solution:
    return solution


def _source(function: Solution) -> str:
    return textwrap.dedent(inspect.getsource(function)).strip()
