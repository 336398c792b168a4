"""What this course's engines hold while gradients are averaged, bucket by bucket and layer by layer."""

from course_lib.planner import plan
from course_lib.planner.replay import Moment, data_parallel, stage1, stage2, stage3


def test_data_parallel_keeps_every_flat_grad() -> None:
    assert list(data_parallel([[2, 3], [4]])) == [
        Moment(gradients=[3], averaged=[5], under_way=(), copied=[3]),
        Moment(gradients=[4], averaged=[5, 4], under_way=(), copied=[4]),
    ]


def test_stage_1_has_all_gradients_and_one_flat_grad() -> None:
    moments = list(stage1([[2, 3], [4]], ranks=2))

    assert all(moment.gradients == [2, 3, 4] for moment in moments)
    assert [(moment.averaged, moment.under_way) for moment in moments] == [
        ([], [6]), ([3], [6]), ([3], [4]), ([3, 2], [4]),
    ]  # fmt: skip


def test_in_stage_2_one_bucket_fills_while_another_is_under_way() -> None:
    moments = list(stage2([[1], [2], [3]], ranks=1))

    assert [(moment.averaged, moment.under_way) for moment in moments] == [([], [1]), ([1], [1, 2]), ([1, 2], [2, 3])]


def test_stage_3_goes_back_layer_by_layer() -> None:
    last, last_moves, first, first_moves, outer, outer_moves = stage3([[5], [2, 2], [8]], ranks=2, prefetch=1)

    assert last == Moment(gradients=[5, 8], averaged=[], under_way=[], gathered=[5, 4, 8], cast=[2])
    assert last_moves == Moment(gradients=[5, 8], averaged=[], under_way=[8], gathered=[5, 4], cast=[2], copied=[8])
    assert first == Moment(gradients=[5, 2, 2], averaged=[4], under_way=[8], gathered=[5, 4], cast=[])
    assert (first_moves.averaged, first_moves.gathered) == ([4], [5])
    assert (outer.gradients, outer.gathered, outer_moves.under_way) == ([5], [5], [5])


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
