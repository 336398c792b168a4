"""Repair: every rank sends first."""

# mypy: disable-error-code="union-attr"
# (isend is declared to give None where the rank is not in the group; here it always is.)

from __future__ import annotations

import random

import torch
import torch.distributed as dist

from ..checking.rules import only_calls
from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import DTYPES, dtype_name, while_rank_0_is_late, whole_numbers


def pass_right(tensor: torch.Tensor) -> torch.Tensor:
    """Give `tensor` to the next rank of the ring, and return what the previous rank gave."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=right)
    dist.recv(received, src=left)
    sending.wait()
    return received


def all_receive_first(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    dist.recv(received, src=left)
    dist.send(tensor, dst=right)
    return received


def to_the_left(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=left)
    dist.recv(received, src=right)
    sending.wait()
    return received


def returns_its_own(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=right)
    dist.recv(received, src=left)
    sending.wait()
    return tensor


def in_pairs(tensor: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    partner = rank + 1 if rank % 2 == 0 else rank - 1
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=partner)
    dist.recv(received, src=partner)
    sending.wait()
    return received


def only_zero_sends(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.zeros_like(tensor)
    if rank == 0:
        dist.send(tensor, dst=right)
    else:
        dist.recv(received, src=left)
    return received


def no_ring(tensor: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=rank + 1)
    dist.recv(received, src=rank - 1)
    sending.wait()
    return received


def one_tensor_for_both(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    if rank % 2 == 0:
        dist.send(tensor, dst=right)
        dist.recv(tensor, src=left)
    else:
        dist.recv(tensor, src=left)
        dist.send(tensor, dst=right)
    return tensor


def library_gather(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(gathered, tensor)
    return gathered[rank - 1]


def even_ranks_first(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    if rank % 2 == 0:
        dist.send(tensor, dst=right)
        dist.recv(received, src=left)
    else:
        dist.recv(received, src=left)
        dist.send(tensor, dst=right)
    return received


def both_at_once(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    operations = [
        dist.P2POp(dist.isend, tensor, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, received, (rank - 1) % world_size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


def draw(rng: random.Random, number: int) -> Case:
    world_size = 2 + number % 3  # a rank that is alone has no neighbour
    numel, dtype, seed = rng.randint(3, 6), DTYPES[number % 3], rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(numel, seed=seed, rank=rank, dtype=dtype),),
        about=f"{world_size} ranks, {numel} elements, {dtype_name(dtype)}",
    )


REPAIR_EXCHANGE = Exercise(
    name="ranks.repair_exchange",
    title="Repair: everyone sends first",
    task="The ranks stand in a ring: the right neighbour of a rank is the next one, and that of the last rank is "
    "rank 0. Each gives its `tensor` to its right neighbour and returns what its left neighbour gave. The program "
    "below deadlocks. Repair it, for 2 ranks and more, with messages only: `send`, `recv`, `isend`, `irecv`.",
    stub=stubs.pass_right,
    reference=pass_right,
    draw=draw,
    trial=while_rank_0_is_late,
    rules=[only_calls("send", "recv")],
    variants={"even-ranks-first": even_ranks_first, "both-at-once": both_at_once},
    mistakes=[
        Mistake(
            id="all-receive-first",
            solution=all_receive_first,
            told="Now every rank receives first, and so every rank waits for one that is waiting itself. The order is "
            "the other way round, and the circle is the same.",
            action="Let one of the two calls not wait: `dist.isend`, and `.wait()` on what it returns, after the recv.",
        ),
        Mistake(
            id="to-the-left",
            solution=to_the_left,
            told="The tensors travel the wrong way round: each rank returns what its right neighbour had.",
            action="Send to `right` and receive from `left`.",
        ),
        Mistake(
            id="returns-its-own",
            solution=returns_its_own,
            told="Every rank returns its own tensor. Asked for is what the left neighbour gave.",
            action="Receive into `received`, and return that.",
        ),
        Mistake(
            id="in-pairs",
            solution=in_pairs,
            told="Your ranks swap in pairs, 0 with 1 and 2 with 3. In a ring the left neighbour and the right one are "
            "two different ranks (they are the same only in a world of two).",
            action="Send to `(rank + 1) % world_size` and receive from `(rank - 1) % world_size`, on every rank.",
        ),
        Mistake(
            id="only-zero-sends",
            solution=only_zero_sends,
            told="Each rank does one half of its work: rank 0 only sends, and the others only receive. Every rank has "
            "both to give and to take.",
            action="Let every rank send and receive; only the order may differ.",
        ),
        Mistake(
            id="no-ring",
            solution=no_ring,
            told="The ring is open: the right neighbour of the last rank has to be rank 0, and the left neighbour of "
            "rank 0 the last rank.",
            action="Keep `% world_size`: `(rank + 1) % world_size` and `(rank - 1) % world_size`.",
        ),
        Mistake(
            id="one-tensor-for-both",
            solution=one_tensor_for_both,
            told="A rank that receives first, into the tensor that it has yet to send, sends on what it has just got, "
            "and its own data is lost (and the caller's tensor changed).",
            action="Receive into a tensor of its own: `torch.empty_like(tensor)`.",
        ),
        Mistake(
            id="library-gather",
            solution=library_gather,
            told="Here every rank gets everyone's tensor and keeps one of them: right, but world size − 1 times the "
            "data. The exchange needs one message a rank.",
            action="Repair the messages: `isend`, `recv`, and `wait`.",
        ),
    ],
    hints=[
        "When may a `send` return, and what has to happen on the other rank for that? Follow the ranks one by one.",
        "Somebody must receive while somebody sends. Either the ranks differ in their order, or sending does not wait.",
        "`dist.isend` starts to send and returns at once, with a handle; the handle's `wait()` waits for the end.",
        "```python\nsending = dist.isend(tensor, dst=right)\ndist.recv(...)\nsending.wait()\nreturn received\n```",
    ],
    explanation="A `send` returns when its data is taken. If all ranks send first, none comes to its `recv`, and all "
    "wait for ever: a deadlock. With `isend`, a rank offers its data and goes on to receive; `wait()` tells when the "
    "tensor may be used again, so it must not be forgotten. Letting even ranks send first and odd ones receive first "
    "works too, in rings of any size: it is enough that one rank receives first.",
)
