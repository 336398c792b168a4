"""Each collective gives what torch documents: waited for or not, in groups, between two ranks, and with a callback."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError
from tests.world.programs import rank

N = 3


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def mine() -> torch.Tensor:
    return values(rank(), 10 * rank())


def all_reduce():
    x = mine()
    dist.all_reduce(x)
    return x


def all_reduce_max():
    x = mine()
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def all_reduce_later():
    x = mine()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed()
    return x


def all_reduce_with_a_limit():
    x = mine()
    work = dist.all_reduce(x, async_op=True)
    work.wait(timedelta(minutes=1))
    work.wait(timeout=timedelta(minutes=1))
    return x


def all_reduce_sparse():
    x = torch.sparse_coo_tensor([[0, rank()]], [1.0, 10.0], (N,), check_invariants=True)
    dist.all_reduce(x)
    return x.to_dense()


def broadcast():
    x = mine()
    dist.broadcast(x, src=2)
    return x


def reduce():
    x = mine()
    dist.reduce(x, dst=1)
    return x if rank() == 1 else values(3, 30)  # elsewhere the result is undefined


def all_gather():
    parts = [torch.empty(2) for _ in range(N)]
    dist.all_gather(parts, mine())
    return torch.cat(parts)


def all_gather_with_padding():
    """Muon gathers its last parameters so: all outputs without a parameter are one tensor."""
    parts = [mine() + 1] + [torch.zeros(2)] * (N - 1)
    dist.all_gather(parts, parts[rank()])
    return parts[0]


def all_gather_single():
    whole = torch.empty(2 * N)
    dist.all_gather_single(whole, mine())
    return whole


def reduce_scatter():
    part = torch.empty(2)
    dist.reduce_scatter(part, [mine() + index for index in range(N)])
    return part - 3 * rank()


def reduce_scatter_single():
    part = torch.empty(2)
    dist.reduce_scatter_single(part, mine().repeat(N))
    return part


def reduce_scatter_later():
    part = torch.empty(2)
    dist.reduce_scatter_single(part, mine().repeat(N), async_op=True).wait()
    return part


def gather_then_broadcast():
    parts = [torch.empty(2) for _ in range(N)] if rank() == 0 else None
    dist.gather(mine(), parts, dst=0)
    whole = torch.cat(parts) if parts else torch.empty(2 * N)
    dist.broadcast(whole, src=0)
    return whole


def scatter():
    part = torch.empty(2)
    dist.scatter(part, [values(i, i) for i in range(N)] if rank() == 1 else None, src=1)
    return part - rank()


def all_to_all():
    r = rank()
    received = [torch.empty(1) for _ in range(N)]
    dist.all_to_all(received, [values(10 * r + peer) for peer in range(N)])
    return torch.cat(received) - r


def all_to_all_uneven():
    r = rank()
    received = torch.empty(N * (r + 1))
    sizes = [peer + 1 for peer in range(N)]
    dist.all_to_all_single(received, torch.ones(sum(sizes)), [r + 1] * N, sizes)
    return received.sum() / (r + 1)


def barrier():
    dist.barrier()
    dist.monitored_barrier()
    return values(1)


def objects():
    things = [None] * N
    dist.all_gather_object(things, {"rank": rank()})
    box = [things] if rank() == 0 else [None]
    dist.broadcast_object_list(box, src=0)
    return values(*(thing["rank"] for thing in box[0]))


def several_at_once():
    x, y = mine(), mine()
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return x + y


RESULTS = [
    (all_reduce, [3, 30]),
    (all_reduce_max, [2, 20]),
    (all_reduce_later, [3, 30]),
    (all_reduce_with_a_limit, [3, 30]),
    (all_reduce_sparse, [13, 10, 10]),
    (broadcast, [2, 20]),
    (reduce, [3, 30]),
    (all_gather, [0, 0, 1, 10, 2, 20]),
    (all_gather_with_padding, [1, 1]),
    (all_gather_single, [0, 0, 1, 10, 2, 20]),
    (reduce_scatter, [3, 30]),
    (reduce_scatter_single, [3, 30]),
    (reduce_scatter_later, [3, 30]),
    (gather_then_broadcast, [0, 0, 1, 10, 2, 20]),
    (scatter, [0, 0]),
    (all_to_all_uneven, 3),
    (barrier, [1]),
    (objects, [0, 1, 2]),
    (several_at_once, [6, 60]),
]
if torch.__version__ >= (2, 12):  # before, gloo has no all-to-all of lists
    RESULTS.append((all_to_all, [0, 10, 20]))


def test_every_rank_gets_the_same_right_result(local_world) -> None:
    run = local_world(N, timeout=20).run(lambda: [program() for program, _ in RESULTS])
    for results in run:
        for (program, expected), result in zip(RESULTS, results, strict=True):
            torch.testing.assert_close(
                result,
                torch.tensor(expected, dtype=torch.float32),
                msg=lambda text, program=program: f"{program.__name__}: {text}",
            )


def test_a_sparse_all_reduce_counts_what_a_rank_has(local_world) -> None:
    for communication in local_world(N).run(all_reduce_sparse).comm:
        assert communication.sent_bytes == (N - 1) * 2 * (8 + 4)  # two elements: indices of int64, and float32


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
def test_differentiable_collectives_find_the_group_of_their_run(local_world) -> None:
    def program():
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(values(rank())).item()

    world = local_world(2)
    for _ in range(2):
        assert list(world.run(program)) == [1.0, 1.0]
        with pytest.raises(RankError):
            world.run(lambda: 1 / 0)


def test_messages_arrive_in_the_order_in_which_they_were_sent(world) -> None:
    def relay():
        if rank() == 0:
            for number in range(5):
                dist.send(values(number), 1)
            return None
        box = torch.empty(1)
        return [(dist.recv(box, 0), box.item()) for _ in range(5)]

    assert world(2).run(relay)[1] == [(0, float(number)) for number in range(5)]


def test_tags_keep_messages_apart(local_world) -> None:
    def tagged():
        if rank() == 0:
            works = [dist.isend(values(tag), 1, tag=tag) for tag in (1, 2)]
            for work in works:
                work.wait()
            return None
        second, first = torch.empty(1), torch.empty(1)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        return first.item(), second.item()

    assert local_world(2).run(tagged)[1] == (1.0, 2.0)


def test_batched_messages_go_round_a_ring(local_world) -> None:
    def ring():
        r, n = rank(), dist.get_world_size()
        box = torch.empty(1)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, values(r), (r + 1) % n),
                dist.P2POp(dist.irecv, box, (r - 1) % n),
            ]
        )
        for work in works:
            work.wait()
        return box.item()

    assert list(local_world(4).run(ring)) == [3.0, 0.0, 1.0, 2.0]


def test_subgroups_work_side_by_side(world) -> None:
    def halves():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = values(rank())
        dist.all_reduce(x, group=groups[rank() // 2])
        return x.item()

    assert list(world(4).run(halves)) == [1.0, 1.0, 5.0, 5.0]


def test_many_collectives_may_be_under_way_at_once(local_world) -> None:
    def overlapped():
        tensors = [values(rank() + index) for index in range(50)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        return torch.cat(tensors)

    for result in local_world(4).run(overlapped):
        torch.testing.assert_close(result, torch.tensor([6.0 + 4 * index for index in range(50)]))


def test_a_future_can_be_chained(local_world) -> None:
    def chained():
        x = mine()
        future = dist.all_reduce(x, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / N).wait()

    for result in local_world(N).run(chained):
        torch.testing.assert_close(result, values(1, 10))


def test_functional_collectives_and_device_meshes(world) -> None:
    def functional():
        import torch.distributed._functional_collectives as funcol
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        summed = funcol.all_reduce(values(rank()), "sum", mesh["shard"].get_group())
        return summed.item(), mesh.get_coordinate()

    assert list(world(4).run(functional)) == [(1.0, (0, 0)), (1.0, (0, 1)), (5.0, (1, 0)), (5.0, (1, 1))]


def test_a_functional_collective_that_is_given_its_output(local_world) -> None:
    def gather():
        from torch.ops import _c10d_functional as functional

        out, group_name = torch.zeros(2), dist.group.WORLD.group_name
        gathered = functional.all_gather_into_tensor_out(torch.full((1,), float(rank())), 2, group_name, out=out)
        return functional.wait_tensor(gathered).tolist()

    run = local_world(2).run(gather)
    assert list(run) == [[0.0, 1.0]] * 2
    assert [call.name for call in run.calls[0]] == ["all_gather_single #1"]


def test_the_collectives_inside_an_operator_of_a_dtensor(local_world) -> None:
    def norm():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        x = distribute_tensor(torch.full((8,), 2.0), init_device_mesh("cpu", (2,)), [Shard(0)])
        return torch.linalg.svd(x.reshape(4, 2))[1].to_local().tolist()[0]

    run = local_world(2).run(norm)
    assert list(run) == [pytest.approx(32**0.5)] * 2
    assert [call.name for call in run.calls[1]] == ["scatter #1", "all_gather_single_coalesced #1"]


def test_a_callback_runs_as_its_rank(local_world) -> None:
    def program():
        seen, x = [], torch.ones(2)
        future = dist.all_reduce(x, async_op=True).get_future()
        future.then(lambda _: seen.append((rank(), torch.initial_seed()))).wait()
        return seen

    def seeded():
        torch.manual_seed(rank())
        return program()

    assert list(local_world(N).run(seeded)) == [[(r, r)] for r in range(N)]


def test_a_callback_may_make_a_collective_of_its_own_and_wait_for_it(local_world) -> None:
    def program():
        x = mine()

        def again(_):
            dist.all_reduce(x, async_op=True).wait()
            return x

        return dist.all_reduce(x, async_op=True).get_future().then(again).wait()

    assert [result.tolist() for result in local_world(N).run(program)] == [[9, 90]] * N


def test_messages_subgroups_and_handles_again_with_the_same_names(world) -> None:
    def program():
        pair = dist.new_group([0, 2])
        x = torch.tensor([float(rank())])
        if rank() in (0, 2):
            dist.all_reduce(x, group=pair)
        received = torch.empty(1)
        receive = dist.irecv(received, (rank() - 1) % 3)
        dist.isend(x, (rank() + 1) % 3).wait()
        receive.wait()
        dist.all_reduce(x, async_op=True).wait()
        gathered = [None] * 3
        dist.all_gather_object(gathered, {"rank": rank()})
        return x.item(), received.item(), gathered

    for _ in range(2):
        run = world(3).run(program)
        assert [(x, received) for x, received, _ in run] == [(5, 2), (5, 2), (5, 1)]
        assert run[1][2] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
