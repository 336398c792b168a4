"""Each candidate's reason has the seconds that it loses, and the bytes, as its own timeline and plan have them."""

from course_lib.planner import Candidate, Choice, choose, duration, size
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
            extras = {"of computing": line.busy(COMPUTE) - fastest.busy(COMPUTE)} | {
                f"of {what} that nothing hides": line.exposed(stream, COMPUTE) - fastest.exposed(stream, COMPUTE)
                for what, stream in (("communication", COMMUNICATION), ("work on the host", HOST))
            }
            assert one.reason.startswith(f"{duration(more)} slower: ")
            for what, extra in extras.items():
                notable = extra > 0.05 * best
                assert (f"{duration(extra)} more {what}" in one.reason) == (notable or extra == max(extras.values()))
                named |= {what} if notable else set()

    assert named == {"of computing", "of communication that nothing hides", "of work on the host that nothing hides"}


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
        assert one.reason.endswith(f"it holds {size(abs(more))} {'more' if more > 0 else 'less'}.")
