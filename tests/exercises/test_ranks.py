"""Lesson 01: its references against torch's own collectives, its rules, and the numbers of its quiz."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from course_lib import World, exercises
from course_lib.lessons.ranks.quiz import ring_all_reduce_bytes, ring_all_reduce_messages
from course_lib.lessons.ranks.ring_reduce_scatter import pass_right

broadcast, ring_reduce_scatter, ring_all_gather, all_reduce = (
    exercises.get(f"ranks.{name}").reference
    for name in ("broadcast", "ring_reduce_scatter", "ring_all_gather", "all_reduce")
)

# The references


def broadcast_both_ways() -> list[torch.Tensor]:
    ours = torch.randn(5, generator=torch.Generator().manual_seed(dist.get_rank()))
    torchs = ours.clone()
    broadcast(ours, 2)
    dist.broadcast(torchs, src=2)
    return [ours, torchs]


def reduce_scatter_both_ways() -> list[torch.Tensor]:
    x = torch.arange(8) * (dist.get_rank() + 1) ** 2
    shard = torch.empty(2, dtype=x.dtype)
    dist.reduce_scatter_single(shard, x)
    return [ring_reduce_scatter(x), shard]


def all_gather_both_ways() -> list[torch.Tensor]:
    shard = torch.tensor([1.5, -2.0]) * dist.get_rank()
    whole = torch.empty(8)
    dist.all_gather_single(whole, shard)
    return [ring_all_gather(shard), whole]


def all_reduce_both_ways() -> list[torch.Tensor]:
    x = torch.arange(15).view(3, 5) * (dist.get_rank() + 1) ** 2
    ours = all_reduce(x)
    dist.all_reduce(x)
    return [ours, x]


@pytest.mark.parametrize(
    "both_ways", [broadcast_both_ways, reduce_scatter_both_ways, all_gather_both_ways, all_reduce_both_ways]
)
def test_a_reference_gives_what_torchs_own_collective_gives(both_ways: Callable[[], list[torch.Tensor]]) -> None:
    for ours, torchs in World(4).run(both_ways):
        assert torch.equal(ours, torchs)
        assert ours.dtype == torchs.dtype


def test_the_average_is_that_of_all_losses_together() -> None:
    average = exercises.get("ranks.repair_average").reference
    losses = [torch.tensor([]), torch.tensor([1.0, 2.0, 6.0]), torch.tensor([11.0])]

    assert [mean.item() for mean in World(3).run(lambda: average(losses[dist.get_rank()]))] == [5.0] * 3


def test_the_pieces_are_joined_in_the_order_of_ranks_on_one_rank() -> None:
    gather_pieces = exercises.get("ranks.repair_gather").reference
    pieces = [torch.tensor([1, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([2, 3, 0])]
    run = World(3).run(lambda: gather_pieces(pieces[dist.get_rank()], 1))

    assert [run[0], run[2]] == [None, None]
    assert run[1].tolist() == [1, 0, 2, 3, 0]


# The rules


def straight_to_its_owner(tensor: torch.Tensor) -> torch.Tensor:
    """A right reduce-scatter of the same volume, and no ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(world_size, -1)
    others = [peer for peer in range(world_size) if peer != rank]
    sending = [dist.isend(chunks[peer], dst=peer) for peer in others]
    total = chunks[rank].clone()
    for peer in others:
        part = torch.empty_like(total)
        dist.recv(part, src=peer)
        total += part
    for work in sending:
        work.wait()
    return total


def test_a_ring_passes_chunks_to_the_right_only() -> None:
    verdict = exercises.get("ranks.ring_reduce_scatter").check(straight_to_its_owner)

    assert verdict.status == "failed"
    (finding,) = verdict.findings
    assert "to rank 2; on a ring that passes one chunk at a time it sends 2 × " in finding.observed
    assert finding.likely.startswith("Rank 0 sends to others than rank 1, its right neighbour.")


def around_whole(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        tensor = pass_right(tensor)
        total += tensor
    return total


def test_an_all_reduce_may_not_send_whole_tensors_around() -> None:
    verdict = exercises.get("ranks.all_reduce").check(around_whole)

    assert verdict.status == "failed"
    assert " bytes; " in verdict.findings[0].observed
    assert "a reduce-scatter, then an all-gather of the sums" in verdict.findings[0].action


def does_not_wait(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros_like(tensor)
    sending = dist.isend(tensor, dst=(rank + 1) % world_size)
    dist.irecv(received, src=(rank - 1) % world_size)
    sending.wait()
    return received


def test_a_message_that_nobody_waits_for_is_not_there() -> None:
    assert exercises.get("ranks.repair_exchange").check(does_not_wait).status == "failed"


# The quiz


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_the_quiz_knows_what_the_reference_sends(world_size: int) -> None:
    tensor = torch.ones(16 * world_size)
    sends = [call for call in World(world_size).run(lambda: all_reduce(tensor)).calls[0] if call.op == "send"]

    sent_bytes = sum(call.numels[0] for call in sends) * tensor.element_size()
    assert sent_bytes == ring_all_reduce_bytes(tensor.nbytes, world_size)
    assert len(sends) == ring_all_reduce_messages(world_size)
