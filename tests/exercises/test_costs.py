"""The logs of lesson 09, which stand in its notebook, and the answers, which stand in the exercise."""

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.exercises import get

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "09-what-communication-costs.ipynb"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("A", "NCCL INFO NCCL_IB_DISABLE set by environment to 1."),
        ("B", "NCCL INFO Bootstrap: Using br-"),
        ("C", "NCCL INFO NCCL_P2P_DISABLE set by environment to 1"),
        ("D", "(run with NCCL_DEBUG=INFO for details)"),
        ("E", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_4:1/RoCE"),
    ],
)
def test_the_answer_is_the_line_of_the_notebook_with_the_cause(log: str, cause: str) -> None:
    (shown,) = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.id == "log-exercise"]
    found = re.search(rf"^\*\*{log}\..*?```\n(.*?)```", shown, re.DOTALL | re.MULTILINE)
    assert found is not None
    lines = dict(re.findall(r"^(\d)  (.*)$", found[1], re.MULTILINE))

    _, line, _ = get("costs.nccl_log").reference(log)
    assert [number for number, text in lines.items() if cause in text] == [str(line)]


def test_a_finding_names_what_is_wrong_and_not_what_is_right() -> None:
    verdict = get("costs.nccl_log").check(lambda log: ("infiniband-off", 3, "NCCL_NET"))

    (finding,) = verdict.findings
    assert finding.observed == 'log A: the line is not 3; the name of the variable is not "NCCL_NET".'
    assert finding.likely.startswith("Between the nodes, the bytes go over TCP.")


@pytest.mark.parametrize("answer", [None, "infiniband-off", ("infiniband-off", 2)])
def test_an_answer_that_is_no_tuple_of_three_is_shown_as_it_is(answer: object) -> None:
    (finding,) = get("costs.nccl_log").check(lambda log: answer).findings

    assert finding.observed == f"log A: you returned {answer!r}."
