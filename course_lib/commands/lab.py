"""`course lab`: open JupyterLab on the lesson that the learner worked on last, with the course's settings."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import CourseError
from ..syllabus import NOTEBOOKS

FIRST_LESSON = "00-start-here.ipynb"
SHIPPED = ".shipped"
"""In the folder of the copies: each lesson as it was when its copy was last brought up to date."""


def folder() -> Path:
    """Return the folder of the copies: in the clone, or in the home folder if the course cannot be written to."""
    in_a_clone = not NOTEBOOKS.is_relative_to(Path(__file__).resolve().parents[1])
    writable = in_a_clone and os.access(NOTEBOOKS.parent, os.W_OK)
    return NOTEBOOKS.parent / "work" if writable else Path.home() / "sharded"


def launch(notebooks: Path, others: Sequence[str]) -> None:
    """Open the lessons in `notebooks`, and return when JupyterLab ends.

    Args:
        notebooks: the course's own folder, or a copy of it.
        others: further arguments for JupyterLab.

    Raises:
        CourseError: the lessons are not there.
    """
    from jupyterlab.labapp import LabApp  # takes a second to import

    # The course's settings. Without them JupyterLab opens with a question about its newsletter.
    paths = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([str(NOTEBOOKS / ".jupyter"), *paths])
    # Threads of torch that wait for each other sleep. By default they spin, and while another program uses the CPU,
    # small operators then take many times as long. OpenMP reads this when a kernel loads torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A cell with `!course run` and a terminal find the command.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    LabApp.launch_instance(lab_arguments(notebooks, others))


def lab_arguments(notebooks: Path, others: Sequence[str]) -> list[str]:
    """Return JupyterLab's arguments. By default it listens on the loopback address only, and asks for its token.

    Raises:
        CourseError: the lessons are not there.
    """
    if not (notebooks / FIRST_LESSON).is_file():
        raise CourseError(
            f"{notebooks} has no {FIRST_LESSON}, so it is not a folder of the lessons. Run `make lab` in the "
            "repository, or name the folder: --notebooks FOLDER."
        )
    arguments = [f"--ServerApp.root_dir={notebooks}", f"--LabApp.default_url=/lab/tree/{last_saved(notebooks)}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        print("You are root, so JupyterLab gets --allow-root: usual in a container, unwise elsewhere.")
        arguments.append("--allow-root")
    return [*arguments, *others]


def last_saved(notebooks: Path) -> str:
    """Return the name of the copy that was saved last; of the first lesson if the learner has saved none."""
    copies = [notebooks / shipped.name for shipped in (notebooks / SHIPPED).glob("*.ipynb")]
    saved = {copy: copy.stat().st_mtime for copy in copies if copy.exists()}
    begun = [copy for copy in saved if saved[copy] > (notebooks / SHIPPED / copy.name).stat().st_mtime]
    return max(begun, key=saved.__getitem__).name if begun else FIRST_LESSON
