"""Calls that do not fit together, or that cannot be right, are refused with their values before gloo sees them.

On each backend the same code compares them, that of `collectives`, and `test_failures` has every kind on each. So most
run here on simulated ranks, which is quickest.
"""

import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib import World
from tests.world.programs import come_to_their_waits, failure, lines, rank


def disagree_about_sparsity() -> None:
    dist.all_reduce(torch.ones(2, 2) if rank() else torch.ones(2, 2).to_sparse())


def channels(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format


def transposed(rows: int, columns: int) -> torch.Tensor:
    """Return a tensor of this shape whose elements lie in the order of its transpose."""
    return torch.arange(float(rows * columns)).view(columns, rows).t()


def split_unevenly() -> None:
    mine = [2, 1, 1, 1] if rank() == 1 else [1] * 4
    dist.all_to_all_single(torch.empty(4, 3), torch.ones(sum(mine), 3), [1] * 4, mine)


def reduce_scatter_more() -> None:
    more = 1 + rank() // 3
    dist.reduce_scatter_single(torch.empty(more), torch.ones(4 * more))


def all_gather_more() -> None:
    more = 1 + rank() // 3
    dist.all_gather_single(torch.empty(4 * more), torch.ones(more))


def make_a_mesh_of_some() -> None:
    init_device_mesh("cpu", (2,)).get_group()


def freeze_on_one_rank() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    net[0].requires_grad_(rank() != 1)
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    for _ in range(2):
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()


def skip_a_layer() -> None:
    first, second = (fully_shard(torch.nn.Linear(4, 4)) for _ in range(2))
    for step in range(2):
        hidden = torch.ones(2, 4)
        if step == 0 or rank() != 1:
            hidden = first(hidden)
        loss = second(hidden).sum()
        loss.backward()


def join_parts_of_two_sizes() -> None:
    part = torch.ones(3 - rank() // 2, 4)
    dtensor.DTensor.from_local(part, init_device_mesh("cpu", (3,)), [dtensor.Shard(0)]).full_tensor()


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        (make_a_mesh_of_some, "Next: look whether the mesh has fewer ranks than the world: rank 2 may not be in it."),
        (freeze_on_one_rank, "FSDP makes no reduce_scatter for frozen parameters: compare `requires_grad`"),
        (join_parts_of_two_sizes, "from_local needs shape= and stride= of the whole."),
    ],
)
def test_what_a_library_leaves_unsaid_is_in_the_advice(program, advice: str) -> None:
    assert advice in str(failure(World(3), program))


def test_frozen_parameters_are_no_advice_where_lines_differ_earlier() -> None:
    message = str(failure(World(3), skip_a_layer))
    assert "the lines first differ at all_gather_single #" in message
    assert "reduce_scatter_single" in message
    assert "requires_grad" not in message


def make_only_the_own_group() -> None:
    if rank() < 2:
        dist.new_group([0, 1])
    dist.barrier()
    if rank() >= 2:
        dist.new_group([2, 3])


@pytest.mark.parametrize(
    ("program", "headline"),
    [
        (
            lambda: dist.all_reduce(torch.ones(4 + rank() % 2)),
            "number of elements in all_reduce #1: ranks 0, 2: float32 [4]; ranks 1, 3: float32 [5]",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2, 3) if rank() else torch.ones(3, 2)),
            "shape in all_reduce #1: rank 0: float32 [3, 2]; ranks 1-3: float32 [2, 3]",
        ),
        (
            lambda: dist.broadcast(torch.ones(4, 2) if rank() else torch.ones(8), 0),
            "shape in broadcast #1: rank 0: float32 [8]; ranks 1-3: float32 [4, 2]",
        ),
        (
            lambda: dist.broadcast(torch.empty(3, 4) if rank() else transposed(3, 4), 0),
            "strides in broadcast #1: rank 0: float32 [3, 4] with strides [1, 3]; ranks 1-3: float32 [3, 4] with strid",
        ),
        (
            lambda: dist.all_reduce(transposed(3, 4) if rank() else torch.ones(3, 4)),
            "strides in all_reduce #1: rank 0: float32 [3, 4] with strides [4, 1]; ranks 1-3: float32 [3, 4] with stri",
        ),
        (
            lambda: dist.reduce(torch.ones(2, 3, 4, 4).to(memory_format=channels(rank() == 2)), 0),
            "strides in reduce #1: ranks 0, 1, 3: float32 [2, 3, 4, 4] with strides [48, 16, 4, 1]; rank 2: float32 [2",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank() == 0 else dist.ReduceOp.SUM),
            "reduction in all_reduce #1: rank 0: max; ranks 1-3: sum",
        ),
        (disagree_about_sparsity, "layout in all_reduce #1: rank 0: sparse_coo; ranks 1-3: strided"),
        (
            reduce_scatter_more,
            "number of elements in reduce_scatter_single #1: ranks 0-2: float32 [4]; rank 3: float32 [8]",
        ),
        (
            all_gather_more,
            "number of elements in all_gather_single #1: ranks 0-2: float32 [1]; rank 3: float32 [2]",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4), [2, 0, 1, 1] if rank() == 0 else None),
            "split sizes in all_to_all_single #1: rank 0 sends 1 element to itself, and expects 2; rank 0: sends [1",
        ),
        (
            split_unevenly,
            "rank 1 sends 6 elements to rank 0, which expects 3; ranks 0, 2, 3: sends [3, 3, 3, 3] elements, expects",
        ),
        (make_only_the_own_group, "members in new_group([0, 1]): ranks 0, 1: [0, 1]; rank"),
    ],
)
def test_calls_that_do_not_fit(program, headline) -> None:
    error = failure(World(4), program)
    assert error.kind == "mismatch" and headline in lines(error)[0], lines(error)[0]


