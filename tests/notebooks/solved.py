"""The solution of an exercise, run in its lesson by nbval, after the cell as it is shipped."""

import re
from collections import defaultdict

from nbformat import NotebookNode
from nbval.plugin import IPyNbCell

import course_lib

EXERCISE = re.compile(r'@exercise\("(.+)"\)\n')
ONE_CASE = '__import__("course_lib").exercises.get("{}").case_count = 1'
"""`test_every_exercise` checks each solution with all cases."""


class SolvedCell(IPyNbCell):
    """An exercise's cell with the solution in it: the exercise must pass. Later cells use the function of this cell."""

    def setup(self) -> None:
        super().setup()
        self.exercise = EXERCISE.match(self.cell.source)[1]
        solution = course_lib.exercises.get(self.exercise).solution
        source = f'{ONE_CASE.format(self.exercise)}\n@exercise("{self.exercise}")\n{solution}'
        self.cell = NotebookNode(self.cell | {"source": source})

    def compare_outputs(self, test: list, ref: list, skip_compare: object = None) -> bool:
        self.comparison_traceback = [str(test)]
        return f"{self.exercise}: passed" in str(test)


def with_solutions(cells: list[IPyNbCell]) -> list[IPyNbCell]:
    """Return the cells, and after each exercise's cell the same with the solution in it."""
    followed = []
    for cell in cells:
        followed.append(cell)
        if isinstance(cell, IPyNbCell) and EXERCISE.match(cell.cell.source):
            followed.append(
                SolvedCell.from_parent(
                    cell.parent,
                    name=f"{cell.name} solved",
                    cell_num=cell.cell_num,
                    cell=cell.cell,
                    options=defaultdict(bool, check=True),
                )
            )
    return followed
