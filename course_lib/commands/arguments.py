"""The arguments of the longer subcommands, and the types of their values."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_limits_and_reports(argument: Callable[..., Any]) -> None:
    """Add the arguments of `course check`."""
    argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK")
    seconds = "limit for running one notebook, and again for checking it; one cell or exercise may take a third (300)"
    argument("--seconds", type=positive, default=300, help=seconds)
    argument("--memory", type=positive, default=8, metavar="GIB", help="GiB that one notebook may use (8)")
    argument("--json", type=report, metavar="FILE", help="write the results as JSON")
    argument("--csv", type=report, metavar="FILE", help="write the results as CSV, a row for each exercise")
    gradebook = "write percentages as CSV that Canvas and Moodle import, a row for each student"
    argument("--gradebook", type=report, metavar="FILE", help=gradebook)
    page = "write a page for the teacher as HTML: where each student is, and common mistakes"
    argument("--page", type=report, metavar="FILE", help=page)


def add_run_arguments(parser: Any) -> None:
    """Add the arguments of `course run`."""
    parser.usage = "course run [OPTIONS] [-m] PROGRAM [ARGUMENTS ...]"
    number = "the number of ranks (2), or of pretended GPUs, if the program starts its ranks itself (4)"
    parser.add_argument("--ranks", type=whole, metavar="N", help=number)
    where = "processes, simulated, nccl, nccl:8 for 8 GPUs, or dryrun:64 for one rank of 64 (processes)"
    parser.add_argument("--world", default="processes", help=where)
    gpus = "pretend GPUs (default: if the machine has none, and the program may ask for one)"
    parser.add_argument("--gpus", action=argparse.BooleanOptionalAction, default=None, help=gpus)
    parser.add_argument("--memory", type=positive, metavar="GB", help="memory of each pretended GPU, in GB (80)")
    limit = "stop the ranks after so many seconds (a day)"
    parser.add_argument("--timeout", type=positive, default=86400, metavar="S", help=limit)
    parser.add_argument("--report", type=report, metavar="FILE", help="write a page of the run, as HTML")
    kept = "keep values: more faults are found, and the page steps through the run"
    parser.add_argument("--replay", action="store_true", help=kept)
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="do not measure memory")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file")
    own = parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="the program's own")
    own.required = False  # else argparse reports that they are missing


def whole(text: str) -> int:
    """Return the number, or refuse the text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of ranks: name a whole number from 1, such as 4")
    return int(text)


def positive(text: str) -> float:
    """Return the number, or refuse the text: argparse reports `invalid positive value`."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def report(name: str) -> Path:
    """Return the file for a report, which never replaces a notebook."""
    if name.lower().endswith(".ipynb"):
        raise argparse.ArgumentTypeError(f"{name} is a notebook, and the report would replace it: name another file")
    return Path(name)
