"""What each rank sent: every op by its meaning, torch's engines to the byte, and where it came from."""

from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_lib import World

STEPS, RANKS = 2, 3
SIZES = (7, 5, 3)  # of the layers: 3 does not divide what they have
NUMEL = (7 * 5 + 5) + (5 * 3 + 3)


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def share(times, nbytes, ranks):
    """`times` (N-1)/N of `nbytes`, rounded down."""
    return floor(Fraction(times * (ranks - 1) * nbytes, ranks))


# Ops by meaning


def pieces(numel=5):
    return [torch.ones(numel) for _ in range(size())]


RING = {  # (op, how often (N-1)/N of the whole is sent, calls of it: every variant)
    "all_reduce": (2, [lambda: dist.all_reduce(torch.ones(size() * 5))]),
    "broadcast": (1, [lambda: dist.broadcast(torch.ones(size() * 5), 0)]),
    "reduce": (1, [lambda: dist.reduce(torch.ones(size() * 5), 0)]),
    "all_gather": (
        1,
        [
            lambda: dist.all_gather(pieces(), torch.ones(5)),
            lambda: dist.all_gather_single(torch.ones(size() * 5), torch.ones(5)),
        ],
    ),
    "reduce_scatter": (
        1,
        [
            lambda: dist.reduce_scatter(torch.ones(5), pieces()),
            lambda: dist.reduce_scatter_single(torch.ones(5), torch.ones(size() * 5)),
        ],
    ),
}


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("op", RING)
def test_ring_ops_send_their_share_to_the_next_rank(op, world_size) -> None:
    times, variants = RING[op]
    for call in variants:
        run = World(world_size).run(call)
        sent = times * (world_size - 1) * 5 * 4
        for r, comm in enumerate(run.comm):
            assert (comm.count(op), len(comm.calls)) == (1, 1)
            assert comm.calls[0].total_bytes == world_size * 5 * 4
            assert comm.sent_bytes == comm.by_op[op] == sent
            assert comm.by_rank == ({(r + 1) % world_size: sent} if world_size > 1 else {})


def test_variants_count_as_their_meaning_and_are_told() -> None:
    def gather() -> None:
        for variant in RING["all_gather"][1]:
            variant()
        with dist._coalescing_manager():
            dist.all_gather_single(torch.ones(size() * 5), torch.ones(5))
            dist.all_gather_single(torch.ones(size() * 2), torch.ones(2))

    comm = World(2).run(gather).comm[1]
    assert comm.count("all_gather") == 3
    assert [call.variant for call in comm.calls] == ["all_gather", "all_gather_single", "all_gather_single_coalesced"]
    assert [call.total_bytes for call in comm.calls] == [40, 40, 56]


def test_shares_that_are_no_whole_bytes_are_added_up_before_they_are_rounded() -> None:
    def three_bytes() -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(1, dtype=torch.uint8))

    comm = World(3).run(three_bytes).comm[0]
    assert comm.calls[0].sent == Fraction(4, 3) and comm.calls[0].sent_bytes == 1
    assert comm.sent_bytes == 4


def test_gather_and_scatter_are_sends_from_and_to_the_root() -> None:
    def program() -> None:
        dist.gather(torch.ones(5), pieces() if rank() == 1 else None, dst=1)
        dist.scatter(torch.ones(6), pieces(6) if rank() == 2 else None, src=2)

    run = World(3).run(program)
    assert run.comm_matrix == ((0, 20, 0), (0, 0, 0), (24, 20 + 24, 0))


def test_all_to_all_sends_each_piece_to_its_rank() -> None:
    def program() -> None:
        splits = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        to, of = splits[rank()], [row[rank()] for row in splits]
        dist.all_to_all_single(torch.ones(sum(of), 2), torch.ones(sum(to), 2), of, to)

    run = World(3).run(program)
    assert run.comm_matrix == ((0, 8, 16), (24, 0, 40), (48, 56, 0))
    assert run.comm[1].calls[0].op == "all_to_all"


def test_a_message_is_sent_by_its_sender_only() -> None:
    def message() -> None:
        if rank() == 2:
            dist.send(torch.ones(5), 0)
        elif rank() == 0:
            dist.recv(torch.ones(5), 2)

    run = World(3).run(message)
    assert run.comm_matrix == ((0, 0, 0), (0, 0, 0), (20, 0, 0))
    assert [comm.by_op for comm in run.comm] == [{"recv": 0}, {}, {"send": 20}]


def test_barriers_and_new_groups_send_nothing() -> None:
    def program() -> None:
        dist.barrier()
        dist.monitored_barrier()
        dist.new_group([0, 1])

    comm = World(2).run(program).comm[0]
    assert comm.by_op == {"barrier": 0, "new_group": 0}
    assert comm.count("barrier") == 2


