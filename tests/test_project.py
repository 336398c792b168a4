"""The project as a whole: its pins agree, its imports point one way, its files are fit to publish."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path
from types import ModuleType

import grimp
import nbformat
import pytest
import yaml
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from course_lib import planner, zero
from course_lib.commands import doctor
from course_lib.syllabus import SHORT_ROUTE, lessons
from docs.conf import zip_planner

BRIDGE_MINUTES = 20
ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())

# Versions

PROJECT = PYPROJECT["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository")
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
RANGES = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
)


def test_each_version_that_make_installs_is_exact_and_in_the_range_of_the_course() -> None:
    assert PINS["torch"] == "2.13.0"
    for name, version in PINS.items():
        assert name == canonicalize_name(name)
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}"
    for range_ in RANGES:
        assert PINS[canonicalize_name(range_.name)] in range_.specifier, f"{range_}: run `make lock`"


def test_doctor_names_the_releases_of_torch_in_the_table_of_limits_which_the_workflow_runs_each_night() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    table = re.findall(r"^\| (\d+\.\d+\.\d+) \|", (ROOT / "docs/limits.md").read_text(), re.M)

    assert jobs["torches"]["strategy"]["matrix"]["torch"] == table
    assert {release.rpartition(".")[0] for release in [*table, PINS["torch"]]} == {*doctor.TORCH_TRIED}


def test_whatever_is_installed_for_the_course_has_its_version_in_constraints() -> None:
    missing = {name: version for name, version in installed_closure().items() if PINS.get(name) != version}

    assert not missing, "run `make lock`, or write into constraints.txt:\n" + "\n".join(
        f"{name}=={version}" for name, version in sorted(missing.items())
    )


def test_every_version_is_for_the_oldest_python_too() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    wanted = {name: importlib.metadata.metadata(name).get("Requires-Python") or "" for name in installed_closure()}

    assert {name: python for name, python in wanted.items() if f"{oldest}.0" not in SpecifierSet(python)} == {}


def requirements(package: str) -> list[Requirement]:
    return [Requirement(line) for line in importlib.metadata.requires(package) or []]


def installed_closure() -> dict[str, str]:
    """What the course, its tests and their requirements need on this machine, with the installed versions.

    Left out is what torch's CUDA build pins for itself.
    """
    versions: dict[str, str] = {}
    waiting = [("sharded-course", frozenset({"", "test"}))]
    seen = set(waiting)
    while waiting:
        package, extras = waiting.pop()
        for requirement in requirements(package):
            if not any(not requirement.marker or requirement.marker.evaluate({"extra": e}) for e in extras):
                continue
            name = canonicalize_name(requirement.name)
            if not (name.startswith(("nvidia-", "cuda-", "triton")) and "==" in str(requirement.specifier)):
                versions[name] = importlib.metadata.version(name).split("+")[0]
            needed = (name, frozenset({"", *requirement.extras}))
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return versions


@pytest.mark.slow
def test_a_wheel_carries_the_lessons_and_copies_them_to_the_learners_home(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    home.mkdir()
    for folder in ("course_lib", "notebooks"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source]
    pyproject = (source / "pyproject.toml").read_text("utf-8")
    urls = '[project.urls]\nRepository = "https://github.com/owner/name"\n'
    (source / "pyproject.toml").write_text(pyproject if REPOSITORY else f"{pyproject}\n{urls}", "utf-8")
    subprocess.run(wheel, check=True, capture_output=True, timeout=240)
    (built,) = tmp_path.glob("sharded_course-*.whl")
    shutil.unpack_archive(built, tmp_path / "installed", "zip")
    (about,) = (tmp_path / "installed").glob("*.dist-info/METADATA")
    assert f"]({REPOSITORY or 'https://github.com/owner/name'}/raw/HEAD/docs/film.png)" in about.read_text("utf-8")
    assert not re.search(r"\]\((?!https:)", about.read_text("utf-8")), "PyPI has no files beside the README"

    environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(tmp_path / "installed")}
    copy = [sys.executable, "-m", "course_lib.commands.cli", "copy"]
    subprocess.run(copy, check=True, capture_output=True, timeout=120, cwd=home, env=environment)
    for name in ("replay.js", "lesson.css", "digits.npz"):
        assert list((tmp_path / "installed" / "course_lib").rglob(name)), name
    lessons = [path.name for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    assert [path.name for path in sorted((home / "sharded").glob("*.ipynb"))] == lessons


def test_conda_make_and_pip_install_the_same() -> None:
    *conda, pip = ENVIRONMENT["dependencies"]
    makefile = (ROOT / "Makefile").read_text()

    assert pip == {"pip": ["--constraint constraints.txt", "--editable .[test]"]}
    assert "--constraint constraints.txt --editable '.[test]'" in makefile
    assert conda == ["python=3.11", "pip"]


def test_the_oldest_python_is_the_same_everywhere() -> None:
    major, minor = PROJECT["requires-python"].removeprefix(">=").split(".")

    assert PYPROJECT["tool"]["mypy"]["python_version"] == f"{major}.{minor}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{major}{minor}"
    assert f"sys.version_info < ({major}, {minor})" in (ROOT / "Makefile").read_text()
    assert f"Python {major}.{minor} or newer" in (ROOT / "README.md").read_text()


# The CPU build of torch. urllib answers a data: address by itself, and no machine has the folder /nowhere.


@pytest.mark.parametrize(
    ("variables", "added"),
    [
        (["CPU_INDEX=data:,index"], True),
        (["CPU_INDEX=data:,index", "NVIDIA=/dev/nvidia0"], False),
        (["CPU_INDEX=data:,index", "PIP_EXTRA_INDEX_URL=https://example.org/cuda"], False),
        (["CPU_INDEX=data:,index", "SYSTEM=Darwin"], False),
        (["CPU_INDEX=file:///nowhere"], False),
        (["CPU_INDEX="], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_make_adds_the_index_of_cpu_builds_where_it_helps(variables: list[str], added: bool) -> None:
    machine = ["SYSTEM=Linux", "NVIDIA=", "PIP_EXTRA_INDEX_URL=", *variables]
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = ["make", "--dry-run", "--always-make", f"PYTHON={sys.executable}", ".venv/installed", *machine]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert "pip install" in printed
    assert ("--extra-index-url data:,index" in printed) == added


# README.md


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "notebooks/00-start-here.ipynb"])
def test_a_first_page_counts_lessons_exercises_and_hours(page: str) -> None:
    course = lessons()
    exercises = {name for lesson in course for name in lesson.exercises}
    hours = round(sum(lesson.minutes for lesson in course) / 60)

    text = (ROOT / page).read_text()
    assert f"about {hours} hours: {len(course)} lessons with {len(exercises)} exercises" in text


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/validation.md", "notebooks/12-capstone.ipynb"])
def test_a_page_counts_the_published_runs(page: str) -> None:
    table = (ROOT / "docs/validation.md").read_text()  # tests/planner/test_validation.py counts them
    (count,) = re.findall(r"^\| ran \| (\d+) \|", table, re.MULTILINE)
    assert f" {int(count):,} published runs" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "notebooks/00-start-here.ipynb"])
def test_a_first_page_has_the_hours_of_the_short_route(page: str) -> None:
    route = [lesson.minutes for lesson in lessons() if lesson.on_short_route]
    assert len(route) == len(SHORT_ROUTE)
    half_hours = round((sum(route) + BRIDGE_MINUTES) / 30)
    assert f"about {half_hours / 2:g} hours" in (ROOT / page).read_text()
    assert f"with {BRIDGE_MINUTES} minutes for the bridge" in (ROOT / "notebooks/00-start-here.ipynb").read_text()


def test_the_readmes_numbers_are_those_of_the_benchmarks() -> None:
    readme, results = ((ROOT / page).read_text() for page in ("README.md", "benchmarks/RESULTS.md"))

    assert "about a hundredth of a second" in readme
    (failure_seconds,) = re.findall(r"^\| World\(4\), a rank's failure[^|]*\| ([\d.]+) s \|", results, re.MULTILINE)
    assert 0.005 < float(failure_seconds) < 0.02
    assert "7.5 B parameters on 64 ranks" in readme
    assert "7.5 B parameters, Stage3 on 64 ranks" in results


def test_the_readme_names_the_address_of_the_repository_if_there_is_one() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"git clone (\S+)", readme) == ([REPOSITORY] if REPOSITORY else [])
    assert len(readme.splitlines()) < 100


@pytest.mark.parametrize(
    ("picture", "largest_bytes"), [("film", 1_000_000), ("screenshot", 300_000), ("static/share", 100_000)]
)
def test_the_readmes_pictures_are_small(picture: str, largest_bytes: int) -> None:
    assert (ROOT / "docs" / f"{picture}.png").stat().st_size < largest_bytes


# Imports and folders

SOURCES = sorted((ROOT / "course_lib").rglob("*.py"))


def outside(path: Path) -> set[str]:
    """The packages that the module at `path` imports, other than Python's own library and this course."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).partition(".")[0])
    return names - sys.stdlib_module_names - {"course_lib"}


