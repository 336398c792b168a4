"""Broadcast, from send and recv."""

# mypy: disable-error-code="union-attr"
# (isend is declared to give None where the rank is not in the group; here it always is.)

from __future__ import annotations

import random

import torch
import torch.distributed as dist

from ..checking.rules import only_calls
from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import DTYPES, draw_world_size, dtype_name, while_src_is_late, whole_numbers


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Overwrite `tensor`, on every rank, with what it holds on rank `src`."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == src:
        for peer in range(world_size):
            if peer != src:
                dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=src)


def always_from_zero(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == 0:
        for peer in range(1, dist.get_world_size()):
            dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=0)


def sends_to_itself(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for peer in range(dist.get_world_size()):
            dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=src)


def offers_to_itself(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for work in [dist.isend(tensor, dst=peer) for peer in range(dist.get_world_size())]:
            work.wait()
    else:
        dist.recv(tensor, src=src)


def starts_at_one(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for peer in range(1, dist.get_world_size()):
            dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=src)


def misses_the_last(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for peer in range(dist.get_world_size() - 1):
            if peer != src:
                dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=src)


def nobody_receives(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for peer in range(dist.get_world_size()):
            if peer != src:
                dist.send(tensor, dst=peer)


def from_the_left(tensor: torch.Tensor, src: int) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == src:
        for peer in range(world_size):
            if peer != src:
                dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=(rank - 1) % world_size)


def into_a_new_tensor(tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == src:
        for peer in range(world_size):
            if peer != src:
                dist.send(tensor, dst=peer)
    else:
        tensor = torch.empty_like(tensor)
        dist.recv(tensor, src=src)
    return tensor


def one_receiver(tensor: torch.Tensor, src: int) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == src:
        dist.send(tensor, dst=(src + 1) % world_size)
    else:
        dist.recv(tensor, src=src)


def library_broadcast(tensor: torch.Tensor, src: int) -> None:
    dist.broadcast(tensor, src=src)


def all_at_once(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        peers = set(range(dist.get_world_size())) - {src}
        for work in [dist.isend(tensor, dst=peer) for peer in peers]:
            work.wait()
    else:
        received = torch.empty_like(tensor)
        dist.recv(received, src=src)
        tensor.copy_(received)


def along_a_chain(tensor: torch.Tensor, src: int) -> None:
    world_size = dist.get_world_size()
    place = (dist.get_rank() - src) % world_size  # in a chain that begins at src
    if place > 0:
        dist.recv(tensor, src=(src + place - 1) % world_size)
    if place < world_size - 1:
        dist.send(tensor, dst=(src + place + 1) % world_size)


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    src = rng.randrange(1, world_size) if number in (1, 2) else rng.randrange(world_size) if number else 0
    numel, dtype, seed = rng.randint(3, 6), DTYPES[number % 3], rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(numel, seed=seed, rank=rank, dtype=dtype), src),
        about=f"{world_size} rank{'s' * (world_size > 1)}, src={src}, {numel} elements, {dtype_name(dtype)}",
    )


BROADCAST = Exercise(
    name="ranks.broadcast",
    title="Broadcast, from send and recv",
    task="Each rank has a `tensor` of the same size. When your function is done, it holds on every rank what rank "
    "`src` had in it, and `src` may be any rank. As in torch's own `dist.broadcast`, the tensor is overwritten and "
    "nothing need be returned. Use only `dist.send` and `dist.recv` (or `dist.isend` and `dist.irecv`).",
    stub=stubs.broadcast,
    reference=broadcast,
    draw=draw,
    trial=while_src_is_late,
    rules=[only_calls("send", "recv")],
    variants={"all-at-once": all_at_once, "along-a-chain": along_a_chain},
    mistakes=[
        Mistake(
            id="always-from-zero",
            solution=always_from_zero,
            told="Every rank ends with what rank 0 had, whatever `src` says.",
            action="Compare the rank with `src`, not with 0, and receive from `src`.",
        ),
        Mistake(
            id="sends-to-itself",
            solution=sends_to_itself,
            told="Rank `src` tries to send to itself. It has the data already, and a rank cannot be both ends of a "
            "message.",
            action="Leave out the peer that is `src`.",
        ),
        Mistake(
            id="offers-to-itself",
            solution=offers_to_itself,
            told="Rank `src` offers its tensor to itself as well. It has the data already, and a rank cannot be both "
            "ends of a message; of `isend`, torch tells so less plainly than of `send`.",
            action="Leave out the peer that is `src`.",
        ),
        Mistake(
            id="starts-at-one",
            solution=starts_at_one,
            told="Rank `src` sends to the ranks from 1 on. That is everyone else when `src` is 0; for another `src` it "
            "tries to send to itself, and rank 0 is left out.",
            action="Go through all ranks, from 0 on, and leave out `src`.",
        ),
        Mistake(
            id="misses-the-last",
            solution=misses_the_last,
            told="Rank `src` never sends to the last rank: `range(world_size - 1)` ends one too early, for it leaves "
            "out its end.",
            action="Go through `range(world_size)`.",
        ),
        Mistake(
            id="nobody-receives",
            solution=nobody_receives,
            told="Rank `src` sends, and no other rank receives. A message takes place only when both ends call it.",
            action="Let every rank but `src` call `dist.recv(tensor, src=src)`.",
        ),
        Mistake(
            id="from-the-left",
            solution=from_the_left,
            told="Rank `src` sends to everyone, and the others wait for their left neighbour, which sends nothing.",
            action="Receive from `src`.",
        ),
        Mistake(
            id="into-a-new-tensor",
            solution=into_a_new_tensor,
            told="The data arrives in a new tensor, and the caller's `tensor` is as it was: `tensor = ...` gives the "
            "name to something else, it does not change what the caller holds.",
            action="Receive into `tensor` itself, or copy into it with `tensor.copy_(...)`.",
        ),
        Mistake(
            id="one-receiver",
            solution=one_receiver,
            told="Rank `src` sends to one rank only, which is enough in a world of two.",
            action="Send to every other rank, in a loop.",
        ),
        Mistake(
            id="library-broadcast",
            solution=library_broadcast,
            told="`dist.broadcast` is what you are to build here, so it cannot be a part of it.",
            action="Build it from `dist.send` and `dist.recv`.",
        ),
    ],
    hints=[
        "How many messages have to be sent in a world of 4, and who is at the two ends of each?",
        "One function, two roles: one rank sends, again and again; each of the others receives, once. An `if` that "
        "compares the rank with `src` tells the roles apart.",
        "`dist.send(tensor, dst=peer)` for each peer that is not `src`, and `dist.recv(tensor, src=src)` elsewhere.",
        "```python\n"
        "if dist.get_rank() == src:\n"
        "    for peer in range(dist.get_world_size()):\n"
        "        if ...:\n"
        "            dist.send(tensor, dst=peer)\n"
        "else:\n"
        "    dist.recv(...)\n"
        "```",
    ],
    explanation="Each send has exactly one recv, and the two name each other: that is all that a program of messages "
    "must get right. `src` sends world size − 1 times while the others wait, so the last rank waits longest. Libraries "
    "do better: in a tree, every rank that has the data helps to spread it; in a ring, large tensors are cut into "
    "pieces that follow one another.",
)
