"""What a difference is, and which causes are recognised in it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from course_lib.exercises import Case, Finding, Observation, Row, Trial, Verdict, at_most, only_calls, same_calls
from course_lib.exercises.checking.compare import findings
from course_lib.exercises.checking.patterns import recognise_pattern
from course_lib.exercises.checking.plain import HUGE, Array, Gap, Opaque, difference, plain, same
from course_lib.exercises.checking.texts import pair, short
from course_lib.meter import SourceLine
from course_lib.world.collectives.call import Call
from tests.exercises.sample import MEAN, changed

TOLERANCE = 1e-5


def array(*numbers: float, dtype: torch.dtype = torch.float32) -> Any:
    return plain(torch.tensor(numbers, dtype=dtype))


# Plain data


class Integer(int):
    pass


def test_plain_data_is_copied_as_it_is() -> None:
    source = {"a": [1, 2.5, "text", None, True], 3: (torch.float32, torch.Size([2]))}

    assert plain(source) == {"a": (1, 2.5, "text", None, True), 3: ("torch.float32", (2,))}
    assert plain(torch.nn.Parameter(torch.ones(2, 1, dtype=torch.float64))) == Array(
        dtype="float64", shape=(2, 1), numbers=(1.0, 1.0)
    )


def test_tensors_have_their_article() -> None:
    assert str(array(1.0)) == "a float32 tensor of shape [1]"
    assert str(array(1, dtype=torch.int64)) == "an int64 tensor of shape [1]"


def test_numbers_of_other_libraries_and_subclasses_become_pythons_own() -> None:
    assert [type(plain(value)) for value in (Integer(3), np.int64(3), np.float32(0.5), np.str_("x"))] == [
        int,
        int,
        float,
        str,
    ]
    assert plain([Fraction(3, 2), Fraction(10**400)]) == (1.5, HUGE)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (iter([1]), "list_iterator"),
        (object(), "object"),
        (torch.ones(1, device="meta"), "tensor without numbers"),
        (torch.ones(2, 2).to_sparse(), "tensor without numbers"),
        (np.ones(2), "ndarray"),
        (np.longdouble(1), "longdouble"),
    ],
)
def test_what_cannot_be_looked_into_is_opaque(value: Any, name: str) -> None:
    assert plain(value) == Opaque(type_name=name)


def test_a_list_that_holds_itself_comes_to_an_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    value = plain(endless)
    for _ in range(20):
        (value,) = value
    assert value == Opaque(type_name="list")


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (1, 1.0),
        (0.1 + 0.2, 0.3),
        (math.nan, math.nan),
        (-math.inf, -math.inf),
        (array(1e6, 1.0), array(1e6 + 1, 1.000001)),
        (array(1.0, 1e-9), array(1.0, 0.0)),  # rounding errors of what cancels
        (array(math.nan, 1), array(math.nan, 1)),
        ((), ()),
        ({"a": (1,)}, {"a": (1,)}),
        ({"a": 0.1 + 0.2, "b": (1, {"c": 2})}, {"b": (1, {"c": 2.0}), "a": 0.3}),  # the order of a dict does not count
    ],
)
def test_these_are_the_same(expected: Any, given: Any) -> None:
    assert same(expected, given, TOLERANCE)


@pytest.mark.parametrize(
    ("expected", "given", "path"),
    [
        (1, 2, ()),
        (1, True, ()),
        (True, 1, ()),
        (1, "1", ()),
        (2**60, 2**60 + 1, ()),
        (math.inf, 1e300, ()),
        (1.0, math.nan, ()),
        (1.0, math.inf, ()),
        (array(1.0, 2.0), array(1.0, 2.1), ()),
        (array(1e6, 1e-3), array(1e6, 2e-3), ()),  # a large neighbour excuses nothing
        (array(1e-9, 2e-9), array(1e-9, 3e-9), ()),
        (array(5.0), array(5.0, dtype=torch.float64), ()),
        (array(100_000, dtype=torch.int64), array(100_001, dtype=torch.int64), ()),
        (array(1.0), plain(torch.ones(1, 1)), ()),
        (array(), array(1.0), ()),
        ((1, (2, 3)), (1, (2, 4)), (1, 1)),
        ((1, 2), (1, 2, 3), ()),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ("b",)),
        ({"a": 1, "b": 2}, {"b": 3, "a": 4}, ("a",)),
        ({"a": 1}, {"a": 1, "b": 2}, ()),
        ({"a": 1}, {"b": 1}, ()),
        (None, 0, ()),
    ],
)
def test_these_differ_and_it_is_known_where(expected: Any, given: Any, path: tuple[Any, ...]) -> None:
    assert difference(expected, given, TOLERANCE) == path
    assert not same(expected, given, TOLERANCE)


# Causes


def trial(expected: Sequence[Any], given: Sequence[Any], before: Sequence[Any] = (), **more: Any) -> Trial:
    """A trial of `mean`, on as many ranks as there are values."""
    size = len(expected)
    arguments = tuple((plain(value),) for value in before) or ((),) * size
    observed = {"before": arguments, "after": arguments, "calls": ((),) * size}
    given_observed = observed | more
    return Trial(
        exercise=MEAN,
        case=Case(world_size=size, args=lambda rank: ()),
        expected=Observation(values=tuple(map(plain, expected)), **observed),
        yours=Observation(values=tuple(map(plain, given)), **given_observed),
    )


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


FOUR = [t(10, 20), t(30, 40), t(50, 60), t(70, 80)]
MATRIX = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("expected", "given", "likely"),
    [
        # of another form
        ([t(1), t(2)], [None, None], "ended without a `return`"),
        ([t(1)], [lambda: 1], "A function was returned, and not called"),
        ([t(1)], [iter([])], "Its type is list_iterator, which is not what was asked for"),
        ([t(1)], [[t(1)]], "only item of a list"),
        ([3.0], [torch.tensor(3.0)], "a float32 tensor of shape [], and a number was asked for"),
        ([{"a": None}], [{"a": t(1)}], "a float32 tensor of shape [1] where nothing should be left"),
        ([t(1, 2)], [[1, 2]], "a list or tuple of 2, and a float32 tensor of shape [2] was asked for"),
        ([[[1, 2], [3, 4]]], [[1, 2, 3, 4]], "The values are right, and grouped differently."),
        ([[1]], [[1, 2, 3]], "has 3 items, and 1 were asked for."),
        ([[1, 2, 3]], [[1, 2]], "and 3 were asked for. Yours are right, and end too early."),
        ([(t(5, 6), t(7))], [t(5, 6)], "This is item 0 of the result, which is a list or tuple of 2"),
        ([{"gradient of x": t(1)}], [{"gradient of x": None}], "There is no gradient where one was asked for"),
        ([{"a": 1, "b": 2}], [{"a": 1, "c": 2}], "'c' too many; 'b' missing"),
        ([MATRIX], [MATRIX.t()], "rows and columns are swapped"),
        ([MATRIX], [MATRIX.flatten()], "the numbers are right"),
        ([t(3, 4), t(5, 6)], [t(3, 4, 5, 6)] * 2, "contains the right numbers, and 2 more"),
        ([t(1, 2, 3)] * 2, [t(1, 2, 3, 0)] * 2, "contains the right numbers, and 1 more"),
        ([t(1, 2, 3, 4)] * 2, [t(1, 2), t(3, 4)], "2 of the expected numbers are missing"),
        ([t(1, 2, 3)], [t(1, 2)], "1 of the expected numbers are missing"),
        ([t(1, 2)], [t(1)], "1 of the expected numbers are missing"),
        ([t(1, 2, 3)], [t(5, 5)], "shape is [2], and should be [3]."),
        ([torch.tensor([False, True, True])], [torch.tensor([0, 1])], "shape is [2], and should be [3]."),
        ([t(1)], [torch.tensor([1.0], dtype=torch.float64)], "The dtype is float64, and should be float32"),
        ([t(1)], [t(math.nan)], "NaN results from 0/0"),
        # of the right form
        ([t(3), t(3)], [t(0), t(0)], ""),
        ([3.5], [0.0], ""),
        ([torch.tensor(3.0)], [torch.tensor(0.0)], ""),
        ([t(1e-3, 2e-3)], [t(1e-3, 2.0002e-3)], ""),  # small numbers, without any 0
        # counts, truth values and words: nothing is computed with them
        ([{"a": 3}], [{"a": 0}], ""),
        ([8] * 2, [4] * 2, ""),
        ([3, 3], [3, 1], ""),
        ([1, 2], [2, 1], ""),
        ([True, True], [True, False], ""),
        (["forward", "forward"], ["backward", "forward"], ""),
        ([1000], [1500], ""),
        ([{"a": 3, "b": t(1)}] * 2, [{"a": 5, "b": t(1)}, {"a": 1, "b": t(1)}], ""),
        ([3 / 11], [8 / 11], ""),
        ([3 / 11], [1e308], ""),  # the ratio of the two is beyond the range of floats
        ([2**40], [10**5000], ""),
        ([{"a": 3}], [10**5000], "The result is a whole number of more than 300 digits, and a dict was asked for."),
        ([t(2.8, 7)] * 2, [t(1, 2.5)] * 2, ""),  # 5/14: divided by a number that was drawn
        ([t(4, 8)] * 4, [t(3, 6)] * 4, "Exactly 3/4 times the expected value, everywhere"),
        ([t(3, 5)] * 4, [t(12, 20)] * 4, "Exactly 4 times the expected value, and there are 4 ranks."),
        ([t(8, 4)] * 4, [t(2, 1)] * 4, "Exactly 1/4 of the expected value, and there are 4 ranks."),
        ([t(3, 5)] * 4, [t(9, 15)] * 4, "Exactly 3 times the expected value, everywhere"),
        ([t(3, 5)] * 3, [t(6, 10), t(3, 5), t(6, 10)], "Exactly 2 times the expected value, on each rank that"),
        ([1.4836] * 2, [1.30758] * 2, ""),  # two numbers always have some ratio, however many ranks hold them
        ([{"a": True, "b": 1}, {"a": True, "b": 2}], [{"a": False, "b": None}] * 2, ""),
        ([t(3, 5)], [t(-3, -5)], "The sign is reversed"),
        ([(3.0, t(1))], [(6.0, t(2))], "Exactly 2 times"),
        (FOUR, FOUR[1:] + FOUR[:1], "rank 2 holds what rank 3 should, rank 3 holds what rank 0 should"),
        ([torch.tensor([2**24 + 1, 3])], [torch.tensor([2**24, 3])], "rounded to the nearest that float32 has"),
        (FOUR[:2], FOUR[1::-1], "rank 0 holds what rank 1 should, rank 1 holds what rank 0 should"),
        (FOUR, [FOUR[0], FOUR[2], FOUR[1], FOUR[3]], "rank 1 holds what rank 2 should, rank 2 holds what rank 1"),
        (FOUR, [FOUR[2]] * 4, "Every rank holds what only rank 2 should hold"),
        (FOUR, [t(1, 7)] * 4, "Every rank holds the same"),
        (FOUR, [t(1, 7), *[t(1.000006, 7)] * 3], ""),  # equal within the tolerance, as losses of different data may be
        (FOUR, [t(0, 0)] * 4, ""),
        ([{"a": t(2), "b": one} for one in FOUR], [{"a": t(2), "b": t(0, 0)}] * 4, ""),
        ([t(9, 7)] * 3, [t(9, 7), t(1, 2), t(3, 3)], "Only rank 0 has the right result"),
        ([t(9, 7)] * 3, [t(5, 5), t(1, 2), t(3, 3)], ""),
        ([(t(1, 5), t(9, 7))] * 2, [(t(1, 5), t(9, 7)), (t(1, 5), t(18, 14))], "Exactly 2 times the expected value"),
        ([t(1, 2, 3), t(4, 6, 9)], [t(3, 1, 2), t(6, 4, 9)], "The right numbers, in a different order"),
        ([t(1, 2), t(3, 4)], [t(5, 17), t(7, 9)], ""),
        ([[[1, 2], [3], [1, 2]]], [[[3], [1, 2], [1, 2]]], "The right items, in a different order"),
        ([[[1, 2], [3], [1, 2]]], [[[3], [1, 2], [3]]], "The result has 1 item, and 2 were asked for"),
        ([torch.tensor([2**53 + 1, 2**24 + 1])], [torch.tensor([2**53, 2**24 + 1])], "that float64 has"),
    ],
)
def test_a_cause_is_recognised(expected: list[Any], given: list[Any], likely: str) -> None:
    (finding,) = findings(trial(expected, given))

    assert likely in finding.likely
    assert bool(likely) == bool(finding.likely)
    assert finding.action.endswith(".") or finding.action.endswith("?")


def test_nan_of_the_input_that_was_read_is_recognised() -> None:
    before = [t(1, math.nan), t(2, math.nan)]

    assert "an input that a rank does not have yet" in findings(trial([t(3)] * 2, [t(math.nan)] * 2, before))[0].likely


def test_one_number_is_no_proof_of_an_odd_factor() -> None:
    assert findings(trial([3.0], [7.123456]))[0].likely == ""
    assert findings(trial([1456], [1008]))[0].likely == ""  # 9/13
    assert findings(trial([t(0, 1)], [t(0, 2)]))[0].likely == ""
    assert findings(trial([3 / 11], [3.0]))[0].likely == ""
    assert "Exactly 3/2 times" in findings(trial([t(1000, 7)], [t(1500, 10.5)]))[0].likely
    assert "Exactly 2 times" in findings(trial([123.4], [246.8]))[0].likely
    assert findings(trial([4], [3]))[0].likely == ""
    assert findings(trial([t(17, 34)], [t(19, 38)]))[0].likely == ""  # some such fraction is near every ratio


def test_a_factor_is_exact_also_where_the_tolerance_is_wide() -> None:
    def likely(given):
        return recognise_pattern(Gap(expected=(3000.0,), given=(given,), before=((),), tolerance=0.01))

    assert "Exactly 1/4 times" in likely(750.0).likely
    assert likely(754.5) is None


def test_a_ranks_number_times_the_world_size_is_not_called_a_sum() -> None:
    assert findings(trial([0, 1], [0, 2]))[0].likely == ""
    assert "there are 2 ranks" in findings(trial([0, 1.37], [0, 2.74]))[0].likely


MASKS = torch.tensor([True, False, False]), torch.tensor([False, False, True])


@pytest.mark.parametrize(("expected", "given"), [(True, False), (3, 4), ("forward", "backward"), MASKS])
def test_a_decision_is_not_called_a_computation(expected: Any, given: Any) -> None:
    action = findings(trial([expected], [given]))[0].action

    assert action.startswith("Go through your code with this case in mind")


def test_the_first_element_that_differs_is_named_where_the_tensor_is_too_long_to_show() -> None:
    expected = torch.arange(12.0).view(3, 4)
    given = expected.index_fill(0, torch.tensor([1]), 0.0)

    (finding,) = findings(trial([{"w": expected / 3}], [{"w": given / 3}]))
    assert finding.observed == "result['w'][1, 0] of rank 0 is 0, expected 1.33333."


def test_the_first_step_that_differs_on_any_rank_is_named() -> None:
    right, late, early = [t(1), t(2), t(3)], [t(1), t(2), t(0)], [t(1), t(0), t(0)]

    assert findings(trial([right] * 2, [late, early]))[0].observed == "result[1] of rank 1 is [0], expected [2]."


def test_the_first_part_that_differs_on_any_rank_is_named() -> None:
    right = {"losses": [1.5, 2.5], "parameters": [t(1)]}
    given = [right | {"parameters": [t(2)]}, right | {"losses": [1.5, 2.6]}]

    assert "result['losses'][1] of rank 1 is 2.6" in findings(trial([right] * 2, given))[0].observed


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ([1.5, 2.5, 9.1], "The 2 items before it are right on every rank. Which line makes this one different?"),
        ([1.5, 9.1, 9.2], "The item before it is right on every rank. Which line makes this one different?"),
        ([9.1, 2.5, 3.5], "Find the line that first sets this value on rank 1, and print it"),
    ],
)
def test_what_is_right_before_a_step_is_named(given: list[float], action: str) -> None:
    others, right = {"losses": [0.1, 0.7, 0.3]}, {"losses": [1.5, 2.5, 3.5]}

    assert findings(trial([others, right], [others, {"losses": given}]))[0].action.startswith(action)


@pytest.mark.parametrize(
    ("right", "given"),
    [([t(1, 2), 2.5], [t(1, 2), 9.1]), ([2.5, t(1), t(2)], [2.5, t(1), t(9)]), ([[1.5, 2.5]], [[1.5, 9.1]])],
)
def test_a_pair_and_items_of_different_kinds_have_no_before(right: list[Any], given: list[Any]) -> None:
    assert "before" not in findings(trial([right], [given]))[0].action


def test_a_pair_in_a_list_of_steps_is_one_step() -> None:
    steps, given = [[["F", 0], ["F", 1], ["B", last]] for last in (0, 1)]

    assert findings(trial([steps], [given]))[0].action.startswith("The 2 items before it are right.")


def test_where_similar_texts_first_differ_is_said() -> None:
    right = "rank 0 of 2 says hello"
    givens = [f"{right}!", right.capitalize(), "rank 1 of 2 says hello", "hello", ""]
    told = [findings(trial([right], [given]))[0].observed.partition(" The texts ")[2] for given in givens]

    assert told == [f"first differ at character {place}." for place in (23, 1, 6)] + ["", ""]


def test_a_value_is_followed_where_the_program_sets_it() -> None:
    assert findings(trial([1.5, 7.1], [1.5, 9.4]))[0].action.startswith(
        "Find the line that first sets this value on ra"
    )


def test_a_value_is_computed_by_hand_for_the_arguments_if_they_are_short() -> None:
    wrong = trial([1.5], [9.4])
    short = replace(wrong, yours=replace(wrong.yours, before=((3,),)))

    assert findings(short)[0].action.startswith("Work it out by hand for `x = 3`, and print each step of yours")


def test_by_how_much_a_large_count_is_wrong_and_what_is_right_is_said() -> None:
    wrong = trial([{"parameters": 1280, "in all": 5}], [{"parameters": 1288, "in all": 5}])

    assert findings(wrong)[0].observed.endswith("is 1288, expected 1280. That is 8 too much. Right: 'in all'.")


def test_whether_only_one_side_is_the_same_on_all_ranks_is_said() -> None:
    (same,), (differ,) = findings(trial([1, 2], [3, 3])), findings(trial([t(9, 7)] * 2, [t(5, 5), t(1, 2)]))

    assert "Every rank has the same, and the reference's ranks differ." in same.observed
    assert "The ranks differ, and all should have the same." in differ.observed


def test_a_part_that_is_none_is_not_called_the_wrong_kind_of_result() -> None:
    (finding,) = findings(trial([{"moment": t(1, 2)}], [{"moment": None}]))

    assert finding.likely == "There is None where a float32 tensor of shape [2] was asked for."
    assert "torch.cat" not in finding.action


def test_on_one_rank_no_collective_is_missed() -> None:
    wrong = trial([t(1, 2)], [t(5, 17)])
    asked = Observation(values=wrong.expected.values, before=((),), after=((),), calls=calls("all_reduce"))

    (finding,) = findings(Trial(exercise=MEAN, case=wrong.case, expected=asked, yours=wrong.yours))
    assert finding.likely == ""


def test_a_result_of_no_rank_but_ones_own_is_explained_by_the_missing_calls() -> None:
    wrong = trial([t(1, 2), t(3, 4)], [t(5, 17), t(7, 9)])
    asked = Observation(values=wrong.expected.values, before=((),) * 2, after=((),) * 2, calls=calls("all_reduce", ""))

    (finding,) = findings(Trial(exercise=MEAN, case=wrong.case, expected=asked, yours=wrong.yours))
    assert finding.likely.startswith("No rank called a collective, a send or a recv")


def test_ranks_that_differ_without_a_call_are_explained_by_the_missing_calls() -> None:
    wrong = trial([t(9, 7)] * 2, [t(5, 5), t(1, 2)])
    asked = replace(wrong.expected, calls=calls("all_reduce", "all_reduce"))

    assert findings(replace(wrong, expected=asked))[0].likely.startswith("No rank called a collective")


def test_calls_of_the_exercise_itself_are_not_called_yours() -> None:
    def looks(solution: Any) -> None: ...

    wrong = trial([t(1, 2), t(3, 4)], [t(5, 17), t(7, 9)])
    made = tuple((replace(one, line=SourceLine(__file__, 1, "looks")),) for (one,) in calls("all_reduce", "all_reduce"))
    wrong = replace(wrong, exercise=changed(MEAN, trial=looks), expected=replace(wrong.expected, calls=made))

    found = findings(replace(wrong, yours=replace(wrong.yours, calls=made)))[0]
    assert found.action.startswith("Find the line that first sets this value")


def test_calls_that_match_the_references_are_said_to_do_so() -> None:
    wrong = trial([t(1, 2), t(3, 4)], [t(5, 17), t(7, 9)])

    starts = {"all_reduce": "Your calls match the reference's in", "broadcast": "Find the line that first sets this"}
    for made, start in starts.items():
        expected, yours = (replace(wrong.expected, calls=calls(op, op)) for op in ("all_reduce", made))
        finding = findings(replace(wrong, expected=expected, yours=replace(yours, values=wrong.yours.values)))[0]
        assert finding.action.startswith(start)


def test_a_finding_names_rank_and_place_and_shows_every_rank() -> None:
    (finding,) = findings(trial([(1, t(5, 6)), (2, t(7, 8))], [(1, t(5, 6)), (2, t(7, 9))]))

    assert finding.observed == "result[1] of rank 1 is [7, 9], expected [7, 8]."
    assert finding.table == (
        Row(rank=0, expected="[5, 6]", yours="[5, 6]"),
        Row(rank=1, expected="[7, 8]", yours="[7, 9]"),
    )


def test_what_an_exercise_looked_at_is_not_called_a_result() -> None:
    expected, given = [{"gradients": {"1": t(1, 2)}}], [{"gradients": {"1": t(1, 3)}}]
    looks = changed(MEAN, trial=lambda solution, x: {"gradients": {"1": solution(x)}})

    (finding,) = findings(replace(trial(expected, given), exercise=looks))
    assert finding.observed == "gradients['1'] of rank 0 is [1, 3], expected [1, 2]."
    (finding,) = findings(replace(trial([{"the same objects": True}], [{"the same objects": False}]), exercise=looks))
    assert finding.observed == "'the same objects' of rank 0 is False, expected True."


@pytest.mark.parametrize(
    ("given", "observed", "action"),
    [
        (None, "None", "Return the result: did you"),
        ([t(1)], "a list or tuple of 1", "Return a result of type torch.Tensor."),
    ],
)
def test_a_result_that_an_exercise_cannot_look_into(given: Any, observed: str, action: str) -> None:
    looks = changed(MEAN, trial=lambda solution, x: {"the mean": solution(x)})
    expected = {"the mean": t(1)}

    (finding,) = findings(replace(trial([expected] * 2, [expected, given]), exercise=looks))

    wanted = "a result of type torch.Tensor"
    assert finding.observed == f"rank 1 returned {observed}, expected {wanted}."
    assert finding.action.startswith(action)


def test_a_result_that_nobody_asked_for_is_not_wrong() -> None:
    assert findings(trial([None, None], [t(1), t(2)])) == []


def test_one_rank_that_returns_nothing_is_asked_for_nothing() -> None:
    (finding,) = findings(trial([t(1), None], [t(1), t(1)]))

    assert finding.observed == "rank 1 returned a float32 tensor of shape [1], expected None."


# Arguments


@pytest.mark.parametrize(
    ("expected", "yours", "observed", "action"),
    [
        (t(1), t(5), "the argument x was changed in place on rank 0.", "Work on a copy"),
        (t(5), t(1), "the argument x was left as it was on rank 0.", "x.copy_(result)"),
        (t(500), t(2000), "the argument x was left with other values on rank 0.", "a factor of 4"),
    ],
)
def test_what_became_of_an_argument_is_told(expected: Any, yours: Any, observed: str, action: str) -> None:
    before, unmoved = (plain(t(1)),), (plain(t(2)),)
    case = Case(world_size=2, args=lambda rank: ())
    reference, solution = (
        Observation(values=(None, None), before=(before, unmoved), after=((plain(after),), unmoved), calls=((), ()))
        for after in (expected, yours)
    )
    (finding,) = findings(Trial(exercise=MEAN, case=case, expected=reference, yours=solution))

    assert finding.observed == observed
    assert action in finding.action


def test_an_argument_that_is_the_result_on_other_ranks_needs_no_copy() -> None:
    before = ((plain(t(1)),), (plain(t(2)),))
    reference, solution = (
        Observation(values=(None, None), before=before, after=tuple((plain(t(x)),) for x in after), calls=((), ()))
        for after in ((1, 1), (2, 1))  # a broadcast from rank 0, and an exchange on rank 0
    )
    case = Case(world_size=2, args=lambda rank: ())
    (finding,) = findings(Trial(exercise=MEAN, case=case, expected=reference, yours=solution))

    assert finding.observed == "the argument x was changed in place on rank 0."
    assert finding.action.startswith("Which ranks should receive?")


def test_an_argument_that_the_exercise_makes_is_named_if_the_solution_has_it() -> None:
    def looks(solution: Any, seed: int, x: Any, *more: Any) -> Any:
        return solution(x)

    before, after = (plain([1, t(2), t(3)]), plain([1, t(5), t(6)]))
    reference, solution = (
        Observation(values=(None,), before=(before,), after=(end,), calls=((),)) for end in (before, after)
    )
    exercise, case = changed(MEAN, trial=looks), Case(world_size=0, args=lambda rank: ())
    found = findings(Trial(exercise=exercise, case=case, expected=reference, yours=solution))

    assert [finding.observed for finding in found] == [
        "the argument x was changed in place by your function.",
        "an argument was changed in place by your function.",
    ]


# Rules


def calls(*by_rank: str) -> tuple[tuple[Call, ...], ...]:
    """The calls of each rank, from their names: "send recv"."""
    line = SourceLine(filename="cell", line=1, function="f")
    return tuple(
        tuple(Call(variant=op, rank=0, group_name="0", ranks=(0, 1), line=line) for op in names.split())
        for names in by_rank
    )


def called(expected: Sequence[str], yours: Sequence[str]) -> Trial:
    wrong = trial([0] * len(yours), [0] * len(yours), calls=calls(*yours))
    asked = Observation(values=wrong.expected.values, calls=calls(*expected))
    return Trial(exercise=MEAN, case=wrong.case, expected=asked, yours=wrong.yours)


def test_only_these_calls() -> None:
    assert list(only_calls("send", "recv")(called(["", ""], ["send recv", "recv"]))) == []

    (finding,) = only_calls("send", "recv")(called(["", ""], ["send", "send broadcast all_gather"]))
    assert finding.observed == "rank 1 called all_gather, broadcast."
    assert finding.likely == "The task allows only send and recv."


def test_at_most_so_many_calls() -> None:
    assert list(at_most("send", 2)(called(["", ""], ["send send", "recv"]))) == []

    (finding,) = at_most("send", 1)(called(["", ""], ["send send", "send"]))
    assert finding.observed == "rank 0 called send 2 times; 1 would do."
    assert [row.differs for row in finding.table] == [True, False]


def test_the_same_calls_in_any_order() -> None:
    assert list(same_calls()(called(["send recv", "recv"], ["recv send", "recv"]))) == []

    (finding,) = same_calls()(called(["all_reduce", "all_reduce"], ["all_reduce", "broadcast all_reduce"]))
    assert finding.observed == "rank 1 made 1 all_reduce, 1 broadcast; the reference makes 1 all_reduce."
    assert finding.action.endswith("Which call is missing, or not needed?")

    (finding,) = same_calls()(called(["reduce_scatter"], ["all_reduce"]))
    assert finding.action.endswith("Which call should be a different one?")


# Texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (array(1, 2.5), "[1, 2.5]"),
        (plain(torch.arange(20)), "[0, 1, 2, 3, 4, 5, 6, 7 …]"),
        (plain(MATRIX), "[[0, 1, 2], [3, 4, 5]]"),
        (plain(torch.tensor(3.0)), "tensor(3)"),
        (plain(torch.zeros(0)), "[]"),
        (({"a": None},), "[{'a': None}]"),
        ("x" * 100, f"'{'x' * 70}…"),
        (Opaque(type_name="generator"), "a generator"),
    ],
)
def test_a_value_on_one_line(value: Any, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("expected", "given", "texts"),
    [
        (array(1, 2), array(1, 2.0000001), ("[1, 2]", "[1, 2]")),
        (array(1), array(1, dtype=torch.float64), ("a float32 tensor of shape [1]", "a float64 tensor of shape [1]")),
        (
            plain(torch.arange(20)),
            plain(torch.arange(20).index_fill(0, torch.tensor([15]), 0)),
            ("[… 11, 12, 13, 14, 15, 16, 17, 18 …]", "[… 11, 12, 13, 14, 0, 16, 17, 18 …]"),
        ),
        (1.0, 1.000002, ("1", "1.0000020000000001")),
        ("a" * 90 + "b", "a" * 90 + "c", (f"…'{'a' * 36}b'", f"…'{'a' * 36}c'")),
        ((1,) * 9, (1,) * 10, ("a list or tuple of 9", "a list or tuple of 10")),
        ({"a": ("b" * 80, 1)}, {"a": ("b" * 80, 2)}, ("at ['a'][1]: 1", "at ['a'][1]: 2")),
    ],
)
def test_two_values_are_told_apart_just_where_they_differ(expected: Any, given: Any, texts: tuple[str, str]) -> None:
    assert pair(expected, given, TOLERANCE / 10) == texts


def test_the_text_of_a_verdict() -> None:
    finding = Finding(
        observed="rank 1 returned 3, expected 2.",
        likely="One too many.",
        action="Count again.",
        table=(Row(rank=0, expected="1", yours="1"), Row(rank=1, expected="2", yours="3")),
        traceback="far too long",
    )
    failed = Verdict(
        exercise="sample.mean",
        status="failed",
        seed=4,
        findings=(finding,),
        cases_tried=2,
        case_count=6,
        case="2 ranks",
    )

    assert repr(failed).endswith("Likely: One too many.\nFor the next step: print(verdict.next_step)")
    assert failed.next_step == "Count again."
    assert failed.text(hints=True) == (
        "✗ sample.mean: failed\n"
        "Failing case: 2 ranks.\n"
        "rank 1 returned 3, expected 2.\n"
        "    rank  expected  yours\n"
        "    0     1         1\n"
        "  ✗ 1     2         3\n"
        "Likely: One too many.\n"
        "Next: Count again."
    )