@pytest.mark.parametrize(
    ("late", "kind", "finding"),
    [
        (3, "mismatch", "the ranks disagree about the members in new_group([2, 3]): rank 2: [2, 3]; rank 3: [3]"),
        (2, "absent", "rank 3 also called init_device_mesh at test_mismatches.py line"),
    ],
)
def test_meshes_of_different_shapes(late, kind, finding) -> None:
    def program() -> None:
        if rank() == late:
            come_to_their_waits()
        init_device_mesh("cpu", (1, 4) if rank() == 3 else (2, 2))

    error = failure(World(4), program)
    assert error.kind == kind and finding in str(error), error
    assert "Next: call init_device_mesh on every rank, in the same order and with the same arguments" in str(error)


def test_a_call_of_a_thread_is_named_as_one() -> None:
    def program() -> None:
        if rank() == 0:
            thread = threading.Thread(target=dist.barrier)
            thread.start()
            thread.join()
        dist.all_reduce(torch.ones(1))

    error = failure(World(2, backend="processes"), program)
    assert "\n  rank 0 called barrier #1 in a thread at test_mismatches.py line" in str(error)
    assert "\n  rank 1 called all_reduce #1 at test_mismatches.py line" in str(error)
    assert "Give the calls of a thread a group of their own: dist.new_group()." in str(error)


def test_the_message_on_shapes_says_that_torch_compares_only_sizes() -> None:
    error = failure(World(2), lambda: dist.all_reduce(torch.ones(2, 3) if rank() else torch.ones(6)))
    assert "torch alone would run this: it matches the elements in the order of memory" in str(error)


@pytest.mark.parametrize("op", ["all_gather", "gather", "scatter"])
def test_the_message_on_the_shapes_of_a_list_says_that_gloo_refuses_them(op) -> None:
    def program() -> None:
        mine, parts = torch.ones(3 - rank(), 2 + rank()), [torch.ones(3, 2), torch.ones(2, 3)]
        if op == "all_gather":
            dist.all_gather(parts, mine)
        elif op == "gather":
            dist.gather(mine, parts if rank() == 0 else None)
        else:
            dist.scatter(mine, parts if rank() == 0 else None)

    error = failure(World(2), program)
    assert f"the ranks disagree about the shape in {op} #1: rank 0: float32 [3, 2]; rank 1:" in str(error)
    assert "refuses a list of different shapes" in str(error) and "torch alone would run" not in str(error)


@pytest.mark.parametrize("shapes", [((), (1,)), ((1, 1), (1,)), ((0,), (0, 4))], ids=str)
def test_the_shape_of_one_element_is_free(local_world, shapes) -> None:
    def program():
        x = torch.full(shapes[rank()], 1.0 + rank())
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        return x.flatten().tolist()

    run = local_world(2).run(program)
    assert list(run) == [[] if 0 in shapes[0] else [3.0]] * 2 and run.warnings == ()


def test_strides_that_agree_on_all_ranks_are_right(local_world) -> None:
    def program():
        whole, image, image_of_one = transposed(3, 4), torch.ones(2, 3, 4, 4), torch.ones(2, 1, 4, 4)
        dist.all_reduce(whole)
        dist.all_reduce(image.to(memory_format=torch.channels_last))
        dist.all_reduce(image_of_one.to(memory_format=channels(rank() == 1)))  # its one channel may have any stride
        dist.all_reduce(torch.empty_strided((3, 1, 4), (1, 3 + rank(), 3)).fill_(1.0))
        parts = [transposed(3, 4), transposed(3, 4)]
        dist.reduce_scatter(total := torch.empty_like(parts[0]), parts)
        dist.all_gather(gathered := [torch.empty(3, 4), transposed(3, 4)], transposed(3, 4))
        return [torch.equal(one, 2 * transposed(3, 4)) for one in (whole, total, sum(gathered))]

    run = local_world(2).run(program)
    assert list(run) == [[True] * 3] * 2 and run.warnings == ()


def broadcast_from_outside() -> None:
    group = dist.new_group([2, 3])
    if rank() >= 2:
        dist.broadcast(torch.ones(1), src=0, group=group)


