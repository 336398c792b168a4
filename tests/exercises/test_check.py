"""A check: what it says about right, wrong, broken, unfinished and hostile solutions, and what it leaves behind."""

import _thread
import contextlib
import inspect
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, World
from course_lib.exercises import Case, Exercise, Mistake, Verdict, get, names
from course_lib.exercises.checking import cases, check, observe
from course_lib.exercises.checking.findings import Cost
from course_lib.exercises.registry import REMOVED
from tests.exercises.sample import DOUBLED, MEAN, changed, draw_mean, gathered, mean, sum_for_mean


def only(verdict: Verdict) -> Any:
    """The one finding."""
    (finding,) = verdict.findings
    return finding


# What is right


def test_a_right_solution_passes_and_says_what_was_tried() -> None:
    verdict = MEAN.check(lambda x: mean(x), seed=3)

    assert (verdict.status, verdict.findings, verdict.mistake) == ("passed", (), None)
    assert repr(verdict) == (
        "✓ sample.mean: passed\n"
        "All 6 cases agree with the reference. Calls in the check: 15 (the reference: 15). "
        "Bytes sent: 318 (the reference: 318)."
    )


def test_a_pass_is_compared_with_the_reference() -> None:
    few, many = Cost(calls=1, sent_bytes=8), Cost(calls=1200, sent_bytes=80, seconds=3.21)

    assert Cost(calls=0, sent_bytes=0).against(Cost(calls=0, sent_bytes=0)) == ""
    only_one = Verdict(exercise="sample.mean", status="passed", seed=0, cases_tried=1)
    assert only_one.headline == "The case agrees with the reference."
    text = "Calls in the check: 1,200 (the reference: 1). Bytes sent: 80 (the reference: 8). "
    text += "CPU time: 3.2 times the reference's."
    assert many.against(few) == text


@pytest.mark.parametrize(("seconds", "times"), [(0.012, 1), (0.2, 50)])
def test_a_pass_names_only_cpu_time_that_is_no_noise(seconds: float, times: float) -> None:
    expected, yours = (observe.Observation(cpu_seconds=spent) for spent in (0.004, seconds))
    trial = observe.Trial(exercise=MEAN, case=draw_mean(random.Random(0), 0), expected=expected, yours=yours)

    assert check._costs([trial])[0].seconds == pytest.approx(times)


def test_a_case_without_ranks_is_run_once() -> None:
    assert DOUBLED.check(lambda numbers: [number + number for number in numbers]).status == "passed"


def test_another_order_of_summation_is_not_wrong() -> None:
    def sum_by_hand(x: torch.Tensor) -> torch.Tensor:
        parts = gathered(x)
        return sum((part / len(parts) for part in reversed(parts)), torch.zeros_like(x))

    assert changed(MEAN, rules=()).check(sum_by_hand).status == "passed"


def test_another_order_of_a_dict_and_rounding_at_once_are_not_wrong() -> None:
    exercise = get("memory.mixed_precision")

    def rounded(*args: Any) -> dict[str, float]:
        return {name: width * (1 + 1e-12) for name, width in reversed(exercise.reference(*args).items())}

    assert exercise.check(rounded).status == "passed"


# What is wrong


def test_a_wrong_solution_is_shown_on_the_smallest_case_that_fails() -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        dist.all_reduce(copy, op=dist.ReduceOp.SUM)
        return 0.5 * copy

    verdict = MEAN.check(halved)

    assert (verdict.status, verdict.mistake) == ("failed", "halved")
    assert (verdict.cases_tried, verdict.case_count, verdict.case) == (2, 6, "3 ranks, 4 elements")
    finding = only(verdict)
    assert finding.observed.startswith("rank 0 returned [")
    assert [(row.rank, row.differs) for row in finding.table] == [(0, True), (1, True), (2, True)]
    assert (finding.likely, finding.action) == ("You divide by 2.", "Divide by the world size.")


