"""`course run`: run a program on ranks as torchrun would, and print what each rank held, sent and waited for."""

import argparse
import re
import sys
import warnings
from pathlib import Path

import torch

from ..errors import CourseError, CourseWarning
from ..world import Program, RankError, Run, World

RANKS = 2
"""The number of ranks, unless an option names one."""

_OPTIONS = {
    "run the cell again": "run the program again",
    ", and in the error's .output": "",
    "World(…, gpus=True)": "--gpus",
    "World(…, timeout=…)": "--timeout",
    'World(…, backend="nccl")': "--world nccl",
    'World(…, backend="processes")': "--world processes",
}
"""The advice of messages: words for a notebook, and the same for a terminal."""

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
        error.args = (_for_terminal(error),)
        print(f"{_traceback(error)}{error}", file=sys.stderr)
        _save(error, options.report)
        return 1
    except CourseError as error:
        print(f"course run: {_for_terminal(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"course run: {_for_terminal(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def _traceback(error: RankError) -> str:
    """Return the traceback of the first rank that raised, if it names more lines than the message does."""
    raised = next(((report.rank, report.raised) for report in error.ranks if report.raised is not None), None)
    if error.kind != "raised" or raised is None or raised[1].type == "NoNumbers":  # a dry run's message is enough
        return ""
    rank, trace = raised[0], raised[1].traceback.rstrip()
    return f"rank {rank}: {trace}\n\n" if trace.count('\n  File "') > 1 else ""


def _for_terminal(error: BaseException) -> str:
    """Return the text of an error, which is written for notebooks, as a terminal needs it."""
    text = re.sub(r"\nNote: .* got a new process\..*", "", str(error))  # each run of the command has new ones
    for words, option in _OPTIONS.items():
        text = text.replace(words, option)
    return text


def _world(options: argparse.Namespace) -> World:
    program = Program.found(options.program, options.arguments, module=options.module)
    number = re.search(r"\d+$", options.world)  # as in nccl:8
    usual = int(number[0]) if number else GPUS if program.starts_ranks else RANKS
    return World(
        options.ranks or usual,
        backend=options.world,
        timeout=options.timeout,
        measure=options.measure,
        replay=options.replay,
        gpus=_gpus(options, program),
    )


def _gpus(options: argparse.Namespace, program: Program) -> bool | float:
    """Return the memory of each pretended GPU, or whether there are any. By default, there are if the program may ask
    for GPUs and the machine has none."""
    if options.gpus is None and not options.memory:
        can = options.world in ("simulated", "processes") and not torch.cuda.is_available()
        return can and program.asks_for_gpus
    return float(options.memory) * 1e9 if options.memory else bool(options.gpus)


def _save(run: Run | RankError, path: Path | None) -> None:
    """Write the page of the run, if there is a path for it."""
    if path is not None:
        run.report().save(path)