def test_imports_keep_the_contracts_of_pyproject() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == 0


@pytest.mark.slow
@pytest.mark.parametrize("package", [zero, planner])
def test_each_arrow_in_a_packages_docstring_is_an_import(package: ModuleType) -> None:
    graph = grimp.build_graph("course_lib", cache_dir=None)
    found = sorted(graph.find_descendants(package.__name__), key=len)  # a folder before the module of its name
    modules = {name.rpartition(".")[2]: name for name in found}
    text = (package.__doc__ or "").replace("stages", "stage1, stage2, stage3")
    names = r"\w+(?:, \w+)*"
    for chain in re.findall(rf"{names}(?: (?:->|<-) {names})+", text):
        parts = re.split(" (->|<-) ", chain)
        for left, arrow, right in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
            for pair in product(left.split(", "), right.split(", ")):
                importer, imported = (modules[name] for name in (pair if arrow == "->" else pair[::-1]))
                assert graph.direct_import_exists(importer=importer, imported=imported), f"{chain}: {importer}"


@pytest.mark.parametrize(("package", "allowed"), [("zero", {"torch"}), ("planner", set())])
def test_what_the_algorithms_and_the_planner_import(package: str, allowed: set[str]) -> None:
    for path in (ROOT / "course_lib" / package).rglob("*.py"):
        assert outside(path) <= allowed, path