@pytest.mark.parametrize(
    ("name", "right", "action"),
    [
        ("ranks.repair_gather", ("return torch.cat(", "return list("), "Make one tensor of it, with"),
        ("ranks.ring_all_gather", ("return torch.cat(shards)", "return shards"), "Make one tensor of it, with"),
        ("ranks.ring_all_gather", ("torch.cat(shards)", "torch.stack(shards)"), "Reshape it: `.flatten()`."),
    ],
)
def test_no_cause_is_read_off_one_rank_if_more_ranks_fail_too(name: str, right: tuple[str, str], action: str) -> None:
    exercise = get(name)
    scope = dict(exercise.reference.__globals__)
    exec(exercise.solution.replace(*right), scope)
    verdict = exercise.check(scope[exercise.reference.__name__])

    assert verdict.ranks == 2 and only(verdict).action.startswith(action)


@pytest.mark.parametrize("digits", [309, 5000])  # Python converts the longer number not even to text
@pytest.mark.parametrize("name", ["costs.ring", "pipeline.kept"])
def test_a_number_beyond_the_range_of_floats_is_wrong_as_others_are(name: str, digits: int) -> None:
    verdict = get(name).check(lambda *args: -(10**digits))

    assert verdict.status == "failed"
    assert "your function returned a whole number of more than 300 digits, expected " in only(verdict).observed


def test_a_solution_that_is_wrong_only_on_one_rank_is_shown_there() -> None:
    assert MEAN.check(lambda x: mean(x) + (dist.get_world_size() == 1)).ranks == 1


def test_where_no_cause_is_known_cases_that_are_right_are_named() -> None:
    def wrong_on_three(x: torch.Tensor) -> torch.Tensor:
        return mean(x) + (dist.get_world_size() == 3)

    finding = only(MEAN.check(wrong_on_three))
    assert finding.likely == "" and " Right with 2 ranks, " in finding.observed


def test_a_solution_that_fails_on_no_smaller_case_is_shown_where_it_failed() -> None:
    def wrong_on_four_ranks(x: torch.Tensor) -> torch.Tensor:
        return mean(x) + (dist.get_world_size() == 4 and len(x) > 4)

    exercise = changed(MEAN, draw=lambda rng, number: draw_mean(rng, 2))
    verdict = exercise.check(wrong_on_four_ranks)

    assert (verdict.status, verdict.case) == ("failed", "4 ranks, 5 elements")


def test_a_mistake_that_nobody_knew_is_not_given_a_known_name() -> None:
    verdict = MEAN.check(lambda x: sum_for_mean(x) - 1)

    assert (verdict.status, verdict.mistake) == ("failed", None)
    assert "x - 1" not in only(verdict).likely


def test_a_solution_that_errs_once_more_than_a_known_mistake_is_not_given_its_name() -> None:
    def sum_except_on_four(x: torch.Tensor) -> torch.Tensor:
        return sum_for_mean(x) if dist.get_world_size() != 4 else 3 * sum_for_mean(x)

    assert MEAN.check(sum_except_on_four).mistake is None


