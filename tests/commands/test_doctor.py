"""Each check finds what is wrong on a machine where it is, and says "ok" on one where it is not."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from course_lib.commands import doctor
from course_lib.commands.doctor import Finding

ROOT = Path(__file__).parents[2]
OK = Finding(name="Python", status="ok", value="3.11")
WARN = Finding(name="memory", status="warn", value="1.0 GiB free", remedy="close other programs")
MISSING = Finding(name="torch", status="missing", value="does not import", remedy="install it")


def test_the_lessons_can_run_where_the_tests_run() -> None:
    findings = list(doctor.examine())

    assert doctor.lessons_can_run(findings), findings
    assert all(finding.remedy for finding in findings if finding.status != "ok")
    assert {finding.name: finding.status for finding in findings}["processes"] == "ok"
    assert max(len(finding.name) for finding in findings) == doctor.NAME_WIDTH


def test_a_finding_is_a_line_with_a_remedy_below_it() -> None:
    assert doctor.entry(OK) == "ok       Python            3.11"
    assert doctor.entry(WARN).splitlines() == [
        "warn     memory            1.0 GiB free",
        "                           -> close other programs",
    ]


def test_the_verdict_is_what_the_findings_come_to() -> None:
    assert doctor.verdict([OK, WARN]) == "The lessons can run on this machine."
    assert doctor.verdict([OK, WARN, MISSING]).startswith("The lessons cannot run yet.")


@pytest.mark.parametrize("package", ["cloudpickle", "sharded-course"])
def test_an_absent_package_is_told(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    installed = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == package else installed(name))

    finding = doctor.packages()

    assert finding.status == "missing"
    assert package in finding.value
    assert ("--editable" in finding.remedy) == (package == "sharded-course")


def test_packages_of_an_extra_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["torch>=2.11", 'absent>=1; extra == "test"'])

    assert doctor.packages() == doctor.ok("packages", "all 1")


def test_a_torch_that_does_not_import_is_told_and_not_asked_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    findings = {finding.name: finding for finding in doctor.examine()}

    assert findings["torch"].status == "missing"
    assert findings.keys().isdisjoint({"simulated worlds", "processes", "GPUs"})
    assert "memory" in findings


def test_a_torch_that_was_not_tried_is_told_and_asked_further(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.torch_build().status == "ok"

    monkeypatch.setattr(torch, "__version__", "2.99.0+cu130")
    monkeypatch.setattr(doctor, "worlds_of_processes", doctor.gpus)  # which takes seconds
    findings = {finding.name: finding for finding in doctor.examine()}

    assert findings["torch"].status == "warn"
    assert findings["torch"].remedy.startswith(f"the course was tried with torch {doctor.TORCH_TRIED[0]}, ")
    assert findings["simulated worlds"].status == "ok"


def test_a_file_with_the_name_of_a_module_is_named_and_no_rank_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_ring.py").touch()
    assert doctor.file_names().status == "ok"

    (tmp_path / "torch.py").touch()
    findings = {finding.name: finding for finding in doctor.examine()}

    assert findings["file names"].status == "missing"
    assert findings["file names"].value == f"Python takes {tmp_path / 'torch.py'} for the module of that name"
    assert findings.keys().isdisjoint({"torch", "simulated worlds", "processes", "GPUs"})


def test_a_torch_without_a_private_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "course_lib.world.torch_hooks.private", raising=False)
    monkeypatch.delattr(torch._C._distributed_c10d, "_set_thread_isolation_mode")

    finding = doctor.simulated_worlds()

    assert finding.status == "missing"
    assert "_set_thread_isolation_mode" in finding.value


def test_a_torch_that_ranks_do_not_run_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.world.torch_hooks.gloo.LoopbackGloo.__init__", lambda self: None)
    finding = doctor.simulated_worlds()
    assert finding.status == "missing"
    assert finding.value.startswith("both ranks raised TypeError: ")


def test_a_machine_without_a_loopback_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_if_addrs", dict)

    finding = doctor.worlds_of_processes()
    assert finding.status == "warn"
    assert finding.value.endswith("has no network interface with the address 127.0.0.1")


def test_gloos_own_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(timeout: object) -> None:
        raise RuntimeError("Unable to find interface for: [127.0.0.1]")

    monkeypatch.setattr("course_lib.world.torch_hooks.gloo.loopback.options", no_device)

    finding = doctor.simulated_worlds()
    assert finding.status == "missing"
    assert "Unable to find interface for: [127.0.0.1]" in finding.value


def test_a_machine_that_cannot_fork_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.fork")
    finding = doctor.worlds_of_processes()
    assert (finding.status, finding.value) == (
        "warn",
        f"World(backend='processes'): {sys.platform} cannot fork "
        "processes, as Linux and macOS do. Leave the argument out for simulated ranks, which run everywhere.",
    )


@pytest.mark.parametrize(
    ("has_nccl", "status", "told"), [(True, "ok", "NCCL 2.29.7"), (False, "warn", "but this build of torch lacks NCCL")]
)
def test_gpus_are_listed_with_their_memory_and_nccl(
    monkeypatch: pytest.MonkeyPatch, has_nccl: bool, status: str, told: str
) -> None:
    card = SimpleNamespace(name="H100", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: has_nccl)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))

    finding = doctor.gpus()
    assert (finding.status, finding.value) == (status, f"H100 (80 GiB), H100 (80 GiB), {told}")


@pytest.mark.parametrize(("driver", "status"), [(None, "ok"), ("nvidia-smi", "warn")])
def test_a_driver_without_a_gpu_in_torch_is_told(
    monkeypatch: pytest.MonkeyPatch, driver: str | None, status: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda _: driver)

    assert doctor.gpus().status == status


@pytest.mark.parametrize(("gib", "status"), [(3, "warn"), (5, "ok")])
def test_little_memory_is_told(monkeypatch: pytest.MonkeyPatch, gib: int, status: str) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gib * 2**30))

    assert doctor.memory().status == status
    assert doctor.memory().value == f"{gib}.0 GiB free; lesson 11, which needs the most, wants 4 GiB"


def test_progress_is_told_and_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "not" / "yet"))

    assert Path(doctor.progress().value).is_relative_to(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []


def test_a_torch_that_does_not_load_is_on_the_page_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')")
    command = [sys.executable, "-m", "course_lib.commands.cli", "doctor"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "COURSE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert re.search(r"^missing +torch +does not import: libtorch_cpu.so", done.stdout, re.MULTILINE)
    assert (done.returncode, done.stderr) == (1, "")
