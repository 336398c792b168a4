"""`course run`: run a program on ranks as torchrun would, and print what each rank held, sent and waited for."""

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from ..errors import CourseError, CourseWarning
from ..meter import is_learners
from ..world import Program, RankError, Run, World
from .arguments import keeps_inputs

RANKS = 2
"""The number of ranks, unless an option names one."""

_OPTIONS = {
    "run the cell again": "run the program again",
    ", and in the error's .output": "",
    "In a notebook, run the cell that defines it (after a restart of the kernel, all cells above). A cell with "
    "%%ranks, and a program, see only names of their own": (
        'A rank that mp.spawn starts does not have what the program defines under `if __name__ == "__main__"`: pass '
        "it in `args=`"
    ),
    "World(…, gpus=True)": "--gpus",
    "World(…, timeout=…)": "--timeout",
    'World(…, backend="nccl")': "--world nccl",
    'World(…, backend="processes")': "--world processes",
    "run the function in a small world: World(4)": "run the program with --ranks 4, and without --world",
    "Leave the argument out, and unset $COURSE_WORLD, for simulated ranks": "Leave --world out for processes",
    "World(gpus=True):": "--gpus:",
    "Leave gpus= out, or choose a backend that takes it with backend=": "Leave it out, or choose another --world",
    "say gpus=True, and each rank has a pretended GPU of 80 GB. Or say how many bytes each has, as in gpus=24e9": (
        "a pretended GPU has 0.001 GB or more. Give its memory in GB, as in --memory 24"
    ),
}
"""The advice of messages: words for a notebook, and the same for a terminal."""

_AFTER = ("--ranks", "--world", "--gpus", "--no-gpus", "--memory", "--timeout", "--report", "--replay", "--no-measure")
"""The options of the command that may stand behind the program by mistake."""

GPUS = 4
"""The number of pretended GPUs for a program that starts its ranks itself, unless an option names one."""


def run(options: argparse.Namespace) -> int:
    """Run the program with these options of the command, and return the exit code."""

    def then(run: Run) -> None:
        print(run.report().summary, flush=True)
        _save(run, options.report)

    try:
        if options.report and not options.report.parent.is_dir():
            raise CourseError(f"--report {options.report}: there is no folder {options.report.parent}. Make it first.")
        world = _world(options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CourseWarning)  # the summary has them
            world.run_file(options.program, *options.arguments, module=options.module, then=then)
    except RankError as error:
        error.args = (_for_terminal(error).replace("Next: ", f"Next: {_misplaced(error, options.arguments)}"),)
        print(f"{_traceback(error)}{error}", file=sys.stderr)
        _save(error, options.report)
        return 1
    except CourseError as error:
        print(f"course run: {_for_terminal(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"course run: {_for_terminal(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # of stdout
        raise
    except Exception as error:  # outside the ranks, in a program that starts them itself
        trace = _learners(error)
        if trace is None and isinstance(error, OSError):  # of stdout
            raise
        traceback.print_exception(type(error), error, trace or error.__traceback__)
        return 1
    return 0


def _misplaced(error: RankError, arguments: Sequence[str]) -> str:
    """Return advice on options of the command that stand behind the program, if the program refuses its arguments."""
    names = [name for argument in arguments if (name := argument.partition("=")[0]) in _AFTER]
    codes = [report.raised.message for report in error.ranks if report.raised is not None]
    if not names or error.kind != "exited" or "2" not in codes:  # argparse's code
        return ""
    return (
        f"write {' and '.join(names)} before the program if course run is meant. What stands behind the program is an "
        "argument of the program. If the program is meant: "
    )


def _traceback(error: RankError) -> str:
    """Return the traceback of the first rank that raised, if it names more lines than the message does."""
    raised = next(((report.rank, report.raised) for report in error.ranks if report.raised is not None), None)
    if error.kind != "raised" or raised is None or raised[1].type == "NoNumbers":  # a dry run's message is enough
        return ""
    rank, trace = raised[0], raised[1].traceback.rstrip()
    lines = re.findall(r'^[ |]*File "', trace, re.MULTILINE)  # an exception group's begin with "|"
    return f"rank {rank}: {trace}\n\n" if len(lines) > 1 else ""


def _for_terminal(error: BaseException) -> str:
    """Return the text of an error, which is written for notebooks, as a terminal needs it."""
    text = re.sub(r"\nNote: .* got a new process\..*", "", str(error))  # each run of the command has new ones
    for words, option in _OPTIONS.items():
        text = text.replace(words, option)
    text = re.sub(r"^World\(backend='(\S*)'\):", r"--world \1:", text)
    return re.sub(r"^World\(gpus=\S*\):", "--memory:", text)


def _world(options: argparse.Namespace) -> World:
    """Return the world that the options ask for, such as `--world dryrun:64`."""
    name, number = re.fullmatch(r"(.*?)(?::([1-9][0-9]*))?", options.world).groups()  # type: ignore[union-attr]
    program = Program.found(options.program, options.arguments, module=options.module)
    keeps_inputs(options.report, [program.path])
    ranks = options.ranks or int(number or (GPUS if program.starts_ranks else RANKS))
    if name == "dryrun" and number and options.ranks not in (None, int(number)):
        raise CourseError(f"--ranks {options.ranks} and --world {options.world} differ. Leave --ranks out.")
    return World(
        ranks,
        backend=name if name == "dryrun" else options.world,
        timeout=options.timeout,
        measure=options.measure,
        replay=options.replay,
        strict=options.replay,
        gpus=_gpus(options, program, name),
    )


def _gpus(options: argparse.Namespace, program: Program, backend: str) -> bool | float:
    """Return the memory of each pretended GPU, or whether there are any. By default, there are if the program may ask
    for GPUs and the machine has none."""
    if options.gpus is False and options.memory:
        raise CourseError(
            "--memory is the memory of pretended GPUs, and --no-gpus pretends none. Leave out one of the two options."
        )
    if options.gpus is None and not options.memory:
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


def _learners(error: Exception) -> TracebackType | None:
    """Return the traceback from the first line of the learner's; None if it has no such line."""
    trace = error.__traceback__
    while trace is not None and not is_learners(trace.tb_frame.f_code):
        trace = trace.tb_next
    return trace