@pytest.mark.slow
def test_a_known_failure_is_known_by_what_each_rank_waits_in() -> None:
    def only_rank_one(x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() in (1, 3):
            dist.all_reduce(x)
        return x

    verdict = MEAN.check(only_rank_one)

    assert (verdict.status, verdict.mistake) == ("error", "odd")
    assert "rank 0 returned without the all_reduce #1 that rank 1 waits in" in only(verdict).observed
    assert only(verdict).action == "Call on all."


@pytest.mark.slow
@pytest.mark.parametrize("id", ["starts-again", "never-finishes", "wraps-around"])
def test_a_mistake_that_calls_the_learners_own_function_is_known(id: str) -> None:
    exercise, names = get("zero3.gather_ahead"), {"torch": torch, "dist": dist, "Unit": Any}
    mistake = next(one for one in exercise.mistakes if one.id == id)
    for source in (get("zero3.start_gather").solution, inspect.getsource(mistake.solution)):
        exec(compile("from __future__ import annotations\n" + source, __file__, "exec"), names)

    assert exercise.check(names["gather_ahead"]).mistake == id


def test_a_rank_that_waits_in_the_check_itself_is_held_back_and_no_line_of_the_check_is_shown() -> None:
    def leaves_the_others(units: Any, number: int, depth: int) -> None:
        if dist.get_rank() == 0:
            raise ValueError("not today")

    observed = only(get("zero3.gather_ahead").check(leaves_the_others, World(2))).observed
    assert "ValueError: not today" in observed
    assert "\n  the check held rank 1 back" in observed and "waited in" not in observed


def test_what_is_sent_may_be_a_few_bytes_longer_than_the_known_mistake_sends() -> None:
    def sends(numel: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def solution(x: torch.Tensor) -> torch.Tensor:
            if dist.get_rank():
                dist.all_reduce(torch.zeros(numel))
            return x

        return solution

    mistake = Mistake(id="sends", message="You send. Next: Do not.", solution=sends(1000))
    exercise = changed(MEAN, mistakes=[mistake])
    assert exercise.check(sends(1050)).mistake == "sends"
    assert exercise.check(sends(1070)).mistake is None
    assert exercise.check(sends(10)).mistake is None


def test_a_solution_that_prints_nothing_is_not_said_to_print() -> None:
    def returns_nothing(x: torch.Tensor) -> None:
        mean(x)

    prints = Mistake(id="prints", message="You print. Next: Return.", solution=lambda x: print(mean(x)))
    exercise = changed(MEAN, mistakes=[prints])

    assert exercise.check(lambda x: print("the mean", mean(x))).mistake == "prints"
    assert exercise.check(returns_nothing).mistake is None


def test_where_values_are_wrong_the_rules_decide_between_mistakes_that_give_the_same() -> None:
    def by_gathering(x: torch.Tensor) -> torch.Tensor:
        return torch.stack(gathered(x)).sum(0)

    gathers = Mistake(id="gathers", message="You gather. Next: Reduce.", solution=by_gathering)
    wrong_everywhere = changed(MEAN, draw=lambda rng, number: draw_mean(rng, 2))  # on one rank a sum is the mean
    both = changed(wrong_everywhere, mistakes=[*MEAN.mistakes, gathers])

    assert both.check(lambda x: by_gathering(x)).mistake == "gathers"
    assert both.check(lambda x: sum_for_mean(x)).mistake == "sum-for-mean"
    assert wrong_everywhere.check(by_gathering).mistake == "sum-for-mean"  # the nearest there is


def test_a_rule_is_checked_besides_the_values() -> None:
    verdict = MEAN.check(lambda x: torch.stack(gathered(x)).mean(0))

    assert (verdict.status, verdict.mistake) == ("failed", None)
    assert only(verdict).observed == "rank 0 called all_gather."


def test_arguments_must_end_up_as_the_reference_leaves_them() -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x / dist.get_world_size()

    verdict = MEAN.check(in_place)

    assert only(verdict).observed == "the argument x was changed in place on both ranks."
    assert changed(MEAN, inputs_matter=False).check(in_place).status == "passed"


def test_a_trial_decides_what_is_compared() -> None:
    def sizes(solution: Callable[..., Any], x: torch.Tensor) -> int:
        return int(solution(x).numel())

    exercise = changed(MEAN, trial=sizes, mistakes=())

    assert exercise.check(sum_for_mean).status == "passed"
    assert only(exercise.check(lambda x: mean(x)[1:])).observed.startswith("rank 0 has 2, expected 3.")


# What raises or never ends


def test_an_error_is_told_with_its_rank_and_its_line_and_its_traceback_is_folded() -> None:
    def fails_on_rank_one(x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            raise KeyError("x")
        return mean(x)

    verdict = MEAN.check(fails_on_rank_one)

    finding = only(verdict)
    assert (verdict.status, verdict.mistake) == ("error", None)
    assert finding.observed.startswith("rank 1 of 2 raised KeyError: 'x'")
    assert 'raise KeyError("x")' in finding.observed
    assert finding.traceback.startswith('rank 1\nTraceback (most recent call last):\n  File "')
    assert "course_lib" not in finding.traceback
    assert finding.traceback not in repr(verdict)


def test_an_error_without_a_world_speaks_of_the_function_and_not_of_ranks() -> None:
    def divides(numbers: list[int]) -> list[int]:
        return [number // 0 for number in numbers]

    observed = only(DOUBLED.check(divides)).observed

    assert observed.startswith("your function raised ZeroDivisionError")
    assert "rank" not in observed.splitlines()[0]
    assert only(DOUBLED.check(lambda numbers: doubel(numbers))).action.endswith("all cells above).")  # noqa: F821


@pytest.mark.slow
def test_an_endless_loop_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        while True:
            pass

    monkeypatch.setattr(observe, "CPU_LIMIT", 1.0)
    monkeypatch.setattr(observe, "TIME_LIMIT", 1.0)  # of the second run, on a busy machine
    verdict = MEAN.check(endless)

    assert verdict.status == "error"
    assert "was stopped after its time limit of 1 s" in only(verdict).observed
    assert "World(" not in str(only(verdict))


def test_what_cannot_be_copied_to_the_ranks_is_told() -> None:
    squares = (n * n for n in range(3))

    verdict = MEAN.check(lambda x: mean(x) + next(squares))

    assert verdict.status == "error"
    assert "cannot be copied" in only(verdict).observed


def test_interrupting_ends_the_check_and_decides_nothing() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(5)
        return mean(x)

    timer = threading.Timer(0.4, _thread.interrupt_main)
    timer.start()
    verdict = MEAN.check(slow)
    timer.join()

    assert verdict.status == "error"
    assert only(verdict).observed == "the check was stopped after 0 of 6 cases, so nothing was decided."
    assert only(verdict).action.startswith("If it stood still, look for a loop that does not end.")


def test_an_interrupt_that_python_would_drop_ends_the_check_too() -> None:
    class Freed:
        def __del__(self) -> None:
            _thread.interrupt_main()

    verdict = MEAN.check(mean, on_case=lambda done, to_do: Freed() if done == 2 else None)

    assert verdict.status == "error"
    assert only(verdict).observed == "the check was stopped after 2 of 6 cases, so nothing was decided."


# What is not a solution yet


def as_it_came(x: torch.Tensor) -> torch.Tensor:
    """Another docstring."""
    raise NotImplementedError  # and a comment


def empty(x: torch.Tensor) -> torch.Tensor: ...


def passes_over(x: torch.Tensor) -> torch.Tensor:
    """Nothing yet."""
    pass


@pytest.mark.parametrize("solution", [as_it_came, empty, passes_over, MEAN.stub])
def test_the_cell_as_it_came_is_unattempted_and_not_wrong(solution: Callable[..., Any]) -> None:
    verdict = MEAN.check(solution)

    assert (verdict.status, verdict.findings, verdict.cases_tried) == ("unattempted", (), 0)


def test_a_line_that_was_left_behind_is_told() -> None:
    def unfinished(x: torch.Tensor) -> torch.Tensor:
        mean(x)
        raise NotImplementedError

    verdict = MEAN.check(unfinished)

    assert verdict.status == "error"
    assert only(verdict).action == "Delete that line."


def generator(x: torch.Tensor) -> Any:
    yield x


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    ("solution", "observed"),
    [
        (None, "this is None, and the exercise asks for a function."),
        (torch.ones(2), "this is an object of type Tensor, and the exercise asks for a function."),
        (lambda: 1, "your function cannot be called as the exercise calls it, mean(x): too many positional"),
        (lambda x, y: x, "your function cannot be called as the exercise calls it, mean(x): missing a required"),
        (generator, "this function has a yield or an async"),
        (coroutine, "this function has a yield or an async"),
    ],
)
def test_what_cannot_be_called_is_told_and_not_run(solution: Any, observed: str) -> None:
    verdict = MEAN.check(solution)

    assert (verdict.status, verdict.cases_tried) == ("error", 0)
    assert only(verdict).observed.startswith(observed)


# Who tries to look right


class Agreeable:
    """Equal to everything, and of the class that is asked for, if asked."""

    __class__ = torch.Tensor  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True


class LyingList(list[int]):
    def __iter__(self) -> Any:
        return iter([2, 4, 6])

    def __eq__(self, other: object) -> bool:
        return True


def catches_everything(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(BaseException):
        dist.recv(x, src=dist.get_rank())
    return x


def leaves(x: torch.Tensor) -> torch.Tensor:
    sys.exit(0)


@pytest.mark.parametrize(
    "solution",
    [
        lambda x: Agreeable(),
        lambda x: Subclass(),
        lambda x: [Agreeable()],
        catches_everything,
        leaves,
    ],
)
def test_no_trick_passes(solution: Callable[..., Any]) -> None:
    assert MEAN.check(solution).status in ("failed", "error")
    assert MEAN.check(sum_for_mean).mistake == "sum-for-mean"
    assert MEAN.check(lambda x: mean(x)).status == "passed"


def test_a_list_that_lies_is_read_as_it_is() -> None:
    assert DOUBLED.check(lambda numbers: LyingList(numbers)).status == "failed"


def test_a_function_that_calls_itself_is_not_taken_for_the_reference() -> None:
    """Its name may be bound to the reference, by the cell's last run."""
    variables: dict[str, Any] = {"echo": mean}
    exec("def echo(x):\n    return echo(x)", variables)
    solution, variables["echo"] = variables["echo"], mean

    verdict = MEAN.check(solution)

    assert only(verdict).observed.startswith("rank 0 of 1 raised RecursionError")
    assert variables["echo"] is mean


# What it leaves behind


def test_the_learners_objects_stay_as_they_are() -> None:
    seen: list[int] = []
    weight = torch.ones(3, requires_grad=True)
    torch.manual_seed(5)
    random.seed(5)
    states = torch.get_rng_state(), random.getstate()

    def solution(x: torch.Tensor) -> torch.Tensor:
        seen.append(dist.get_rank())
        torch.rand(1)
        random.random()
        (weight * 2).sum().backward()
        return mean(x)

    assert MEAN.check(solution).status == "passed"
    assert seen == []
    assert weight.grad is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_no_thread_and_no_group_is_left() -> None:
    before = set(threading.enumerate())
    MEAN.check(waits_for_ever)

    assert set(threading.enumerate()) == before
    assert not dist.is_initialized()


def waits_for_ever(x: torch.Tensor) -> torch.Tensor:
    dist.recv(x, src=(dist.get_rank() + 1) % dist.get_world_size())
    return x


def test_what_is_printed_is_kept_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(x: torch.Tensor) -> torch.Tensor:
        print("mean on rank", dist.get_rank())
        return mean(x)

    assert MEAN.check(chatty).output == ("mean on rank 0\n", "mean on rank 1\n")
    assert capsys.readouterr().out == ""


# Cases and seeds


def test_the_same_seed_draws_the_same_cases_and_another_seed_others() -> None:
    abouts = [[case.about for case in cases.draw(MEAN, seed)] for seed in (0, 0, 1)]

    assert abouts[0] == abouts[1] != abouts[2]


def test_progress_is_told_case_by_case() -> None:
    told: list[tuple[int, int]] = []
    MEAN.check(lambda x: mean(x), on_case=lambda done, to_do: told.append((done, to_do)))

    assert told == [(done, 6) for done in range(7)]

    MEAN.check(MEAN.stub, on_case=lambda done, to_do: told.append((done, to_do)))
    assert len(told) == 7

    told.clear()  # a wrong case counts before its cause is looked for
    MEAN.check(lambda x: x.sum(), on_case=lambda done, to_do: told.append((done, to_do)))
    assert told[-1][0] > 0


@pytest.mark.parametrize("name", ["zero1.sharded_step", "zero2.start_reduction"])
def test_a_result_that_is_missing_where_a_function_is_asked_for_is_named(name: str) -> None:
    exercise = get(name)
    verdict = exercise.check(lambda *args: exercise.reference(*args)())  # the trial calls the None that this returns

    assert "rank 0 returned None, expected a function." in str(verdict)
    assert "without parentheses" in str(verdict.next_step)


def test_the_learners_function_runs_once_on_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Case] = []

    def observed(exercise: Exercise, solution: Any, case: Case, world: World | None) -> observe.Observation:
        ran.append(case)
        return observe.observe(exercise, solution, case, world)

    monkeypatch.setattr(cases, "observe", observed)

    assert MEAN.check(sum_for_mean).mistake == "sum-for-mean"
    assert len(set(ran)) == len(ran) > 2  # on the smallest case that fails, too, and on those of the diagnosis


def test_observations_are_kept_of_the_exercises_that_were_checked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Exercise] = []
    monkeypatch.setattr(observe, "_kept", {})
    monkeypatch.setattr(observe, "observe", lambda exercise, *_: ran.append(exercise) or observe.Observation())
    first, second, *others = [changed(MEAN) for _ in range(observe.EXERCISES_KEPT + 1)]

    for exercise in (first, second, *others[:-1], first, others[-1], first, second):
        observe.recall(exercise, mean, Case(world_size=1, args=lambda rank: ()))
    assert ran == [first, second, *others, second]


def test_a_world_of_ones_own_is_given_the_cases_of_its_size() -> None:
    verdict = MEAN.check(sum_for_mean, World(4))

    assert (verdict.mistake, verdict.case[:7]) == ("sum-for-mean", "4 ranks")


def test_a_world_that_no_case_fits_is_refused() -> None:
    with pytest.raises(CourseError, match=r"sample\.mean: its cases have 1, 2, 3, 4 ranks, and World\(7"):
        MEAN.check(mean, World(7))


def test_a_reference_that_fails_is_not_blamed_on_the_learner() -> None:
    verdict = changed(MEAN, reference=waits_for_ever).check(mean)

    assert (verdict.status, verdict.mistake) == ("error", None)
    assert only(verdict).observed.startswith("the course's own solution failed here")
    assert only(verdict).action == "Run the cell again. If this comes back, restart the kernel."


def test_a_result_that_cannot_be_compared_is_named() -> None:
    assert "Its type is generator, which is not what was asked for." in str(MEAN.check(lambda x: (y for y in x)))


def test_a_reference_that_cannot_be_compared_is_a_fault_of_the_course() -> None:
    with pytest.raises(AssertionError, match="the reference gives a generator"):
        changed(MEAN, reference=generator).check(mean)


# Names


def test_every_exercise_is_found_by_its_name() -> None:
    assert len(set(names())) == len(names()) > 80
    assert [get(name).name for name in names()] == list(names())


def test_an_unknown_name_is_answered_with_similar_ones() -> None:
    with pytest.raises(CourseError, match=r"There is no exercise named 'ranks.helo'. Did you mean 'ranks.hello'"):
        get("ranks.helo")
    with pytest.raises(CourseError, match=r"There are: start.first, ranks.hello"):
        get("quite different")
    with pytest.raises(CourseError, match=r'Write the name in quotation marks, as in @exercise\("ranks\.hello"\)'):
        get(mean)


def test_a_removed_exercise_says_what_to_do_with_its_cell() -> None:
    name = min(REMOVED)
    with pytest.raises(CourseError, match=rf"'{name}' was removed from the course. .* delete its first line"):
        get(name)
    assert REMOVED.isdisjoint(names())


def test_the_solution_is_shown_under_the_learners_name() -> None:
    assert MEAN.cell.startswith('@exercise("sample.mean")\ndef mean(x: torch.Tensor)')
    assert MEAN.solution.startswith("def mean(x: torch.Tensor)")
    assert "dist.all_reduce(total)" in MEAN.solution
