"""`course doctor`: report what this machine can run, what is missing, and a remedy for each.

A check is a function that examines one thing and returns a `Finding`; `examine` calls them in the order of the page.
torch is imported inside the checks, because a torch that does not import is one of the findings.
"""

import importlib
import importlib.metadata
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from course_lib.commands import lab
from course_lib.errors import CourseError
from course_lib.progress import Progress

DISTRIBUTION = "sharded-course"
TORCH_TRIED = ("2.11", "2.12", "2.13", "2.14")
"""The releases that the tests of worlds, meter, `zero` and `parallel` were run with: see docs/limits.md."""

COMFORTABLE_BYTES = 4 * 2**30  # lesson 11 runs a program on two ranks, and each holds 1.7 GB at its peak
NAME_WIDTH = len("simulated worlds")
INSTALL_AGAIN = "run `make lab` again, or, in the clone: python -m pip install --editable ."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. `warn`: lessons run, with a limitation. `missing`: lessons do not run."""

    name: str
    status: Literal["ok", "warn", "missing"]
    value: str
    remedy: str = ""


def ok(name: str, value: str) -> Finding:
    return Finding(name=name, status="ok", value=value)


def warn(name: str, value: str, remedy: str = INSTALL_AGAIN) -> Finding:
    return Finding(name=name, status="warn", value=value, remedy=remedy)


def missing(name: str, value: str, remedy: str = INSTALL_AGAIN) -> Finding:
    return Finding(name=name, status="missing", value=value, remedy=remedy)


def examine() -> Iterator[Finding]:
    """Yield every check's finding, in the order of the page. Checks that use torch run only if it imports."""
    yield python()
    yield packages()
    for check in (file_names, torch_build):
        yield (finding := check())
        if finding.status == "missing":
            break
    else:
        yield from (check() for check in (simulated_worlds, worlds_of_processes, gpus))
    yield from (memory(), progress())


def lessons_can_run(findings: Iterable[Finding]) -> bool:
    """Return whether nothing that the lessons need is missing."""
    return all(finding.status != "missing" for finding in findings)


def entry(finding: Finding) -> str:
    """Format a finding as a line of plain text, with the remedy below if there is one."""
    line = f"{finding.status:<8} {finding.name:<{NAME_WIDTH}}  {finding.value}"
    return f"{line}\n{'':<8} {'':<{NAME_WIDTH}}  -> {finding.remedy}" if finding.remedy else line


def verdict(findings: Iterable[Finding]) -> str:
    """Summarize all findings in a sentence."""
    if lessons_can_run(findings):
        return "The lessons can run on this machine."
    return 'The lessons cannot run yet. Correct what is marked "missing", then run this again.'


def python() -> Finding:
    return ok("Python", f"{platform.python_version()}, {sys.executable}")


def packages() -> Finding:
    """Check that every package that the course needs is installed. pip has chosen versions that the course allows."""
    if version_of(DISTRIBUTION) is None:
        return missing("packages", f"{DISTRIBUTION} is not installed")
    required = [line for line in importlib.metadata.requires(DISTRIBUTION) or [] if "extra ==" not in line]
    absent = [line for line in required if version_of(re.split("[<>=!~ ]", line)[0]) is None]
    if absent:
        remedy = "run `make lab` again, or install these with: python -m pip install"
        return missing("packages", f"absent: {shlex.join(absent)}", remedy)
    return ok("packages", f"all {len(required)}")


def file_names() -> Finding:
    """Check that no file here, or beside the learner's notebooks, has a module's name: Python would import the file."""
    modules = sys.stdlib_module_names | {"torch", "numpy", "matplotlib", "IPython", "ipywidgets", "course_lib"}
    folders = dict.fromkeys([Path.cwd(), lab.folder()])
    found = [str(file) for folder in folders for file in sorted(folder.glob("*.py")) if file.stem in modules]
    if found:
        value = f"Python takes {', '.join(found)} for the module of that name"
        return missing("file names", value, "give the file a different name")
    return ok("file names", "none hides a module")


def version_of(package: str) -> str | None:
    """Return the installed version without its local part (torch calls its CPU build 2.13.0+cpu), or None."""
    try:
        return importlib.metadata.version(package).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_build() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that torch needs does not load
        return missing("torch", f"does not import: {error}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    value = f"{torch.__version__}, {build}, {torch.get_num_threads()} threads"
    tried = f"the course was tried with torch {', '.join(TORCH_TRIED)}"
    if torch.__version__.startswith(tuple(f"{release}." for release in TORCH_TRIED)):
        return ok("torch", f"{value}; {tried}")
    return warn("torch", value, f"{tried}. Install one of these if a lesson or a world fails")


def simulated_worlds() -> Finding:
    """Run two ranks in threads. They use private names of torch, which a different torch may lack."""
    import torch.distributed as dist

    try:
        importlib.import_module("course_lib.world.torch_hooks.private")
        from course_lib.world import World

        World(2, backend="simulated", timeout=20).run(dist.barrier)
    except (CourseError, ImportError, AttributeError, RuntimeError) as error:  # RuntimeError: gloo finds no loopback
        return missing("simulated worlds", str(error).splitlines()[0])
    return ok("simulated worlds", "two ranks in threads have met")


def worlds_of_processes() -> Finding:
    """Run two ranks in their own processes. They need a fork, and gloo between ports of 127.0.0.1."""
    import torch.distributed as dist

    try:
        from course_lib.world import World

        World(2, backend="processes", timeout=20, measure=False).run(dist.barrier)
    except (CourseError, OSError, ValueError) as error:  # no loopback, or the name of $TMPDIR is too long for a socket
        remedy = "lessons run without; World(4, backend='processes') does not"
        return warn("processes", str(error).splitlines()[0], remedy)
    return ok("processes", "two ranks in processes of their own have met")


def gpus() -> Finding:
    """List the GPUs. Several ranks need one each, and torch's NCCL, which builds for Linux have."""
    import torch

    if torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        cards = ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in properties)
        if torch.distributed.is_nccl_available():
            return ok("GPUs", f"{cards}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
        return warn("GPUs", f"{cards}, but this build of torch lacks NCCL", "install a build of torch for Linux")
    if shutil.which("nvidia-smi"):
        value = "this machine has the NVIDIA driver, but torch sees no GPU"
        return warn("GPUs", value, "install the CUDA build of torch, and see what nvidia-smi says")
    return ok("GPUs", "none, and the lessons need none")


def memory() -> Finding:
    free_bytes = psutil.virtual_memory().available
    wanted = f"lesson 11, which needs the most, wants {COMFORTABLE_BYTES / 2**30:.0f} GiB"
    value = f"{free_bytes / 2**30:.1f} GiB free; {wanted}"
    if free_bytes >= COMFORTABLE_BYTES:
        return ok("memory", value)
    return warn("memory", value, "close other programs")


def progress() -> Finding:
    """Name the file of attempts. If it cannot be written, each card says so."""
    return ok("progress", str(Progress().path))
