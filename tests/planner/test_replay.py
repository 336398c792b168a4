"""What this course's engines hold while gradients are averaged, bucket by bucket and layer by layer."""

from course_lib.planner import plan
from course_lib.planner.memory.replay import Moment, data_parallel, stage1, stage2, stage3


def test_data_parallel_keeps_every_flat_grad() -> None:
    moves = [moment for moment in data_parallel([[2, 3], [4]], [[0], [1], [2]]) if moment.copied]

    assert moves == [
        Moment(gradients=[2], averaged=[5], under_way=(), copied=[2]),
        Moment(gradients=[3], averaged=[5], under_way=(), copied=[3]),
        Moment(gradients=[4], averaged=[5, 4], under_way=(), copied=[4]),
    ]


def test_gradients_that_come_together_are_there_together() -> None:
    together = [moment.gradients for moment in data_parallel([[2, 3], [4]], [[0, 1], [2]])]

    assert together == [[2, 3], [2, 3], [3], [4], [4]]


def test_a_tied_weights_first_gradient_waits_for_its_second_and_their_sum() -> None:
    tied = [moment.gradients for moment in data_parallel([[2], [7]], [[1], [0], [1]])]

    assert tied == [[7], [7, 2], [7, 2], [7, 7, 7], [7]]


def test_stage_1_has_all_gradients_and_one_flat_grad() -> None:
    moments = list(stage1([[2, 3], [4]], ranks=2))

    assert all(moment.gradients == [2, 3, 4] for moment in moments)
    assert [(moment.averaged, moment.under_way) for moment in moments] == [
        ([], [6]), ([3], [6]), ([3], [4]), ([3, 2], [4]),
    ]  # fmt: skip


def test_in_stage_2_one_bucket_fills_while_another_is_under_way() -> None:
    moments = stage2([[1], [2], [3]], ranks=1, order=[[0], [1], [2]])
    moves = [(moment.averaged, moment.under_way) for moment in moments if moment.copied]

    assert moves == [([], [1]), ([1], [1, 2]), ([1, 2], [2, 3])]


def test_in_stage_2_a_bucket_that_waits_for_a_tensor_lets_others_fill_beside_it() -> None:
    moments = list(stage2([[5, 1], [3], [4]], ranks=1, order=[[0], [2], [3], [1]]))

    assert max((sum(moment.under_way), moment.under_way) for moment in moments) == (13, [6, 3, 4])
    assert moments[-1] == Moment(gradients=[], averaged=[6, 3, 4], under_way=[4])


def test_in_stage_2_a_bucket_without_gradients_leaves_at_the_end() -> None:
    assert list(stage2([[5], [3]], ranks=1, order=[[0]]))[-1] == Moment(gradients=(), averaged=[5, 3], under_way=[3])


def test_stage_3_goes_back_layer_by_layer() -> None:
    last, last_moves, first, first_moves, outer, outer_moves = stage3([[5, 1], [2, 2], [8]], 2, prefetch=1, early=[5])

    assert last == Moment(gradients=[5, 8], averaged=[], under_way=[], gathered=[6, 4, 8], cast=[2])
    assert last_moves == Moment(gradients=[5, 8], averaged=[], under_way=[8], gathered=[6, 4], cast=[2], copied=[8])
    assert first == Moment(gradients=[5, 2, 2], averaged=[4], under_way=[8], gathered=[6, 4], cast=[])
    assert (first_moves.averaged, first_moves.gathered) == ([4], [6])
    assert outer == Moment(gradients=[5, 1], averaged=[2, 4], under_way=[4], gathered=[6])
    assert outer_moves.under_way == [6]


def test_in_stage_3_a_tied_weights_gradients_are_added_up_after_the_first_layer_is_left() -> None:
    *_, first_moves, outer, outer_moves = stage3([[5], [2], [8]], ranks=1, prefetch=1, early=[5], again=[5])

    assert [moment.gradients for moment in (first_moves, outer, outer_moves)] == [[5, 2], [5, 5, 5], [5]]


def nbytes(name: str, moment: str, **given: object) -> int:
    parts = plan(world_size=2, stage=2, engine="zero", **given).parts
    return sum(part.nbytes for part in parts if part.name == name and part.moments == (moment,))


def test_no_copy_is_made_where_torch_makes_none() -> None:
    """On GPUs a 16-bit gradient is added to the fp32 sum as it is."""
    copy = ("a gradient cast to be added", "end of backward")
    given = {"params": [(512, 512)]}

    assert nbytes(*copy, **given) == 4 * 512 * 512
    assert nbytes(*copy, **given, allocator="cuda") == nbytes(*copy, **given, precision="fp32") == 0


def test_stage_2_takes_an_eighth_of_a_small_models_parameters_at_a_time() -> None:
    given = {"params": [[(100, 10)] for _ in range(16)], "precision": "fp32"}
    under_way = [
        nbytes("gradients under way", "end of backward", **given, bucket_bytes=size) for size in (None, 4000, 10**6)
    ]

    assert under_way == [2 * 8000, 2 * 4000, 64000]
