"""`course run`: run a program on ranks as torchrun would, and print what each rank held, sent and waited for."""

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from functools import partial

import torch

from ..errors import CourseError, CourseWarning
from ..meter import Communication, MemoryReport, is_learners
from ..planner import size
from ..world import Program, RankError, Run, World, grouped, in_ranges

RANKS = 2
"""The number of ranks if nothing says it."""


def run(options: argparse.Namespace) -> int:
    """Run the program with these options of the command, and return the exit code."""
    try:
        world = _world(options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CourseWarning)  # the report has them
            world.run_file(
                options.program, *options.arguments, module=options.module, then=partial(_reported, options, world)
            )
    except RankError as error:
        _save(options, error)
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
    if options.replay and options.report is None:
        raise CourseError("--replay keeps values for the page of a run. Say where to write it: --report run.html.")
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


def _reported(options: argparse.Namespace, world: World, run: Run) -> None:
    print("\n".join(report(world, run)), flush=True)
    _save(options, run)


def _save(options: argparse.Namespace, run: Run | RankError) -> None:
    if options.report is not None:
        try:
            run.report().save(options.report)
        except OSError as error:
            raise CourseError(f"{options.report} cannot be written ({error.strerror}). Name another file.") from None


def _print_traceback(error: Exception) -> None:
    trace = error.__traceback__
    while trace is not None and not is_learners(trace.tb_frame.f_code):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


# -- the report ------------------------------------------------------------------------------------------------------


def report(world: World, run: Run) -> Iterator[str]:
    """Yield the lines of a report: what ranks held, sent and waited for, equal ranks together, and warnings."""
    dry = world.backend == "dryrun"
    ran = [sent.rank for sent in run.comm]
    title = f"rank {ran[0]} of {world.world_size}" if dry else f"{len(ran)} rank{'s' if len(ran) > 1 else ''}"
    seconds = "" if dry else f", {max(one.end - one.start for one in run.timeline):.1f} s"
    yield f"-- {title}{seconds}"
    texts = {rank: _sent(run.comm[rank]) for rank in ran}
    if world.measure:
        texts = {rank: f"{_peak(run.memory[rank], world)}\n{text}" for rank, text in texts.items()}
    for ranks, text in grouped(texts):
        yield f"   {in_ranges(ranks)}"
        yield from (f"     {line}" for line in text.splitlines())
        if not dry:
            yield f"     waited {_waited(run, ranks)} s"
    if not dry and (slowest := run.slowest()).startswith("Slowest"):  # else no two ranks called a collective
        yield f"   {slowest}"
    for warning in run.warnings:
        yield f"   Warning: {warning}"


def _peak(memory: MemoryReport, world: World) -> str:
    peak = memory.at_peak
    if peak is None:
        return "held nothing on the pretended GPU (--no-gpus counts all memory)" if world.gpus else "held nothing"
    parts = [f"{category} {size(nbytes)}" for category, nbytes in peak.by_category.items() if nbytes]
    where = " on the pretended GPU" if world.gpus else ""
    return f"peak {size(peak.total_bytes)}{where}: {', '.join(parts)}"


def _sent(sent: Communication) -> str:
    counts = {op: sent.count(op) for op in dict.fromkeys(call.op for call in sent.calls) if op != "init_process_group"}
    kinds = [f"{count} {op}" + (f" {size(sent.by_op[op])}" if sent.by_op[op] else "") for op, count in counts.items()]
    return f"sent {size(sent.sent_bytes)}{': ' if kinds else ''}{', '.join(kinds)}"


def _waited(run: Run, ranks: tuple[int, ...]) -> str:
    """Return the seconds that these ranks only waited, such as `0.1 to 0.4`."""
    seconds = [f"{sum(one.seconds for one in run.timeline[rank].waited):.1f}" for rank in ranks]
    least, most = min(seconds, key=float), max(seconds, key=float)
    return least if least == most else f"{least} to {most}"
