"""The `course` command: its subcommands and their arguments, and a function for each that runs it."""

import argparse
import atexit
import errno
import io
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from course_lib.commands import doctor, explain, lab, plan
from course_lib.commands.arguments import (
    INSTEAD,
    add_limits_and_reports,
    add_plan_arguments,
    add_run_arguments,
    keeps_inputs,
    keeps_reports,
)
from course_lib.errors import CourseError
from course_lib.progress import CourseMap, Progress
from course_lib.syllabus import lessons

Report = Callable[[Sequence[Any]], str]
CSV = "utf-8-sig"  # Excel reads UTF-8 only after a byte order mark, which Canvas and Moodle accept
Subcommand = Callable[[argparse.Namespace], int | None]
"""Runs with its options, and returns its exit code; None for 0."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack a character of a bar, or of a file's name
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="course", description="Sharded: learn ZeRO by building it.")
    parser.add_argument("--version", action="version", version=f"Sharded {doctor.version_of(doctor.DISTRIBUTION)}")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_subcommands(subcommands)
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) in ([], ["plan"]):
        (subcommands.choices["plan"] if arguments else parser).print_help()
        return 2
    if arguments[:1] == ["plan"]:
        arguments = [re.sub("^--[^=]+", lambda option: option[0].replace("_", "-"), one) for one in arguments]
    options, others = parser.parse_known_args(arguments)
    if options.command == "lab":
        options.jupyterlab_arguments = others
    elif others:  # the subcommand's own parser shows the known options
        names = [one.partition("=")[0] for one in others if options.command == "plan"]
        hints = [f". Give {INSTEAD[name]}" for name in names if name in INSTEAD]
        unknown = f"course {options.command} does not know {' '.join(others)}"
        subcommands.choices[options.command].error("".join([unknown, *hints]))
    try:
        code = options.run(options) or 0
        if sys.stdout is not None:  # the shell closes it with `>&-`
            sys.stdout.flush()
        return code
    except CourseError as error:
        print(f"course {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"course {options.command}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        if error.errno == errno.ENOSPC:  # else who reads the output has left, such as `head`
            print(f"course {options.command}: the output cannot be written ({error.strerror}).", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        return 1


def add_subcommands(subcommands: Any) -> None:  # argparse does not name the type of what add_subparsers() returns
    """Add the subcommands, in the order in which `course --help` lists them."""

    def add(name: str, run: Subcommand, help: str) -> Any:
        parser = subcommands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        parser.set_defaults(run=run)
        return parser

    lab = add("lab", run_lab, "open the lesson you worked on last in JupyterLab, whose own options are passed on")
    lab.add_argument("--notebooks", type=Path, metavar="FOLDER", help="lessons to open instead of your copies")
    add("copy", run_copy, "make your copies of the lessons, or bring later versions in, as `lab` does")
    add_run_arguments(add("run", run_program, "run a program on ranks, as torchrun does, and measure it"))
    add_plan_arguments(add("plan", plan.run, "what a training would hold, send and take, and which way fits your GPUs"))
    explain = add("explain", run_explain, "print your latest attempt, and what its check found")
    explain.add_argument("exercise", nargs="?", metavar="EXERCISE", help="by default the one that you tried last")
    check = add("check", run_check, "grade notebooks, each in a fresh kernel")
    add_limits_and_reports(check.add_argument)
    rerun = add("rerun", run_rerun, "run lessons on a different world, compared with simulated ranks")
    rerun.add_argument("notebooks", type=Path, nargs="*", metavar="NOTEBOOK", help="by default all lessons")
    rerun.add_argument("--world", required=True, help="processes, nccl, or nccl:8 for 8 GPUs")
    rerun.add_argument("--hardware", default="laptop", help="the hardware for which times are planned (laptop)")
    validate = add("validate", run_validate, "compare the planner with published runs on GPUs")
    validate.add_argument("--rows", action="store_true", help="print every run, not only the summary")
    add("progress", run_progress, "print what is done, and what to do next")
    add("recipe", run_recipe, "run the recipe of torch's ZeroRedundancyOptimizer, and measure it")
    add("doctor", run_doctor, "print what this machine can run, and what is missing")


def run_lab(options: argparse.Namespace) -> None:
    from course_lib.commands import work  # loads nbformat, which `course run` does without

    lab.launch(options.notebooks or work.update(), options.jupyterlab_arguments)


def run_copy(_: argparse.Namespace) -> None:
    from course_lib.commands import work

    print(work.update())


def run_program(options: argparse.Namespace) -> int:
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the server, which Ctrl-C must not end
    if options.world == "processes" and hasattr(os, "fork"):
        _start_server(gpus=options.gpus is not False)
    signal.signal(signal.SIGINT, _end if usual is signal.default_int_handler else usual)  # a shell may have it ignored
    from course_lib.commands import run  # loads torch

    signal.signal(signal.SIGINT, usual)
    return run.run(options)


def _end(*_: object) -> None:
    """End this process after Ctrl-C. Torch, while it is imported, would drop a `KeyboardInterrupt`."""
    print("course run: interrupted", file=sys.stderr, flush=True)
    atexit._run_exitfuncs()
    os._exit(130)


def _start_server(*, gpus: bool) -> None:
    """Start the server that forks ranks: it loads torch while this process does."""
    hooks = "course_lib.world.torch_hooks.gpus"  # which loads most of it when a run begins
    modules = ["course_lib.world.processes.worker", *([f"{hooks}.groups", f"{hooks}.training"] if gpus else [])]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    forkserver.ensure_running()


def run_check(options: argparse.Namespace) -> int:
    from . import grading  # loads Jupyter's client, which other subcommands do not need

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # like Ctrl-C: end the processes that notebooks started
    seconds, memory_bytes = options.seconds, int(options.memory * 2**30)
    limits = grading.Limits(seconds=seconds, turn_seconds=seconds / 3, memory_bytes=memory_bytes)
    course = lessons() if options.gradebook or options.page else ()
    reports: list[tuple[Path | None, str, Report]] = [
        (options.json, "utf-8", grading.as_json),
        (options.csv, CSV, grading.as_csv),
        (options.gradebook, CSV, partial(grading.as_gradebook, course=course)),
        (options.page, "utf-8", partial(grading.as_page, course=course)),
    ]
    for file, *_ in reports:
        keeps_inputs(file, options.notebooks)
    keeps_reports({f"--{name}": getattr(options, name) for name in ("json", "csv", "gradebook", "page")})
    graded: list[grading.Graded] = []
    done = _earlier(options.json, grading.from_json) if options.go_on else []
    _write(reports, [*done])  # now and after each notebook: a class takes hours, and results so far are kept
    for one in grading.grade(options.notebooks, limits, jobs=options.jobs, done=done):
        print(one, flush=True)
        graded.append(one)
        _write(reports, [*graded, *(one for one in done if one.notebook not in {other.notebook for other in graded})])
    passed = sum(one.passed for one in graded)
    print(f"{passed} of {len(graded)} notebooks passed")
    return 0 if passed == len(graded) else 1


def _earlier(file: Path | None, read: Callable[[str], list[Any]]) -> list[Any]:
    """Return the grades that an earlier run has written; none if there was no such run."""
    if file is None:
        raise CourseError("--continue needs --json FILE, the file of the run that was stopped. Name it.")
    try:
        return read(file.read_text("utf-8")) if file.exists() else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(f"{file} is not a file that --json has written ({error}). Name a different one.") from error


def _write(reports: Iterable[tuple[Path | None, str, Report]], graded: Sequence[Any]) -> None:
    for file, encoding, text in reports:
        try:
            if file and (file.is_symlink() or (file.exists() and not file.is_file())):  # /dev/stdout stays what it is
                file.write_text(text(graded), encoding, "backslashreplace", newline="")
            elif file:
                new = file.with_name(f"{file.name}.new")  # a grader that is killed leaves the old file or the new one
                new.write_text(text(graded), encoding, "backslashreplace", newline="")
                new.replace(file)
        except OSError as error:
            raise CourseError(f"{file} cannot be written ({error.strerror}). Name another file.") from error


def run_explain(options: argparse.Namespace) -> None:
    print(explain.explain(options.exercise, Progress()))


def run_rerun(options: argparse.Namespace) -> int:
    from course_lib.commands import rerun  # loads torch and Jupyter's client, which takes seconds
    from course_lib.planner import hardware

    machine = hardware(options.hardware)
    notebooks = options.notebooks or [lesson.path for lesson in lessons()]
    executed = rerun.rerun(notebooks, options.world, Path("rerun"))  # refuses what cannot be
    print("Each notebook is executed twice, on simulated ranks first. That takes minutes.", flush=True)
    done = []
    for one in executed:
        print(f"{one.notebook.name}: {'failed' if one.failed else 'passed'}, see {one.copy}", flush=True)
        done.append(one)
    print(rerun.table(done, options.world, machine))
    return 1 if any(one.failed for one in done) else 0


def run_validate(options: argparse.Namespace) -> None:
    from course_lib import planner

    found = planner.validate()
    print(f"{found.table()}\n\n{found}" if options.rows else found)


def run_recipe(_: argparse.Namespace) -> None:
    from course_lib.commands import recipe  # loads torch, which other subcommands do not need

    for part in recipe.report():
        print(part, flush=True)


def run_doctor(_: argparse.Namespace) -> int:
    findings = []
    for finding in doctor.examine():
        print(doctor.entry(finding), flush=True)  # print immediately: some checks take seconds
        findings.append(finding)
    print(f"\n{doctor.verdict(findings)}")
    return 0 if doctor.lessons_can_run(findings) else 1


def run_progress(_: argparse.Namespace) -> int:
    progress = Progress()
    print(CourseMap(lessons(), progress.summary()))
    if progress.notice:
        print(progress.notice, file=sys.stderr)
    return 1 if progress.notice else 0


if __name__ == "__main__":
    sys.exit(main())
