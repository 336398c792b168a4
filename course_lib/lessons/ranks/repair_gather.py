"""Repair: ranks that disagree about the root and about sizes."""

import random

import torch
import torch.distributed as dist

from ...exercises import DTYPES, Case, Exercise, draw_world_size, dtype_name, whole_numbers

EVERY = range(-1000, 1001)
"""One long piece has each of these numbers, so none of them can mark padding."""


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    numels = rng.sample(range(2, 8), world_size)
    dst = world_size - 1 if number < 2 else rng.randrange(world_size)
    if number == 2:
        numels[(dst + 1) % world_size] = 0  # a rank that has nothing
    if number % 5 == 4:
        numels[0] = len(EVERY)
    dtype, seed = DTYPES[number % 3], rng.getrandbits(32)

    def args(rank: int) -> tuple[torch.Tensor, int]:
        if numels[rank] == len(EVERY):
            return torch.tensor(EVERY, dtype=dtype), dst
        piece = whole_numbers(numels[rank], seed=seed, rank=rank, dtype=dtype)
        piece[-2:] = torch.tensor([-1, 0][: len(piece)])  # data may be what padding is
        return piece, dst

    sizes = ", ".join(map(str, numels))
    what = f"elements on each: {sizes}, dst={dst}, {dtype_name(dtype)}"
    return Case(world_size=world_size, args=args, what=what)


exercise = Exercise("ranks.repair_gather", title="Repair: ranks disagree", draw=draw, task="""
    Each rank has a flat `piece`. Its size differs from rank to rank; one piece may be empty. Rank `dst` returns all
    pieces in one tensor, in the order of ranks, and the other ranks return None. In the program below, the ranks
    disagree about the root and about the sizes, and ranks other than `dst` make a list for the pieces. Repair it. You
    may use any collective.""", hints="""
    For each argument of `dist.gather`: what does each rank pass? Which of these must be the same on every rank?

    A collective needs the same root and the same size from every rank. If ranks do not know each other's sizes, they
    can gather them, because each size is one number. Then all ranks can pad to the longest piece.

    `dist.all_gather` for the sizes, as one-element tensors; `torch.cat` with zeros for the padding;
    `dist.gather(padded, pieces, dst=dst)` with a list for `pieces` on `dst` and None elsewhere; `piece[:size]`.

    ```python
    sizes = [torch.tensor(0) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor(piece.numel()))
    padded = torch.cat([piece, piece.new_zeros(...)])
    pieces = [torch.empty_like(padded) for _ in range(world_size)] if rank == dst else None
    dist.gather(padded, pieces, dst=dst)
    ...
    ```
    """, explanation="""
    Ranks have to agree before they call: on the root, on sizes, on dtypes. If they do not know a value, they first send
    it to each other, in a message whose size they know. Pad, gather, cut is the usual way to gather pieces of different
    sizes. You will need it again when the number of ranks does not divide the parameters. NCCL checks none of this.
    gloo notices only a message that is longer than expected, and then ends the process.""")


@exercise
def gather_pieces(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    """Return, on rank `dst`, the pieces of all ranks, joined in their order; elsewhere None.

    `piece` is flat, and its size differs from rank to rank; it may be empty.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sizes = [torch.tensor(0) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor(piece.numel()))

    longest = int(max(sizes))
    padded = torch.cat([piece, piece.new_zeros(longest - piece.numel())])

    pieces = [torch.empty_like(padded) for _ in range(world_size)] if rank == dst else None
    dist.gather(padded, pieces, dst=dst)
    if pieces is None:
        return None
    return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])


@exercise.start
def disagrees(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pieces = [torch.empty_like(piece) for _ in range(world_size)]
    dist.gather(piece, pieces, dst=rank)
    return torch.cat(pieces)


JOINED = "[piece[:size] for piece, size in zip(pieces, sizes, strict=True)]"

exercise.edit("keeps-the-padding", {JOINED: "pieces"}, """
    The result has all pieces, with their padding between them.
    Next: cut each piece to its own size before you join them.""")

exercise.edit("cuts-only-the-end", {f"torch.cat({JOINED})": "torch.cat(pieces)[: sum(sizes)]"}, """
    You join the pieces first, and then cut the result to the right length. The padding of shorter pieces stays between
    the pieces, and the last elements are lost. Next: cut each piece to its own size before you join them.""")

exercise.edit("padding-in-front", {"[piece, piece.new_zeros(longest - piece.numel())]":
    "[piece.new_zeros(longest - piece.numel()), piece]"}, """
    You put the padding in front of a piece, and then keep the front: zeros stay, and the last elements are lost.
    Next: put the padding behind the piece.""")

exercise.edit("drops-zeros", {JOINED: "[piece[piece != 0] for piece in pieces]"}, """
    You remove every 0 as padding, and some zeros are data. Next: gather the sizes, and cut by size and not by value.
    """)

exercise.edit("cuts-at-a-marker", {"piece.new_zeros(longest - piece.numel())": "piece.new_full((longest - "
    "piece.numel(),), -1)", JOINED: "[piece[piece != -1] for piece in pieces]"}, """
    You remove every -1 as padding, and some elements are -1. Any number can be data. Next: gather the sizes, and cut by
    size and not by value.""")

exercise.edit("each-its-own-root", {"if rank == dst else None": "", "dst=dst": "dst=rank"}, """
    Every rank still passes its own rank as the destination, so the ranks disagree about the root.
    Next: pass the same root on every rank.""")

exercise.edit("always-to-zero", {"rank == dst": "rank == 0", "dst=dst": "dst=0"}, """
    The pieces always go to rank 0. The task asks for rank `dst`.
    Next: use the argument that names the root, in the call and where you decide who returns the pieces.""")

exercise.edit("joined-everywhere", {"if rank == dst else None": "", "dist.gather(padded, pieces, dst=dst)":
    "dist.all_gather(pieces, padded)"}, """
    Every rank returns the joined pieces. The task asks for them only on rank `dst`; the other ranks return None and do
    not have to receive them. Next: use `dist.gather`, or return None where the rank is not `dst`.""")


@exercise.mistake
def sizes_still_differ(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    """The root is right now. The sizes still differ, and a gather needs the same size from every rank.
    Next: gather the sizes first, pad every piece to the longest, and cut afterwards."""
    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())] if dist.get_rank() == dst else None
    dist.gather(piece, pieces, dst=dst)
    return None if pieces is None else torch.cat(pieces)


@exercise.mistake
def list_everywhere(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    """Every rank passes a list for the pieces. Only rank `dst` receives them; torch requires None on the other ranks.
    Next: make the list on rank `dst`, and pass None on the others."""
    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.gather(piece, pieces, dst=dst)
    return torch.cat(pieces) if dist.get_rank() == dst else None


@exercise.variant
def as_objects(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    pieces: list[torch.Tensor] | None = [piece] * dist.get_world_size() if dist.get_rank() == dst else None
    dist.gather_object(piece, pieces, dst=dst)
    return None if pieces is None else torch.cat(pieces)


@exercise.variant
def by_messages(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    sizes = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor(piece.numel()))
    if dist.get_rank() != dst:
        dist.send(piece, dst=dst)
        return None
    pieces = [piece.new_empty(int(size)) for size in sizes]
    for peer in range(dist.get_world_size()):
        if peer == dst:
            pieces[peer] = piece
        else:
            dist.recv(pieces[peer], src=peer)
    return torch.cat(pieces)
