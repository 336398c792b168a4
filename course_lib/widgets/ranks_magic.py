"""`%%ranks 4`: run a cell as a program on each rank, as `course run` runs a file."""

import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ..errors import CourseError, CourseWarning
from ..world import Program, World


def ranks(line: str, cell: str) -> None:
    """Run the cell on so many ranks, and print what each held, sent and waited for.

    Raises:
        CourseError: `line` is no number of ranks, or the cell is not plain Python.
        RankError: as for `World.run_file`.
    """
    if not line.strip().isdecimal():
        raise CourseError(
            f"%%ranks {line}: that is no number of ranks, and a cell takes no arguments. For example %%ranks 4."
        )
    text = f"\n{cell}"  # lines have the numbers that they have in the notebook's cell
    try:
        compile(text, "cell.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CourseError(
            f"%%ranks: line {error.lineno} is not plain Python ({error.msg}):  {(error.text or '').strip()}\n"
            "Correct that line. A line that begins with `!` or `%` belongs in a cell of its own."
        ) from None
    before = list(sys.path)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", CourseWarning)  # the summary has them
        program = Path(folder) / "cell.py"
        program.write_text(text, "utf-8")
        sys.path.insert(0, os.getcwd())
        try:
            gpus = not torch.cuda.is_available() and Program.found(program, ()).asks_for_gpus  # as `course run`
            run = World(int(line), gpus=gpus).run_file(program)
        finally:
            sys.path[:] = before
    print(run.report().summary)
