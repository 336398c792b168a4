"""Broadcast, from send and recv."""

import random

import torch
import torch.distributed as dist

from ...exercises import DTYPES, Case, Exercise, draw_world_size, dtype_name, only_calls, whole_numbers


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    src = rng.randrange(1, world_size) if number in (1, 2) else rng.randrange(world_size) if number else 0
    numel, dtype, seed = rng.randint(3, 6), DTYPES[number % 3], rng.getrandbits(32)

    def args(rank: int) -> tuple[torch.Tensor, int]:
        tensor = whole_numbers(numel, seed=seed, rank=rank, dtype=dtype)
        if dtype == torch.int64:
            tensor[-1] = 2**53 + 1 + 2 * rank  # which float64 does not have
        return tensor, src

    return Case(
        world_size=world_size,
        args=args,
        what=f"src={src}, {numel} elements, {dtype_name(dtype)}",
    )


exercise = Exercise("ranks.broadcast", title="Broadcast, from send and recv", draw=draw,
    asynchronous=True, rules=[only_calls("send", "recv")], task="""
    Each rank has a `tensor` of the same size. When your function has returned, the tensor holds on every rank the
    values that rank `src` had in it. `src` may be any rank. Like torch's own `dist.broadcast`, overwrite the tensor;
    you do not have to return anything. Use only `dist.send` and `dist.recv` (or `dist.isend` and `dist.irecv`).
    """, hints="""
    How many messages does a broadcast need in a world of 4? Which rank is at each end of each message?

    One function, two roles: one rank sends, several times; each of the other ranks receives, once. An `if` that
    compares the rank with `src` separates the roles.

    `dist.send(tensor, dst=peer)` for each peer that is not `src`; `dist.recv(tensor, src=src)` on the other ranks.

    ```python
    if dist.get_rank() == src:
        for peer in range(dist.get_world_size()):
            if ...:
                dist.send(tensor, dst=peer)
    else:
        dist.recv(...)
    ```
    """, explanation="""
    Each send has exactly one recv, and each of the two names the other's rank: a program of messages must get this
    right. `src` sends world size − 1 times while the other ranks wait, so the last rank waits longest. Libraries do
    better. In a tree, every rank that has the data helps to spread it. In a ring, a large tensor is cut into pieces
    that follow one another.""")


@exercise
def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Overwrite `tensor`, on every rank, with what it holds on rank `src`.

    Use only messages: send, recv, isend, irecv.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == src:
        for peer in range(world_size):
            if peer != src:
                dist.send(tensor, dst=peer)
    else:
        dist.recv(tensor, src=src)


exercise.edit("always-from-zero", {"rank == src": "rank == 0", "peer != src": "peer != 0", "src=src": "src=0"}, """
    Every rank ends with rank 0's data. The task asks for the data of rank `src`.
    Next: compare the rank with `src`, not with 0, and receive from `src`.""")

exercise.edit("sends-to-itself", {"if peer != src:\ndist.send": "dist.send"}, """
    Rank `src` calls `dist.send` with its own rank. It has the data already, and a rank cannot be both ends of a
    message. Next: leave out the peer that is `src`.""")

exercise.edit("offers-to-itself", {"for peer in range(world_size):\nif peer != src:\ndist.send(tensor, dst=peer)":
    "for work in [dist.isend(tensor, dst=peer) for peer in range(world_size)]:\n    work.wait()"}, """
    Rank `src` sends to itself or receives from itself. It has the data already, and a rank cannot be both ends of a
    message. Next: leave out the peer that is `src`, and let only the other ranks receive.""")

exercise.edit("starts-at-one", {"range(world_size)": "range(1, world_size)",
    "if peer != src:\ndist.send": "dist.send"}, """
    Rank `src` sends to the ranks from 1 on. These are all other ranks only if `src` is 0. For a different `src`, it
    calls `dist.send` with its own rank and leaves out rank 0. Next: go through all ranks, from 0 on, and leave out
    `src`.""")

exercise.edit("misses-the-last", {"range(world_size)": "range(world_size - 1)"}, """
    Rank `src` never sends to the last rank: `range(world_size - 1)` ends at `world_size - 2`.
    Next: count the ranks that your loop visits: it should be all of them.""")

exercise.edit("into-a-new-tensor", {"else:\ndist.recv(tensor, src=src)":
    "else:\n    tensor = torch.empty_like(tensor)\n    dist.recv(tensor, src=src)\nreturn tensor"}, """
    The data arrives in a new tensor, and the caller's tensor keeps its old values: `tensor = ...` makes the name refer
    to a new object. Next: receive into `tensor` itself, or copy the values into it.""")

exercise.edit("one-receiver", {"for peer in range(world_size):\nif peer != src:\ndist.send(tensor, dst=peer)":
    "dist.send(tensor, dst=(src + 1) % world_size)"}, """
    Rank `src` sends to one rank only. That is enough in a world of two, and not in a larger one.
    Next: send to every other rank, in a loop.""")

exercise.edit("to-the-rank-above", {"for peer in range(world_size):\nif peer != src:\ndist.send(tensor, dst=peer)":
    "dist.send(tensor, dst=src + 1)"}, """
    Rank `src` sends to rank `src + 1` only. There is no such rank if `src` is the last, and no other rank receives.
    Next: send to every other rank, in a loop.""")

exercise.edit("only-to-itself", {"for peer in range(world_size):\nif peer != src:\ndist.send(tensor, dst=peer)":
    "dist.send(tensor, dst=src)"}, """
    Rank `src` sends only to itself: `dst` is the rank that receives. The other ranks wait for a message from `src`.
    Next: send to every rank except `src`, in a loop.""")

exercise.edit("only-the-first-element", {"dist.send(tensor, dst=peer)": "dist.send(tensor[:1], dst=peer)",
    "dist.recv(tensor, src=src)": "dist.recv(tensor[:1], src=src)"}, """
    Only the first element travels, and the other elements keep their old values. Next: send and receive the whole
    tensor; a message can have any number of elements.""")


@exercise.variant
def all_at_once(tensor: torch.Tensor, src: int) -> None:
    if dist.get_rank() == src:
        peers = set(range(dist.get_world_size())) - {src}
        for work in [dist.isend(tensor, dst=peer) for peer in peers]:
            work.wait()
    else:
        received = torch.empty_like(tensor)
        dist.recv(received, src=src)
        tensor.copy_(received)


@exercise.variant
def along_a_chain(tensor: torch.Tensor, src: int) -> None:
    world_size = dist.get_world_size()
    place = (dist.get_rank() - src) % world_size  # in a chain that begins at src
    if place > 0:
        dist.recv(tensor, src=(src + place - 1) % world_size)
    if place < world_size - 1:
        dist.send(tensor, dst=(src + place + 1) % world_size)
