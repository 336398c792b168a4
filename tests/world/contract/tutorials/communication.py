"""Messages, collectives and groups."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.world import functional
from tests.world.contract.tutorials.common import N, batch, equal, everywhere, mesh, model, of_rank, tutorial
from tests.world.programs import rank

# -- messages and collectives ------------------------------------------------------------------------------------------


@everywhere
def send_and_receive() -> None:
    x = torch.full((3,), 7.0) if rank() == 0 else torch.zeros(3)
    if rank() == 0:
        dist.send(x, dst=1)
    elif rank() == 1:
        dist.recv(x, src=0)
    dist.broadcast(x, src=1)
    equal(x, [7, 7, 7])


@tutorial
def send_and_receive_in_the_background() -> None:
    x = torch.tensor([float(rank())])
    works = [dist.isend(x, (rank() + 1) % N), dist.irecv(received := torch.empty(1), (rank() - 1) % N)]
    for work in works:
        work.wait()
    equal(received, [(rank() - 1) % N])


@tutorial
def ring_all_reduce() -> None:
    total = passed = torch.tensor([float(rank())])
    for _ in range(N - 1):
        received = torch.empty(1)
        work = dist.isend(passed, (rank() + 1) % N)
        dist.recv(received, (rank() - 1) % N)
        work.wait()
        total, passed = total + received, received
    equal(total, [6])


@tutorial
def exchange_objects_with_a_neighbour() -> None:
    box = [None]
    if rank() % 2 == 0:
        dist.send_object_list([{"from": rank()}], dst=rank() + 1)
    else:
        dist.recv_object_list(box, src=rank() - 1)
    everyone = [None] * N
    dist.all_gather_object(everyone, box[0])
    assert everyone == [None, {"from": 0}, None, {"from": 2}]


@everywhere
def gather_and_scatter_objects() -> None:
    gathered = [None] * N if rank() == 0 else None
    dist.gather_object({"rank": rank()}, gathered, dst=0)
    mine = [None]
    dist.scatter_object_list(mine, [thing["rank"] * 10 for thing in gathered] if rank() == 0 else None, src=0)
    assert mine == [rank() * 10]


@tutorial
def broadcast_objects() -> None:
    things = ["text", {"lr": 0.1}, [1, 2]] if rank() == 2 else [None] * 3
    dist.broadcast_object_list(things, src=2)
    assert things == ["text", {"lr": 0.1}, [1, 2]]


@tutorial
def reductions() -> None:
    ops = {"SUM": 6.0, "MAX": 3.0, "MIN": 0.0, "PRODUCT": 0.0}
    for name, expected in ops.items():
        x = torch.tensor([float(rank())])
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        equal(x, [expected])


@tutorial
def average_of_a_metric() -> None:
    seen = torch.tensor([rank() + 1.0, 2.0])  # the sum of a rank's losses, and how many they are
    dist.reduce(seen, dst=0)
    if rank() == 0:
        equal(seen[0] / seen[1], 10 / 8)


@tutorial
def all_gather_uneven_tensors() -> None:
    sizes = [torch.empty(1, dtype=torch.long) for _ in range(N)]
    dist.all_gather(sizes, torch.tensor([rank() + 1]))
    padded = torch.zeros(max(sizes).item())
    padded[: rank() + 1] = rank()
    parts = [torch.empty_like(padded) for _ in range(N)]
    dist.all_gather(parts, padded)
    equal(torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]), [0, 1, 1, 2, 2, 2, 3, 3, 3, 3])


@tutorial
def transpose_by_all_to_all() -> None:
    mine = torch.arange(N) + 10.0 * rank()
    theirs = torch.empty(N)
    dist.all_to_all_single(theirs, mine)
    equal(theirs, [10 * peer + rank() for peer in range(N)])


@tutorial
def reduce_scatter_then_all_gather_is_an_all_reduce() -> None:
    x = torch.arange(8.0) * (rank() + 1)
    part, all_parts = torch.empty(2), torch.empty(8)
    dist.reduce_scatter_single(part, x)
    dist.all_gather_single(all_parts, part)
    equal(all_parts, torch.arange(8.0) * 10)


@tutorial
def overlap_with_computation() -> None:
    x = of_rank()
    work = dist.all_reduce(x, async_op=True)
    square = torch.eye(3) @ torch.eye(3)
    work.wait()
    equal(x + square.sum(), [9, 63])


@tutorial
def first_rank_prepares_while_the_others_wait() -> None:
    box = [None]
    if rank() == 0:
        box = ["prepared"]
    dist.barrier()
    dist.broadcast_object_list(box, src=0)
    assert box == ["prepared"]


@everywhere
def subgroups_of_even_and_odd_ranks() -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = of_rank()
    dist.all_reduce(x, group=groups[rank() % 2])
    equal(x, [2, 20] if rank() % 2 == 0 else [4, 40])


@tutorial
def subgroups_by_enumeration() -> None:
    mine, _ = dist.new_subgroups(group_size=2)
    x = of_rank()
    dist.all_reduce(x, group=mine)
    equal(x, [1, 10] if rank() < 2 else [5, 50])
    assert dist.get_process_group_ranks(mine) == ([0, 1] if rank() < 2 else [2, 3])


@tutorial
def ranks_of_a_group_and_of_the_world() -> None:
    group = dist.new_group([1, 3])
    if rank() in (1, 3):
        assert dist.get_rank(group) == rank() // 2
        assert dist.get_global_rank(group, 1) == 3 and dist.get_group_rank(group, 3) == 1
    dist.barrier()


@tutorial
def split_evaluation() -> None:
    x, y = batch()
    right = (model()(x[rank() :: N]).argmax(1) == y[rank() :: N].argmax(1)).sum()
    dist.all_reduce(right)
    assert right.item() == (model()(x).argmax(1) == y.argmax(1)).sum().item()


# -- functional collectives, and autograd through them -----------------------------------------------------------------


@everywhere
def functional_all_reduce() -> None:
    equal(funcol.all_reduce(of_rank(), "sum", dist.group.WORLD), [6, 60])


@tutorial
def functional_gather_and_scatter() -> None:
    gathered = functional.all_gather(of_rank(), 0, dist.group.WORLD)
    equal(gathered, [0, 0, 1, 10, 2, 20, 3, 30])
    equal(functional.reduce_scatter(gathered, "sum", 0, dist.group.WORLD), of_rank() * N)


@tutorial
def functional_collectives_over_a_mesh() -> None:
    grid = mesh(2, 2, names=("rows", "columns"))
    equal(funcol.all_reduce(of_rank(), "sum", grid["rows"]), [2, 20] if rank() % 2 == 0 else [4, 40])
    equal(funcol.all_reduce(of_rank(), "sum", grid["columns"]), [1, 10] if rank() < 2 else [5, 50])


@tutorial
def functional_all_to_all() -> None:
    sent = torch.arange(N) + 10.0 * rank()
    equal(funcol.all_to_all_single(sent, None, None, dist.group.WORLD), [10 * peer + rank() for peer in range(N)])


@tutorial
def gradient_through_a_functional_all_gather() -> None:
    x = of_rank().requires_grad_()
    gathered = functional.all_gather_autograd(x, 0, dist.group.WORLD)
    (gathered * torch.arange(8.0)).sum().backward()
    equal(x.grad, N * torch.arange(8.0)[2 * rank() : 2 * rank() + 2])


@tutorial
def gradient_through_a_functional_reduce_scatter() -> None:
    x = torch.ones(N, requires_grad=True)
    part = functional.reduce_scatter_autograd(x, "sum", 0, dist.group.WORLD)
    (part * (rank() + 1)).sum().backward()
    equal(x.grad, [1, 2, 3, 4])


@tutorial
def an_autograd_function_of_ones_own() -> None:
    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            dist.all_reduce(summed := x.clone())
            return summed

        @staticmethod
        def backward(ctx, gradient):
            dist.all_reduce(gradient := gradient.clone())
            return gradient

    x = of_rank().requires_grad_()
    (Summed.apply(x) * (rank() + 1)).sum().backward()
    equal(x.grad, [10, 10])
