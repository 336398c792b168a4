"""Each candidate's reason has the seconds that it loses, and the bytes, as its own timeline and plan have them."""

from typing import Any

import pytest

from course_lib.planner import Candidate, Choice, choose, duration, plan, size
from course_lib.planner.choose import _reason
from course_lib.planner.timing.schedule import COMMUNICATION, COMPUTE, HOST


def choices() -> list[Choice]:
    """One with steps of half a second, one with steps of many seconds."""
    given = {"tensor_parallel": 1, "pipeline_parallel": 1}
    return [
        choose("llama-7b", "h100-ethernet", world_size=16, sequence=4096, **given),
        choose("gpt2", "laptop", **given),
    ]


def fitting(choice: Choice) -> list[tuple[Candidate, float]]:
    """Each candidate that fits, after the best, and its seconds more."""
    best = choice.best.seconds or 0.0
    return [(one, one.seconds - best) for one in choice.ranked[1:] if one.seconds is not None]


def test_a_slower_one_names_each_cause_of_more_than_5_percent() -> None:
    named = set()
    for choice in choices():
        fastest, best = choice.best.plan.timeline(choice.hardware), choice.best.seconds or 0.0
        for one, more in fitting(choice):
            if more <= 0.05 * best:
                continue
            line = one.plan.timeline(choice.hardware)
            waits, least = line.waits(), fastest.waits()
            extras = {"of computing": line.busy(COMPUTE) - fastest.busy(COMPUTE)} | {
                f"of {what} that nothing hides": waits[stream] - least[stream]
                for what, stream in (("communication", COMMUNICATION), ("work on the host", HOST))
            }
            assert one.reason.startswith(f"{duration(more)} slower: ")
            for what, extra in extras.items():
                notable = abs(extra) > 0.05 * best
                cause = f"{duration(abs(extra))} {'more' if extra > 0 else 'less'} {what}"
                assert (cause in one.reason) == (notable or extra == max(extras.values()))
                named |= {what} if notable else set()

    assert named == {"of computing", "of communication that nothing hides", "of work on the host that nothing hides"}


def test_the_causes_add_up_to_the_difference() -> None:
    """With TP 4, the exchange and the gathers both run while nothing is computed, mostly at the same time."""
    given = {"world_size": 64, "sequence": 8192, "global_batch": 128, "pipeline_parallel": 1, "stage": 3}
    choice = choose("llama3-70b", "h100-infiniband", **given)
    best = choice.best.plan.timeline(choice.hardware)
    cut = next(one for one, more in fitting(choice) if one.plan.settings.tensor_parallel == 4 and more > 1.01)
    line = cut.plan.timeline(choice.hardware)
    waits, least = line.waits(), best.waits()
    apart = {stream: line.exposed(stream, COMPUTE) - best.exposed(stream, COMPUTE) for stream in waits}
    causes = [line.busy(COMPUTE) - best.busy(COMPUTE), *(waits[stream] - least[stream] for stream in waits)]

    assert sum(apart.values()) > 1.5 * (line.seconds - best.seconds)
    assert sum(causes) == pytest.approx(line.seconds - best.seconds)
    assert "tensor-parallel exchange" in cut.reason and "communication" not in cut.reason


@pytest.mark.parametrize("given", [
    {"stage": 3, "tensor_parallel": 8, "expert_parallel": 8}, {"stage": 1, "pipeline_parallel": 4},
    {"stage": 3, "offload": ["optimizer"]}, {"stage": 2, "context_parallel": 2},
])  # fmt: skip
def test_each_moment_without_computing_waits_for_one_stream(given: dict[str, Any]) -> None:
    line = plan(model="mixtral-8x7b", world_size=64, micro_batches=4, **given).timeline("h100-infiniband")
    assert line.busy(COMPUTE) + sum(line.waits().values()) == pytest.approx(line.seconds)


def test_a_line_begins_with_the_seconds_of_what_fits() -> None:
    ranked = choices()[0].ranked

    assert {one.seconds is None for one in ranked} == {True, False}
    for one in ranked:
        assert str(one).startswith(f"{'-' if one.seconds is None else duration(one.seconds):>8}  ")


def test_an_equally_fast_one_says_what_it_holds() -> None:
    choice = choose("gpt2", "h100", batch=16, tensor_parallel=1, pipeline_parallel=1)
    equal = [one for one, more in fitting(choice) if more <= 0.05 * (choice.best.seconds or 0.0)]

    assert equal
    for one in equal:
        more = one.plan.peak_bytes - choice.best.plan.peak_bytes
        held = f"{size(abs(more))} {'more' if more > 0 else 'less'}" if more else "as much"
        assert one.reason.endswith(f"it holds {held}.")
    best, line = choice.best.plan, choice.best.plan.timeline(choice.hardware)
    assert _reason(best, line, best, line).endswith("at its peak it holds as much.")
