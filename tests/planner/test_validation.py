"""The planner against published runs: the errors stay as small as docs/validation.md says."""

from collections import Counter
from collections.abc import Callable
from statistics import median

import pytest

from course_lib.planner import Run, Validation, validate
from course_lib.planner.validation import PUBLISHED
from docs.validation import PAGE, page

PLAYBOOK, FOUNDRY = "Ultra-Scale Playbook", "llm-foundry"


@pytest.fixture(scope="module")
def validation() -> Validation:
    return validate()


def errors_of(validation: Validation, what: str, keep: Callable[[Run], bool]) -> list[float]:
    """Relative errors of `what` of the runs to keep."""
    return [one.error for one in validation.compared if one.what == what and keep(one.run)]


def sizes(validation: Validation, what: str, source: str, *cuts: str) -> list[float]:
    """Absolute errors of a source's runs with just these of TP and PP."""

    def keep(run: Run) -> bool:
        return run.source.startswith(source) and all((cut in run.sharding) == (cut in cuts) for cut in ("TP", "PP"))

    return [abs(error) for error in errors_of(validation, what, keep)]


@pytest.mark.slow
@pytest.mark.parametrize(("cuts", "most"), [((), 0.02), (("PP",), 0.03), (("TP",), 0.11), (("TP", "PP"), 0.08)])
def test_the_playbooks_memory(validation: Validation, cuts: tuple[str, ...], most: float) -> None:
    assert median(sizes(validation, "active", PLAYBOOK, *cuts)) <= most


@pytest.mark.slow
def test_without_tensor_parallelism_nine_tenths_are_within_10_percent(validation: Validation) -> None:
    for cuts in ((), ("PP",)):
        errors = sizes(validation, "active", PLAYBOOK, *cuts)
        assert sum(error <= 0.1 for error in errors) >= 0.9 * len(errors)


@pytest.mark.slow
def test_torchtitans_memory(validation: Validation) -> None:
    def errors(what: str) -> list[float]:
        return errors_of(validation, what, lambda run: "torchtitan" in run.source)

    active, reserved = errors("active"), errors("reserved")

    assert (len(active), len(reserved)) == (4, 12)
    assert max(map(abs, active)) <= 0.05
    assert sum(abs(error) <= 0.10 for error in reserved) >= 11
    assert max(map(abs, reserved)) <= 0.12  # 405B, whose first stage has 15 layers


@pytest.mark.slow
@pytest.mark.parametrize(("source", "most"), [(FOUNDRY, 0.05), ("Llama 3", 0.13)])
def test_model_flops_utilization(validation: Validation, source: str, most: float) -> None:
    assert median(map(abs, errors_of(validation, "MFU", lambda run: run.source.startswith(source)))) <= most


@pytest.mark.slow
@pytest.mark.parametrize(("cuts", "most"), [((), 0.17), (("PP",), 0.12)])
def test_the_playbooks_speed(validation: Validation, cuts: tuple[str, ...], most: float) -> None:
    assert median(sizes(validation, "tokens/s/GPU", PLAYBOOK, *cuts)) <= most


@pytest.mark.slow
def test_nothing_that_fitted_is_called_too_large(validation: Validation) -> None:
    assert validation.called_too_large == []
    assert {run.fits for run in validation.runs if run.given and run.fitted} == {"fits", "may fit"}


@pytest.mark.slow
def test_every_row_is_compared_or_refused_with_a_reason(validation: Validation) -> None:
    rows = sum(len(path.read_text(encoding="utf-8").splitlines()) - 1 for path in PUBLISHED.glob("*.csv"))

    assert len(validation.runs) == rows
    assert all(run.given or run.reason for run in validation.runs)
    assert "Not compared, 5 × llm-foundry: fp8 is not planned" in str(validation)


@pytest.mark.slow
def test_the_table_has_a_line_for_each_value(validation: Validation) -> None:
    assert len(validation.table().splitlines()) == 1 + len(validation.compared)


def test_other_rows_can_be_read() -> None:
    run = next(run for run in validate().runs if run.source not in (PLAYBOOK, FOUNDRY))

    assert (run.model, run.fits) == ("llama-7b", "fits")


@pytest.mark.slow
def test_the_page_has_the_numbers_of_the_validation(validation: Validation) -> None:
    """Run `python -m docs.validation` to write them again."""
    assert page(validation) == PAGE.read_text(encoding="utf-8")

    verdicts = Counter(run.fits for run in validation.runs if run.given and not run.fitted)
    counts = " | ".join(str(verdicts[verdict]) for verdict in ("fits", "may fit", "does not fit"))
    assert f"| playbook: crashed or ran out of memory | {verdicts.total()} | {counts} |" in page(validation)


@pytest.mark.slow
def test_adapters_and_experts(validation: Validation) -> None:
    """Within 15 %: the memory of 15 of 18 LoRA and QLoRA runs, on which nothing is fitted; 4 speeds with experts."""

    def near(what: str, *sources: str) -> tuple[int, int]:
        errors = errors_of(validation, what, lambda run: run.source.startswith(sources))
        return sum(abs(error) <= 0.15 for error in errors), len(errors)

    assert near("reserved", "LitGPT", "torchtune") == (15, 18)
    assert near("tokens/s/GPU", "torchtune") == (2, 2)
    assert near("tokens/s/GPU", "Megatron") == (4, 12)


@pytest.mark.slow
def test_fp8_speeds_up_as_much_as_published(validation: Validation) -> None:
    speeds = [one for one in validation.compared if one.run.source.startswith("torchao") and one.what == "tokens/s/GPU"]
    gains = [(fp8.planned / bf16.planned, fp8.published / bf16.published)
             for bf16, fp8 in zip(speeds[::2], speeds[1::2], strict=True)]  # fmt: skip

    assert len(gains) == 3
    assert all(abs(planned / published - 1) < 0.1 for planned, published in gains)
