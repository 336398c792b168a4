"""`course run`: run a program on ranks as torchrun would, and print what each rank held, sent and waited for."""

import argparse
import re
import sys
import traceback
import warnings
from pathlib import Path

import torch

from ..errors import CourseError, CourseWarning
from ..meter import is_learners
from ..world import Program, RankError, Run, World

RANKS = 2
"""The number of ranks if nothing says it."""


def run(options: argparse.Namespace) -> int:
    """Run the program with these options of the command, and return the exit code."""

    def then(run: Run) -> None:
        print(run.report().summary, flush=True)
        _save(run, options.report)

    try:
        world = _world(options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CourseWarning)  # the summary has them
            world.run_file(options.program, *options.arguments, module=options.module, then=then)
    except RankError as error:
        _save(error, options.report)
        print(_without_cells(error), file=sys.stderr)
        return 1
    except CourseError as error:
        print(f"course run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"course run: {_without_cells(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    except Exception as error:  # of a program that starts its ranks itself, outside of them
        _print_traceback(error)
        return 1
    return 0


def _without_cells(error: BaseException) -> str:
    """Return the text of an error, which is written for notebooks, for a terminal."""
    return str(error).replace("run the cell again", "run the program again")


def _world(options: argparse.Namespace) -> World:
    """Return the world that the options ask for, such as `--world dryrun:64`."""
    name, number = re.fullmatch(r"(.*?)(?::([1-9][0-9]*))?", options.world).groups()  # type: ignore[union-attr]
    ranks = options.ranks or int(number or RANKS)
    if name == "dryrun" and number and options.ranks not in (None, int(number)):
        raise CourseError(f"--ranks {options.ranks} and --world {options.world} differ. Leave --ranks out.")
    return World(
        ranks,
        backend=name if name == "dryrun" else options.world,
        timeout=options.timeout,
        measure=options.measure,
        replay=options.replay,
        gpus=_gpus(options, name),
    )


def _gpus(options: argparse.Namespace, backend: str) -> bool | float:
    """Return the memory of pretended GPUs, or whether there are any: by default where the program may ask for some."""
    if options.gpus is False and options.memory:
        raise CourseError("--memory is that of pretended GPUs, and --no-gpus leaves them out. Leave one of them out.")
    if options.gpus is None and not options.memory:
        program = Program.found(options.program, options.arguments, module=options.module)
        can = backend in ("simulated", "processes") and not torch.cuda.is_available()
        return can and program.asks_for_gpus
    return float(options.memory) * 1e9 if options.memory else bool(options.gpus)


def _save(run: Run | RankError, path: Path | None) -> None:
    """Write the page of the run, if there is a path for it."""
    if path is not None:
        try:
            run.report().save(path)
        except OSError as error:
            raise CourseError(f"{path} cannot be written ({error.strerror}). Name another file.") from None


def _print_traceback(error: Exception) -> None:
    trace = error.__traceback__
    while trace is not None and not is_learners(trace.tb_frame.f_code):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)
