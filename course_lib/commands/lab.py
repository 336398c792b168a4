"""JupyterLab as `course lab` opens it: on the first lesson, with the course's settings, its saved figures shown."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import CourseError
from ..progress import NOTEBOOKS

FIRST_LESSON = "00-start-here.ipynb"


def launch(notebooks: Path, others: Sequence[str]) -> None:
    """Open the lessons in `notebooks`, and return when JupyterLab ends.

    Args:
        notebooks: the course's own folder, or a copy of it.
        others: what else JupyterLab is told.

    Raises:
        CourseError: the lessons are not there, or JupyterLab has no folder to write in.
    """
    from jupyterlab.labapp import LabApp  # a second to import, which the other subcommands need not pay

    # Settings of the course: without them JupyterLab opens with a question about its newsletter.
    paths = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([str(NOTEBOOKS / ".jupyter"), *paths])
    arguments = lab_arguments(notebooks, others)
    try_jupyters_folder()
    trust(NOTEBOOKS)
    LabApp.launch_instance(arguments)


def lab_arguments(notebooks: Path, others: Sequence[str]) -> list[str]:
    """What JupyterLab is told, so that it opens on the first lesson.

    It listens on the loopback address only, which is its default, and asks for its token.

    Raises:
        CourseError: the lessons are not there.
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


def try_jupyters_folder() -> None:
    """Make the folder in which JupyterLab keeps what it knows of its kernels, and try to write there.

    Raises:
        CourseError: it cannot be written, as in a home that is read-only.
    """
    from jupyter_core.paths import jupyter_data_dir

    folder = Path(jupyter_data_dir())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise CourseError(
            f"{folder} cannot be written ({error.strerror}), and JupyterLab keeps there what it knows of its kernels. "
            "Make it writable, or name a home that is: HOME=/a/folder/of/yours make lab"
        ) from error


def trust(notebooks: Path) -> None:
    """Let JupyterLab show the saved figures of the lessons, which it strips from notebooks that it does not trust.

    They come with this code, which runs anyway. A notebook that somebody else has put in their place, or beside them,
    may hold scripts that run as soon as it is opened: so only those are trusted that are as git has them.
    """
    from nbformat import read
    from nbformat.sign import NotebookNotary

    notary = NotebookNotary()
    for path in as_shipped(notebooks):
        notary.sign(read(path, as_version=4))


def as_shipped(notebooks: Path) -> list[Path]:
    """The lessons that are unchanged since they came; none, and a word about it, where there is no git to tell."""
    try:
        unchanged = _listed(notebooks) - _listed(notebooks, "--modified")
    except (OSError, subprocess.CalledProcessError):
        print("Without git, JupyterLab cannot tell the course's notebooks from others: figures show once cells ran.")
        return []
    return [notebooks / name for name in sorted(unchanged)]


def _listed(notebooks: Path, *which: str) -> set[str]:
    command = ["git", "-C", str(notebooks), "ls-files", "-z", *which, "--", "[0-9][0-9]-*.ipynb"]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")} - {""}