def test_a_ring_goes_through_the_members_of_its_group() -> None:
    def program() -> None:
        group = dist.new_group([3, 0, 1], use_local_synchronization=True) if rank() != 2 else None
        if group is not None:
            dist.all_reduce(torch.ones(3), group=group)

    run = World(4).run(program)
    assert run.comm_matrix == ((0, 16, 0, 0), (0, 0, 0, 16), (0, 0, 0, 0), (16, 0, 0, 0))


def test_an_op_that_there_is_not_is_refused() -> None:
    comm = World(1).run(dist.barrier).comm[0]
    with pytest.raises(ValueError, match=r"count\('allreduce'\): there is no such op.*all_reduce, reduce_scatter"):
        comm.count("allreduce")


# What is known of a call


def test_a_call_tells_its_group_dtype_number_line_and_times() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(4, dtype=torch.float16))
        dist.all_reduce(torch.ones(2, 3), op=dist.ReduceOp.MAX)

    first, second = World(2).run(program).comm[1].calls
    assert (first.dtype, first.total_bytes) == (torch.float16, 8)
    assert (second.dtype, second.total_bytes) == (torch.float32, 24)
    assert second.ranks == (0, 1) and second.rank == 1 and second.number == 2
    assert second.line.source == "dist.all_reduce(torch.ones(2, 3), op=dist.ReduceOp.MAX)"
    assert 0 < first.issued <= first.matched < first.done < second.issued < second.done


def test_the_text_tells_each_op() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(1000))
        dist.barrier()

    comm = World(2).run(program).comm[1]
    assert str(comm).split("\n") == [
        "rank 1 sent 4,000 bytes",
        "  all_reduce          1 x              4,000 bytes",
        "  barrier             1 x                  0 bytes",
    ]
    assert str(comm.calls[0]).startswith("all_reduce of 4,000 bytes, 4,000 sent (test_comm.py line ")


# torch's engines, on sizes that do not divide. Psi is the number of parameters.


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.Linear(SIZES[1], SIZES[2]))


def train(net, optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.ones(2, SIZES[0])).sum().backward()
        optimizer.step()


def ddp() -> None:
    net = DistributedDataParallel(model())
    train(net, torch.optim.Adam(net.parameters()))


def zero_redundancy() -> None:
    net = DistributedDataParallel(model())
    train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam))


def fsdp2(reshard) -> None:
    net = model()
    for layer in net:
        fully_shard(layer, reshard_after_forward=reshard)
    train(fully_shard(net, reshard_after_forward=reshard), torch.optim.Adam(net.parameters()))


def floats(comm, op):
    """The calls of `op` that carry parameters or gradients; DDP also agrees on shapes and buckets, in integers."""
    return [call for call in comm.calls if call.op == op and call.dtype is torch.float32]


def sent_bytes(calls):
    return floor(sum(call.sent for call in calls))


def test_ddp_broadcasts_once_and_all_reduces_two_psi_a_step() -> None:
    for comm in World(RANKS).run(ddp).comm:
        assert len(floats(comm, "broadcast")) == 1  # all parameters, when the model is wrapped
        assert sent_bytes(floats(comm, "broadcast")) == share(1, 4 * NUMEL, RANKS)
        assert len(floats(comm, "all_reduce")) == comm.count("all_reduce") == STEPS
        assert comm.by_op["all_reduce"] == share(2 * STEPS, 4 * NUMEL, RANKS)
        assert {call.line.source for call in floats(comm, "broadcast")} == {"net = DistributedDataParallel(model())"}


def test_the_zero_redundancy_optimizer_sends_three_psi_a_step() -> None:
    for comm in World(RANKS).run(zero_redundancy).comm:
        at_setup, *in_steps = floats(comm, "broadcast")
        assert at_setup.total_bytes == 4 * NUMEL
        assert len(in_steps) == STEPS * 4  # each of the four parameters, from its owner
        steps = [*floats(comm, "all_reduce"), *in_steps]
        assert sent_bytes(steps) == share(3 * STEPS, 4 * NUMEL, RANKS)


@pytest.mark.parametrize(("reshard", "gathers"), [(True, 2), (False, 1)])
def test_fsdp2_sends_psi_for_each_gathering_and_psi_for_the_gradients(reshard, gathers) -> None:
    def padded(rows, columns):  # FSDP2 cuts each parameter by rows, as many on each rank
        return ceil(rows / RANKS) * RANKS * columns

    psi = sum(padded(n, m) + padded(n, 1) for m, n in pairwise(SIZES))
    for comm in World(RANKS).run(fsdp2, reshard).comm:
        assert comm.by_op == {
            "all_gather": share(gathers * STEPS, 4 * psi, RANKS),
            "reduce_scatter": share(STEPS, 4 * psi, RANKS),
        }
        assert comm.count("all_gather") == gathers * STEPS * 2 and comm.count("reduce_scatter") == STEPS * 2
