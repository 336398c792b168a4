"""What torch's fully_shard holds in a step, unit by unit; two ranks, unless it says otherwise."""

from typing import Any

from course_lib.planner.memory.fully_shard_replay import Backward, Cut, Moment, forward

OUTER, *LAYERS = (Cut(unit, ranks=2) for unit in (((2, 2),), ((4, 3), (5,)), ((6,),)))


def backward(**given: Any) -> list[Moment]:
    usual = {"reshard": True, "prefetch": 1, "early": [], "again": [], "hybrid": False, "first_waits": False}
    return [*Backward(OUTER, LAYERS, **usual | given).moments()]


def test_a_unit_is_padded_by_rows() -> None:
    layer = LAYERS[0]

    assert (layer.gradients, layer.whole, layer.shard, layer.padded) == ([12, 5], [12, 6], 9, [6])


def test_one_rank_gathers_nothing() -> None:
    assert Cut(((4, 3),), ranks=1).flat == []


def test_in_forward_what_was_gathered_outlives_the_next_copy_out() -> None:
    held = [(moment.whole, moment.flat) for moment in forward(OUTER, LAYERS, reshard=True)]

    assert held == [([4], [4]), ([4, 12, 6], [4, 18]), ([4, 6], [18, 6]), ([4], [])]


def test_layers_that_are_not_resharded_pile_up() -> None:
    assert [moment.whole for moment in forward(OUTER, LAYERS, reshard=False)][-1] == [4, 12, 6, 6]
    assert backward(reshard=False)[0].whole == [4, 12, 6, 6]
    assert all(not moment.flat for moment in backward(reshard=False))


def test_the_next_layer_is_gathered_while_the_gradients_of_one_come() -> None:
    copied, ahead, _, came, *_ = backward(early=[4])

    assert (copied.whole, copied.flat, copied.gradients) == ([4, 6], [6], [4])
    assert (ahead.flat, ahead.cast) == ([18], [9])
    assert (came.whole, came.flat, came.gradients) == ([4, 6], [18], [4, 6])


def test_what_was_scattered_stays_until_the_next_layers_is_filled() -> None:
    scattered = [moment.scattered for moment in backward()]

    assert scattered == [(), (), (), (), [6], [6], [6], [6], [6], [6], [18], [18], [18], [4], [4]]


def test_a_first_layer_whose_input_asks_for_no_gradient_is_reduced_last() -> None:
    *_, outer, _, first, _ = backward(first_waits=True)

    assert (outer.whole, outer.gradients, outer.scattered) == ([12, 6], [12, 5, 4], [4])
    assert (first.whole, first.gradients, first.scattered) == ([], [12, 5], [18])


def test_a_tied_weights_gradients_are_added_up_at_the_end() -> None:
    assert [4, 4, 4] in [moment.gradients for moment in backward(early=[4], again=[4])]


def test_hybrid_sharding_keeps_what_is_averaged_with_replicas() -> None:
    assert backward()[-1].reduced == [2]
    assert backward(hybrid=True)[-1].reduced == [3, 9, 2]
