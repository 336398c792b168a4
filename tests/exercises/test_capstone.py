"""The decision of lesson 12: its brief stands in the notebook too, and its explanation contains numbers."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_lib.exercises import get
from course_lib.lessons.capstone.decide import BRIEF, cost, planned_for

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "12-capstone.ipynb"
DECIDE = get("capstone.decide")


def findings(**changes: Any) -> list[str]:
    """Return the findings about the reference's answer with changes."""
    answer = DECIDE.reference(BRIEF) | changes
    return [finding.observed for finding in DECIDE.check(lambda brief: answer).findings]


def planned(answer: dict[str, Any], **changes: Any) -> dict[str, float]:
    """Return the three numbers of a decision with changes."""
    changed = answer | changes
    return cost(BRIEF, changed, planned_for(BRIEF, changed))


def test_the_notebook_shows_the_brief_that_the_check_uses() -> None:
    (cell,) = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.id == "run-brief"]
    shown: dict[str, Any] = {}
    exec(cell.source, shown)

    assert shown["BRIEF"] == BRIEF


def test_the_model_paragraph_has_the_numbers_of_the_reference() -> None:
    answer = DECIDE.reference(BRIEF)

    assert f"{answer['peak_bytes'] / 1e9:.1f} of 80 GB" in DECIDE.explanation
    assert f"{answer['days']:.1f} of 30 days" in DECIDE.explanation
    assert f"{answer['dollars']:,.0f} of 90,000 dollars" in DECIDE.explanation
    faster, slower = planned(answer, cluster="infiniband", batch=4, offload=[]), planned(answer, batch=4)
    prose = " ".join(DECIDE.explanation.split())
    assert f"the training is {answer['days'] - faster['days']:.1f} days shorter" in prose
    assert f"with micro-batches of 4, each step waits for them, and the training takes {slower['days']:.0f} d" in prose
    assert f"costs less than {90_000 / (24 * 64 * faster['days']):.2f} dollars, we take it" in prose
    node, host = (planned(answer, shard_size=8, offload=["optimizer", *more]) for more in ([], ["parameters"]))
    assert f"micro-batches of 8 then need {node['peak_bytes'] / 1e9:.1f} GB" in prose
    assert f"on the host as well, they fit, but take {host['days']:.1f} days" in prose
    assert f"the parameters alone are {2 * planned_for(BRIEF, answer).model.params / 1e9:.0f} GB" in prose


@pytest.mark.parametrize(
    ("changes", "observed"),
    [
        ({"days": 0}, "days is wrong: yours is 0 times the planner's number."),
        ({"dollars": float("nan")}, "dollars is wrong: yours is nan times the planner's number."),
        ({"peak_bytes": "67.6 GB"}, "peak_bytes is '67.6 GB', which is no number."),
        ({"tensor_parallel": 2}, "no choice of tensor_parallel: the customer's program is data parallel."),
        ({"batch": 3}, "64 ranks cannot cut 1024 sequences into micro-batches of 3. Choose a divisor of 16."),
        ({"stage": 0, "offload": []}, "Choose stage 1, 2 or 3, or leave shard_size out."),
        ({"cluster": "infiniband", "days": 22.8, "dollars": 112_200}, "costs 112,162 dollars, and 90,000 are allowed."),
    ],
)
def test_a_finding_names_exactly_what_is_wrong(changes: dict[str, Any], observed: str) -> None:
    (finding,) = findings(**changes)

    assert finding.endswith(observed)


def test_an_answer_that_is_no_dict_is_refused() -> None:
    (finding,) = DECIDE.check(lambda brief: [brief]).findings

    assert finding.observed.startswith("Your answer does not contain cluster, stage")
