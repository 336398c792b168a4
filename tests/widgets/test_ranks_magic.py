"""`%%ranks 4` runs a cell as a program, with the line numbers of the cell."""

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_lib import CourseError, RankError
from course_lib.widgets.ranks_magic import ranks


def test_a_cell_runs_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    shell, path = InteractiveShell(), list(sys.path)
    shell.run_line_magic("load_ext", "course_lib")
    cell = "import os, torch\nif os.environ['RANK'] == '3': exit()\n"
    cell += "print(__name__, os.environ['WORLD_SIZE'], torch.ones(2).cuda().device)\n"
    shell.run_cell_magic("ranks", "4", cell)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[ranks 0-2] __main__ 4 cuda:0" and lines[1].startswith("-- 4 ranks: cell.py, simulated")
    assert sys.path == path


def test_a_failure_names_the_line_of_the_cell() -> None:
    with pytest.raises(RankError, match=r"ValueError: no(.|\n)*at cell\.py line 3, at the top level:  raise"):
        ranks("2", "x = 1\nraise ValueError('no')\n")


@pytest.mark.parametrize("line", ["", "two", "-1", "4 5", "2 --epochs 3"])
def test_what_is_no_number_of_ranks_is_refused(line: str) -> None:
    with pytest.raises(CourseError, match="that is no number of ranks"):
        ranks(line, "")


def test_a_cell_with_a_command_of_the_notebook_is_refused() -> None:
    with pytest.raises(CourseError, match=r"^%%ranks: line 3 is not plain Python \(invalid syntax\):  !ls\n"):
        ranks("2", "x = 1\n!ls\n")