def sum_of_a_dtensor() -> None:
    from torch.distributed.tensor import DTensor, init_device_mesh

    dist.all_reduce(DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (4,))))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            lambda: dist.reduce_scatter_single(torch.empty(3), torch.ones(10)),
            "reduce_scatter_single: the input needs a length divisible by the 4 ranks, got 10 elements. Pad it to 12",
        ),
        (
            lambda: dist.all_gather_single(torch.empty(9), torch.ones(2)),
            "all_gather_single: float32 [9] is not 4 times float32 [2]",
        ),
        (
            lambda: dist.all_gather([torch.empty(3)] * 4, torch.ones(2)),
            "all_gather: tensor 0 of the list is float32 [3], and the single tensor is float32 [2]",
        ),
        (
            lambda: dist.scatter(torch.empty(2), [torch.ones(2)] * 3 if rank() == 0 else None, 0),
            "scatter: the list needs one tensor for each of the 4 ranks, got 3",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), torch.ones(5)),
            "all_to_all_single: the 5 rows of the input do not divide by 4 ranks",
        ),
        (
            lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4), None, [1, 1, 1, 2]),
            "must hold one number for each of the 4 ranks, and add up to the 4 rows of the input",
        ),
        (
            lambda: dist.all_to_all_single(*[torch.ones(4)] * 2),
            "all_to_all_single: the output shares memory with the input",
        ),
        (
            lambda: dist.all_reduce(torch.ones(4, 2)[:, 0]),
            "all_reduce: the elements of float32 [4] do not lie next to each other in memory (strides [2])",
        ),
        (
            lambda: dist.reduce_scatter(torch.empty(2, 3), [transposed(2, 3)] * 4),
            "tensor 0 of the list and of the single tensor lie in different orders in memory (strides [1, 2] and [3, 1",
        ),
        (
            lambda: dist.all_to_all_single(transposed(4, 3), torch.ones(4, 3)),
            "all_to_all_single: the elements of the output float32 [4, 3] do not lie in its own order in memory (s",
        ),
        (lambda: dist.broadcast(torch.ones(1).expand(4), 0), "next to each other in memory (strides [0])"),
        (lambda: dist.recv(torch.ones(1)), "recv: say which rank sends, with src=. NCCL needs it, too."),
        (lambda: dist.recv(torch.ones(1), src=rank()), "recv: the other rank is this rank itself"),
        (lambda: dist.all_reduce(torch.ones(4, device="meta")), "all_reduce: the tensor is on device meta"),
        (sum_of_a_dtensor, "all_reduce: the tensor is a DTensor, a wrapper without memory of its own"),
        (
            lambda: dist.broadcast(torch.ones(2), src=7),
            "ValueError: broadcast: there is no rank 7 in this group of 4. src and dst are global ranks",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex128), op=dist.ReduceOp.BAND),
            "all 4 ranks raised ",
        ),
    ],
)
def test_arguments_that_cannot_be_right(program, message) -> None:
    error = failure(World(4), program)
    assert error.kind in ("raised", "refused") and message in lines(error)[0], error


def send_with_a_negative_tag() -> None:
    if rank() == 0:
        dist.send(torch.ones(2), 1, tag=-5)
    else:
        dist.recv(torch.ones(2), 0, tag=-5)


def test_a_message_that_gloo_refuses_has_the_line_of_each_rank() -> None:
    first, *others = lines(failure(World(2), send_with_a_negative_tag))
    assert first.startswith(
        "gloo refused the send to rank 1 with tag -5 of rank 0 and the recv from rank 0 with tag -5 of rank 1: "
    )
    assert others[0].startswith("  rank 0 raised") and others[0].endswith("dist.send(torch.ones(2), 1, tag=-5)")
    assert others[1].startswith("  rank 1 raised") and others[1].endswith("dist.recv(torch.ones(2), 0, tag=-5)")


def test_a_source_outside_the_subgroup(local_world) -> None:
    error = failure(local_world(4), broadcast_from_outside)
    assert "src and dst are global ranks, and must belong to the group that you pass" in str(error)


def end_a_loop_early() -> None:
    for _ in range(2):
        for length in range(1, 4 - rank()):
            dist.all_reduce(torch.ones(length))


def train_models_of_different_depth() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4 - rank())])
    for layer in model:
        fully_shard(layer)
    loss = fully_shard(model)(torch.ones(2, 4)).sum()
    loss.backward()


@pytest.mark.parametrize(
    ("program", "detail", "advice"),
    [
        (end_a_loop_early, "number of elements", "Or a loop ended earlier on a rank: decide its end by a value that"),
        (train_models_of_different_depth, "collective", "Or the model differs: build the same one on every rank."),
    ],
)
def test_advice_on_calls_of_one_line_names_what_lies_before_it(program, detail: str, advice: str) -> None:
    error = failure(World(2), program)
    assert error.kind == "mismatch" and detail in str(error) and advice in str(error)
