"""Each incident fails in bare processes as it fails in the course. Each log shows the cause asked for."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_lib import CourseError, incident
from course_lib.exercises import Incident, get
from course_lib.exercises.checking.plain import plain, same
from course_lib.exercises.shown import Diagnosis, logs
from tests.exercises.bare_incidents import INCIDENTS

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "16-incident-room.ipynb"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with how each rank of each incident ended; see `bare_incidents`."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "tests.exercises.bare_incidents", folder], check=True, timeout=280)
    return folder


def ends(case: Incident) -> list[tuple[str, object]]:
    """How each rank ended in the course. What a rank returned is lost if a different rank failed."""
    if case.run is not None:
        return [("returned", plain(value)) for value in case.run]
    assert case.error is not None
    raised = {report.rank: ("raised", report.raised.type) for report in case.error.ranks if report.raised}
    states = {"returned": ("returned", None)}
    return [raised.get(report.rank) or states.get(report.state, ("stuck", None)) for report in case.error.ranks]


@pytest.mark.slow
@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_fails_the_same_way_in_bare_processes(name: str, bare: Path) -> None:
    case = incident(name, limit=0.6 if name == "incidents.thirty_minutes" else 60)
    for rank, (how, value) in enumerate(ends(case)):
        bare_how, bare_value = pickle.loads((bare / f"{name}.{rank}").read_bytes())
        assert bare_how == how
        assert value is None or same(value, bare_value, get(name).tolerance)


def test_the_evidence_does_not_contain_the_diagnosis(capsys: pytest.CaptureFixture[str]) -> None:
    case = incident("incidents.out_of_memory")
    assert "[rank2] step 3: CUDA out of memory" in case.logs
    assert "OpType=ALLREDUCE, Numel=32" in case.logs
    waits = next(line for line in case.logs.splitlines() if line.startswith("[rank2] Watchdog"))
    assert "OpType=ALLREDUCE, Numel=1," in waits  # NCCL's barrier
    assert case.last_calls.splitlines()[12].split()[2:5] == ["all_reduce_barrier", "float32", "[1]"]
    assert "ranks 0, 1, 3" not in repr(case)
    assert capsys.readouterr().out == ""

    assert "ranks 0, 1, 3: all_reduce #11; rank 2: barrier #1" in repr(case.diagnosis())


def test_evidence_has_the_colours_of_its_ranks_and_the_diagnosis_is_a_card() -> None:
    case = incident("incidents.out_of_memory")
    page, card = case._repr_html_(), case.diagnosis()._repr_html_()

    logged, recorded = (page.split("<h3 ")[part] for part in (1, 2))
    assert "[rank" not in page and logged.count(">rank 2<") == case.logs.count("[rank2]")
    assert recorded.count("<tr>") == len(case.last_calls.splitlines()) and "… started" in recorded
    colours = dict(reversed(pair) for pair in re.findall(r"background: (#\w+)[^>]*>(rank \d)<", page))
    assert len(set(colours.values())) == len(colours) == 4
    assert "<b>Next:</b>" in card and "`" not in card


def test_text_of_an_incident_cannot_become_a_tag() -> None:
    assert "<b>bold" not in logs("[rank0] <b>bold</b>") + Diagnosis("<b>bold</b>\n  <b>bold</b>")._repr_html_()


def test_a_healthy_run_has_the_same_data_and_not_the_fault() -> None:
    case = incident("incidents.short_answers")
    assert case.run is not None and len(case.healthy) == len(case.run) == 2
    assert case.healthy[0]["losses"][-1] < case.run[0]["losses"][-1]


def test_an_incident_runs_on_as_many_ranks_as_are_asked_for() -> None:
    run = incident("incidents.whole_average", ranks=4).run
    assert run is not None and len(run) == 4


def test_only_an_incident_can_be_shown() -> None:
    with pytest.raises(CourseError, match=r"'ranks\.hello' is not an incident"):
        incident("ranks.hello")


def test_an_answer_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CourseError, match=r"answer\('wher'\): no such prediction. Give one of 'where', 'why'\."):
        incident("incidents.broken_sample").answer("wher")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("a", "NCCL INFO NCCL_IB_DISABLE set by environment to 1."),
        ("b", "NCCL INFO Bootstrap: Using br-"),
        ("c", "NCCL INFO NCCL_P2P_DISABLE set by environment to 1"),
        ("d", "(run with NCCL_DEBUG=INFO for details)"),
        ("e", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_4:1/RoCE"),
    ],
)
def test_the_answer_is_the_line_of_the_log_with_the_cause(log: str, cause: str) -> None:
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
    shown = re.search(rf"^\*\*{log.upper()}\..*?```\n(.*?)```", cells["logs-five"], re.DOTALL | re.MULTILINE)
    answer = re.search(rf'^logs\["{log}"\]\.reveal\("(line (\d): .*)"\)$', cells["logs-reveal"], re.MULTILINE)
    assert shown is not None and answer is not None

    lines = dict(re.findall(r"^(\d)  (.*)$", shown[1], re.MULTILINE))
    assert [number for number, text in lines.items() if cause in text] == [answer[2]]
    assert f'"{answer[1]}"' in cells["logs-predict"]
