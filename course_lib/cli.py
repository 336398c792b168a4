"""The `course` command. A subcommand is one function that adds itself to the parser, listed in `COMMANDS`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lib import doctor
from course_lib.errors import CourseError

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
FIRST_LESSON = "00-start-here.ipynb"

Subcommands = Any  # argparse does not name the type of what add_subparsers() returns


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="course", description="Sharded: learn ZeRO by building it.")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(subcommands)
    options, others = parser.parse_known_args(arguments)
    if options.command == "lab":
        options.jupyterlab_arguments = others
    elif others:
        parser.error(f"course {options.command} does not know {' '.join(others)}")
    try:
        return int(options.run(options))
    except CourseError as error:
        print(f"course {options.command}: {error}", file=sys.stderr)
        return 1


def add_lab(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "lab", help="open the first lesson in JupyterLab; JupyterLab's own options are passed on"
    )
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS, help="the lessons, or your copy of them")
    parser.set_defaults(run=run_lab)


def run_lab(options: argparse.Namespace) -> int:
    from jupyterlab.labapp import LabApp  # a second to import, which the other subcommands need not pay

    # Settings of the course: without them JupyterLab opens with a question about its newsletter.
    others = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([str(NOTEBOOKS / ".jupyter"), *others])
    LabApp.launch_instance(lab_arguments(options.notebooks, options.jupyterlab_arguments))
    return 0


def lab_arguments(notebooks: Path, others: Sequence[str]) -> list[str]:
    """What JupyterLab is told, so that it opens on the first lesson.

    It listens on the loopback address only, which is its default, and asks for its token.
    Raises CourseError where the lessons are not beside the package.
    """
    if not (notebooks / FIRST_LESSON).is_file():
        raise CourseError(
            f"{notebooks} has no {FIRST_LESSON}, so it is not the folder of the lessons, which stand beside "
            "course_lib in the repository. Run `make lab` there, or name the folder: --notebooks FOLDER."
        )
    arguments = [
        f"--ServerApp.root_dir={notebooks}",
        f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        print("You are root, so JupyterLab is told --allow-root: usual in a container, unwise elsewhere.")
        arguments.append("--allow-root")
    return [*arguments, *others]


def add_doctor(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("doctor", help="tell what this machine can run, and what is missing")
    parser.set_defaults(run=run_doctor)


def run_doctor(_: argparse.Namespace) -> int:
    findings = doctor.examine()
    print(doctor.page(findings))
    return 0 if doctor.lessons_can_run(findings) else 1


COMMANDS = (add_lab, add_doctor)

if __name__ == "__main__":
    sys.exit(main())
