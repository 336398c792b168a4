import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.commands import cli, doctor, lab
from course_lib.commands.doctor import Finding
from course_lib.errors import CourseError


def test_lab_passes_jupyterlab_its_own_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyterlab.labapp import LabApp

    given: list[str] = []
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(LabApp, "launch_instance", given.extend)
    monkeypatch.setattr(lab, "lab_arguments", lambda notebooks, others: others)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    monkeypatch.setenv("PATH", "mine")

    assert cli.main(["lab", "--notebooks", str(tmp_path), "--no-browser", "--port", "9999"]) == 0
    assert given == ["--no-browser", "--port", "9999"]
    assert os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)[1:] == ["mine"]
    assert os.environ["PATH"].split(os.pathsep) == [os.path.dirname(sys.executable), "mine"]


def test_lab_says_where_it_looked_for_the_lessons(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=r"has no 00-start-here\.ipynb.* Run `make lab` in the repository, or"):
        lab.lab_arguments(tmp_path, [])


@pytest.mark.parametrize("user", [0, 1000])
def test_only_root_is_let_in_as_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int
) -> None:
    (tmp_path / "00-start-here.ipynb").touch()
    monkeypatch.setattr(os, "geteuid", lambda: user)

    is_root = user == 0
    assert ("--allow-root" in lab.lab_arguments(tmp_path, [])) == is_root
    assert ("usual in a container" in capsys.readouterr().out) == is_root


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("missing", 1)])
def test_doctor_exits_with_1_when_lessons_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding(name="torch", status=status, value="as it is")])

    assert cli.main(["doctor"]) == code
    assert "as it is" in capsys.readouterr().out


def test_an_error_for_the_reader_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "--notebooks", str(tmp_path)]) == 1

    error = capsys.readouterr().err
    assert error.startswith("course lab: ") and error.count("\n") == 1


def test_an_interrupt_is_told_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_doctor", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "course doctor: interrupted\n"


def test_an_option_that_a_subcommand_does_not_know_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["doctor", "--fast"])

    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert "course doctor does not know --fast" in error and "usage: course doctor" in error


@pytest.mark.parametrize("seconds", ["nan", "0", "-1", "inf", "5 minutes"])
def test_what_is_no_limit_is_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["check", "a.ipynb", "--seconds", seconds])
    assert f"argument --seconds: invalid positive value: '{seconds}'" in capsys.readouterr().err


def test_without_a_subcommand_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2

    listed = capsys.readouterr().out
    assert all(f"\n    {name} " in listed for name in ("lab", "check", "rerun", "progress", "recipe", "doctor"))


def test_the_version_is_printed_without_loading_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "course_lib.commands.cli", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    assert process.stdout == f"Sharded {importlib.metadata.version('sharded-course')}\n"
    assert "| argparse" in process.stderr and "torch" not in process.stderr


def test_a_terminal_that_lacks_a_character_gets_its_escape(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "course_lib.commands.cli", "progress"],
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "COURSE_HOME": str(tmp_path)},
        capture_output=True,
        encoding="latin-1",
    )

    assert process.returncode == 0, process.stderr
    assert "\\u2591" in process.stdout  # an empty part of a bar


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a file on a full disk")
def test_output_on_a_full_disk_is_reported_in_one_line() -> None:
    command = [sys.executable, "-m", "course_lib.commands.cli", "progress"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.stderr == "course progress: the output cannot be written (No space left on device).\n"
    assert ended.returncode == 1


def test_output_that_the_shell_has_closed_is_no_error() -> None:
    command = f"{sys.executable} -m course_lib.commands.cli plan 7b --gpus 8 >&-"
    ended = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_readme_names_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    named = re.findall(r"`(\w+)`", readme.partition("`.venv/bin/course` lists its commands")[2].partition("\n\n")[0])
    with pytest.raises(SystemExit):
        cli.main(["--help"])

    assert named and set(named) <= set(re.findall(r"^ +(\w+) ", capsys.readouterr().out, re.MULTILINE))
