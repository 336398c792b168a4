"""Repair: every rank sends first."""

import random

import torch
import torch.distributed as dist

from ...exercises import DTYPES, Case, Exercise, dtype_name, only_calls, whole_numbers


def draw(rng: random.Random, number: int) -> Case:
    world_size = 2 + number % 3  # a single rank has no neighbour
    numel, dtype, seed = rng.randint(3, 6), DTYPES[number % 3], rng.getrandbits(32)
    shape = (2, numel) if number % 4 == 1 else (numel,)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(*shape, seed=seed, rank=rank, dtype=dtype),),
        what=f"{' × '.join(map(str, shape))} elements, {dtype_name(dtype)}",
    )


exercise = Exercise("ranks.repair_exchange", title="Repair: every rank sends first", draw=draw,
    asynchronous=True, rules=[only_calls("send", "recv")], task="""
    The ranks form a ring: the right neighbour of a rank is the next rank, and the last rank's right neighbour is rank
    0. Each rank sends its `tensor` to its right neighbour and returns the tensor of its left neighbour. The program
    below deadlocks. Repair it, for 2 ranks and more, with messages only: `send`, `recv`, `isend`, `irecv`.
    """, hints="""
    What has to happen on the other rank before a `send` returns? Follow the ranks one by one.

    One rank must receive while another sends. Either the ranks make their calls in different orders, or sending does
    not wait.

    `dist.isend` starts to send and returns immediately, with a handle; the handle's `wait()` waits for the end.

    ```python
    sending = dist.isend(tensor, dst=right)
    dist.recv(...)
    sending.wait()
    return received
    ```
    """, explanation="""
    A `send` returns when the receiver has taken the data. If all ranks send first, no rank reaches its `recv`, and all
    wait forever: a deadlock. With `isend`, a rank starts to send and goes on to receive. Do not forget `wait()`: only
    after it may you change the tensor. It also works if even ranks send first and odd ranks receive first, in rings of
    any size: it is enough that one rank receives first.""")


@exercise
def pass_right(tensor: torch.Tensor) -> torch.Tensor:
    """Give `tensor` to the next rank of the ring, and return what the previous rank gave.

    For two ranks and more. Use only messages: send, recv, isend, irecv.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dst=right)
    dist.recv(received, src=left)
    sending.wait()
    return received


exercise.start_edit({"sending = dist.isend": "dist.send", "sending.wait()\n": ""})

exercise.edit("all-receive-first", {"sending = dist.isend(tensor, dst=right)\n": "",
    "sending.wait()": "dist.send(tensor, dst=right)"}, """
    Now every rank receives first, so every rank waits for a rank that is waiting itself. You turned the order round,
    and the circle is the same.
    Next: make the send not wait: `dist.isend` before the recv, and `.wait()` on what it returns after the recv.""")

exercise.edit("waits-at-once", {"sending = dist.isend(tensor, dst=right)": "dist.isend(tensor, dst=right).wait()",
    "sending.wait()\n": ""}, """
    Every rank still waits for its send before it receives: `wait()` right after `isend` waits as `send` does.
    Next: begin with `isend`, then receive, and only then call the handle's `wait()`.""")

exercise.edit("to-the-left", {"dst=right": "dst=left", "src=left": "src=right"}, """
    Each rank returns its right neighbour's tensor. The task asks for the left neighbour's.
    Next: follow the tensor of rank 0: to which rank should it go, and where does it end?""")

exercise.edit("returns-its-own", {"return received": "return tensor"}, """
    Every rank returns its own tensor. The task asks for the left neighbour's tensor.
    Next: receive into `received`, and return it.""")

exercise.edit("flat", {"torch.empty_like(tensor)": "torch.empty(tensor.numel(), dtype=tensor.dtype)"}, """
    You return the elements in one row, and the neighbour's tensor has rows and columns.
    Next: receive into a tensor with the shape of `tensor`.""")

exercise.edit("in-pairs", {"(rank + 1) % world_size, (rank - 1) % world_size": "2 * [rank + 1 - rank % 2 * 2]"}, """
    Your ranks swap in pairs, 0 with 1 and 2 with 3. In a ring of more than two ranks, the left and the right neighbour
    are different ranks.
    Next: let every rank send to one neighbour and receive from the other.""")

exercise.edit("no-ring", {"(rank + 1) % world_size, (rank - 1) % world_size": "rank + 1, rank - 1"}, """
    The ring is open. The right neighbour of the last rank is rank 0, and the left neighbour of rank 0 is the last rank.
    Next: close the ring: the last rank's right neighbour is rank 0.""")


@exercise.mistake
def one_tensor_for_both(tensor: torch.Tensor) -> torch.Tensor:
    """A rank that receives first receives into the tensor that it has not sent yet. It then sends its neighbour's data,
    its own data is lost, and the caller's tensor is changed.
    Next: receive into a new tensor."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    if rank % 2 == 0:
        dist.send(tensor, dst=right)
        dist.recv(tensor, src=left)
    else:
        dist.recv(tensor, src=left)
        dist.send(tensor, dst=right)
    return tensor


@exercise.variant
def even_ranks_first(tensor: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    for sends in (rank % 2 == 0, rank % 2 == 1):
        if sends:
            dist.send(tensor, dst=(rank + 1) % world_size)
        else:
            dist.recv(received, src=(rank - 1) % world_size)
    return received


@exercise.variant
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
