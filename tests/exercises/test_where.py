"""Where to look if no cause is known: the first call that brings other values than the reference's."""

import pytest
import torch
import torch.distributed as dist

from course_lib.exercises import Finding, get
from tests.exercises.sample import MEAN, changed

WITHOUT_RULES = changed(MEAN, rules=(), mistakes=[], pairs=())


def found(solution: object) -> Finding:
    (finding,) = WITHOUT_RULES.check(solution).findings
    return finding


def test_the_first_call_that_brings_other_values_is_named_with_its_line() -> None:
    def squares(x: torch.Tensor) -> torch.Tensor:
        total = x.square() + 1
        dist.all_reduce(total)
        return total / dist.get_world_size()

    finding = found(squares)
    line = squares.__code__.co_firstlineno + 2
    assert f"On rank 0, all_reduce #1 at line {line} is the first call with other values: [" in finding.observed
    assert finding.action == f"Look at what line {line} is given then, and at everything that ran before all_reduce #1."


def test_the_last_right_call_before_the_first_wrong_one_is_named() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        total += 1
        dist.all_reduce(total)
        return total / dist.get_world_size() ** 2

    def right(x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        dist.all_reduce(total)
        return total / dist.get_world_size() ** 2

    (finding,) = changed(WITHOUT_RULES, reference=right).check(twice).findings
    assert "all_reduce #2 at line" in finding.observed
    assert finding.action.endswith(
        f"all_reduce #1 at line {twice.__code__.co_firstlineno + 2} still brings the reference's values."
    )


def test_if_all_calls_bring_the_right_values_the_cause_may_be_before_them_or_after() -> None:
    def adds(x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size() + 1

    finding = found(adds)
    assert finding.observed.endswith("Every call brings the same values as the reference's.")
    assert finding.action.endswith(f"The last of them is at line {adds.__code__.co_firstlineno + 2}.")


def test_ranks_that_meet_in_one_call_from_different_lines_are_named() -> None:
    def averages(x: torch.Tensor) -> torch.Tensor:
        total, other = x.clone(), x.square()
        if dist.get_rank() == 0:
            dist.all_reduce(total)
            dist.all_reduce(other)
        else:
            dist.all_reduce(other)
            dist.all_reduce(total)
        return total / dist.get_world_size()

    first = averages.__code__.co_firstlineno
    assert (
        f"In all_reduce #1, rank 0 is at line {first + 3} and rank 1 at line {first + 6}." in found(averages).observed
    )


def test_of_a_call_that_nobody_waits_for_the_next_step_stays_to_wait_for_it() -> None:
    def waits_never(x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, async_op=True)
        return total / dist.get_world_size()

    finding = found(waits_never)
    assert "brings" not in finding.observed
    assert finding.action.startswith("Keep what the call returns, and call wait() on it")


def test_nothing_is_said_of_other_calls_which_may_be_right() -> None:
    def gathers(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.stack(parts).mean(0) + x

    assert "brings" not in found(gathers).observed


def test_nothing_is_said_of_a_sum_that_is_divided_before_the_call() -> None:
    def divides(x: torch.Tensor) -> torch.Tensor:
        total = x / dist.get_world_size()
        dist.all_reduce(total)
        return total + dist.get_world_size() - 1

    assert "brings" not in found(divides).observed


def test_nothing_is_said_of_messages_whose_order_is_free() -> None:
    def exchanged(*messages: torch.Tensor) -> torch.Tensor:
        received, rank = torch.zeros(2, len(messages[0])), dist.get_rank()
        if dist.get_world_size() == 2:
            for message, buffer in zip(messages, received, strict=True):
                sent = dist.isend(message, 1 - rank)
                dist.recv(buffer, 1 - rank)
                sent.wait()
        return received.sum(0)

    def right(x: torch.Tensor) -> torch.Tensor:
        return exchanged(x, x.square())

    def swapped(x: torch.Tensor) -> torch.Tensor:
        return exchanged(x.square(), x) + dist.get_world_size() - 1

    (finding,) = changed(WITHOUT_RULES, reference=right).check(swapped).findings
    assert "brings" not in finding.observed


def test_nothing_is_said_of_collectives_in_a_different_order() -> None:
    def right(x: torch.Tensor) -> torch.Tensor:
        total, squares = x.clone(), x.square()
        dist.all_reduce(total)
        dist.all_reduce(squares)
        return total + squares

    def swapped(x: torch.Tensor) -> torch.Tensor:
        total, squares = x.clone(), x.square()
        dist.all_reduce(squares)
        dist.all_reduce(total)
        return total + squares.sqrt()

    (finding,) = changed(WITHOUT_RULES, reference=right).check(swapped).findings
    assert "brings" not in finding.observed


@pytest.mark.slow
def test_nothing_is_said_of_values_that_are_too_large_to_be_kept() -> None:
    attention = get("tensor.attention")
    wrong = attention._compiled(attention._edited("", {"query, key, value =": "key, query, value ="}), "swapped")

    (finding,) = attention.check(wrong).findings
    assert "brings" not in finding.observed
    assert finding.action.startswith("Your calls match the reference's in kind, group, size and order")


@pytest.mark.slow
def test_nothing_is_said_of_the_size_of_a_pickle_in_which_names_are_free() -> None:
    train = get("cluster.repair_train")
    edits = {"optimizer.zero_grad()": "pass", '{"model": get_model_state_dict(model)}': "get_model_state_dict(model)"}

    (finding,) = train.check(train._compiled(train._edited("", edits), "unnamed")).findings
    assert "losses" in finding.observed and "brings" not in finding.observed