def test_the_sites_planner_needs_no_module_that_its_page_lacks(tmp_path: Path) -> None:
    zip_planner(tmp_path / "planner.zip")
    shutil.unpack_archive(tmp_path / "planner.zip", tmp_path)
    without_packages = [sys.executable, "-E", "-S", "-s", "-c", "import course_lib.widgets.planner.page"]
    subprocess.run(without_packages, cwd=tmp_path, check=True, timeout=60)


def test_every_package_that_the_course_imports_is_one_of_its_requirements() -> None:
    distributions = importlib.metadata.packages_distributions()
    used = {
        canonicalize_name(name) for path in SOURCES for top in outside(path) for name in distributions.get(top, [top])
    }

    declared = [*PROJECT["dependencies"], *EXTRAS["cluster"], *EXTRAS["deepspeed"]]
    assert used <= {canonicalize_name(Requirement(line).name) for line in declared}


def test_a_folder_has_at_most_fifteen_entries() -> None:
    engine = [path for path in SOURCES if "lessons" not in path.parts]  # a lesson has as many files as exercises
    for folder in {path.parent for path in engine}:
        entries = {entry.name for entry in folder.iterdir()} - {"__pycache__", "__init__.py", "lessons"}
        assert len(entries) <= 15, f"{folder}: {len(entries)}"


# Files

PATH_OF_A_MACHINE = re.compile(r"(?<![\w./~-])/(?:home|Users|root|work|srv|mnt|media|tmp)/\w|\b[A-Z]:\\\w")
PACKAGE_INDEX = re.compile(r"https?://[^\s\"'`)]*(?:pypi|pythonhosted|registry|/simple\b|/whl\b)[^\s\"'`)]*")
INDEXES_FOR_READERS = {
    "https://download.pytorch.org/whl/cpu",
    "https://download.pytorch.org/whl/$TORCH",  # Dockerfile: a build for CUDA
    "https://download.pytorch.org/whl/nightly/cpu",  # the nightly workflow
}


def published_files() -> list[Path]:
    """Every text file that git tracks, or would if it were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("git, which lists the project's files, does not know this folder")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix not in {".png", ".db", ".npz", ".mo"}]


def private_places(text: str) -> set[str]:
    """Folders of one machine and package indexes that `text` names."""
    return set(PATH_OF_A_MACHINE.findall(text)) | set(PACKAGE_INDEX.findall(text)) - INDEXES_FOR_READERS


def test_no_file_names_a_folder_of_one_machine_or_a_package_index() -> None:
    files = published_files()
    found = {str(path.relative_to(ROOT)): private_places(path.read_text("utf-8")) for path in files}

    assert "README.md" in found
    assert not {name: places for name, places in found.items() if places}


@pytest.mark.parametrize(
    ("before", "after"),
    [("open('/", "home/ann')"), ("/", "Users/ann"), ("C:", "\\Users"), ("https://py", "pi.org/simple/")],
)
def test_a_private_place_is_found(before: str, after: str) -> None:
    assert private_places(before + after)  # in two pieces, so that this file does not name one


def test_an_ordinary_path_or_address_is_not_taken_for_a_private_place() -> None:
    assert not private_places("tests/home/x, ~/work/x, /usr/bin/env, https://example.org/home/ann")


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", page.read_text())
    local = [target.partition("#")[0] for target in targets if not target.startswith(("http", "#"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_each_question_names_a_heading_that_its_lesson_has() -> None:
    page = (ROOT / "docs/how-to/questions.md").read_text()
    places = re.findall(r"\[lesson (\d+)\]\(\.\./\.\./notebooks/([^)]+)\), \*([^*]+)\*", page)
    assert len(places) == page.count("[lesson ") > 20
    for number, name, heading in places:
        assert name.startswith(f"{number}-")
        lesson = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        headings = re.findall(r"^#+ (.*)$", "\n".join(cell.source for cell in lesson.cells), re.MULTILINE)
        assert heading in headings, f"{name} has no {heading!r}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.name)
def test_a_lesson_opens_without_asking_for_a_kernel(path: Path) -> None:
    assert nbformat.read(path, as_version=4).metadata.kernelspec.name == "python3"
