"""Repair: ranks that disagree about the root and about sizes."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import DTYPES, draw_world_size, dtype_name, whole_numbers


def gather_pieces(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    """Return, on rank `dst`, the pieces of all ranks, joined in their order; elsewhere None."""
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


def all_sizes(piece: torch.Tensor) -> list[int]:
    """The number of elements of each rank's piece: what most of the mistakes have right."""
    sizes = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor(piece.numel()))
    return [int(size) for size in sizes]


def gather_to(dst: int, tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The tensors of all ranks, which have one size, on rank `dst`."""
    world_size = dist.get_world_size()
    gathered = [torch.empty_like(tensor) for _ in range(world_size)] if dist.get_rank() == dst else None
    dist.gather(tensor, gathered, dst=dst)
    return gathered


def keeps_the_padding(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    gathered = gather_to(dst, pad(piece, (0, max(all_sizes(piece)) - piece.numel())))
    return None if gathered is None else torch.cat(gathered)


def cuts_to_its_own_size(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    gathered = gather_to(dst, pad(piece, (0, max(all_sizes(piece)) - piece.numel())))
    return None if gathered is None else torch.cat([part[: piece.numel()] for part in gathered])


def cuts_to_the_shortest(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    gathered = gather_to(dst, piece[: min(all_sizes(piece))].clone())
    return None if gathered is None else torch.cat(gathered)


def drops_zeros(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    gathered = gather_to(dst, pad(piece, (0, max(all_sizes(piece)) - piece.numel())))
    return None if gathered is None else torch.cat([part[part != 0] for part in gathered])


def each_its_own_root(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    sizes = all_sizes(piece)
    gathered = gather_to(dist.get_rank(), pad(piece, (0, max(sizes) - piece.numel())))
    return None if gathered is None else torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])


def always_to_zero(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    return gather_pieces(piece, 0)


def sizes_still_differ(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    gathered = gather_to(dst, piece)
    return None if gathered is None else torch.cat(gathered)


def list_everywhere(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    gathered = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.gather(piece, gathered, dst=dst)
    return torch.cat(gathered) if dist.get_rank() == dst else None


def joined_everywhere(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    sizes = all_sizes(piece)
    padded = pad(piece, (0, max(sizes) - piece.numel()))
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])


def its_own_first(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    sizes = all_sizes(piece)
    gathered = gather_to(dst, pad(piece, (0, max(sizes) - piece.numel())))
    if gathered is None:
        return None
    others = [part[:size] for part, size in zip(gathered, sizes, strict=True)]
    return torch.cat([others.pop(dst), *others])


def as_objects(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    pieces: list[torch.Tensor] | None = [piece] * dist.get_world_size() if dist.get_rank() == dst else None
    dist.gather_object(piece, pieces, dst=dst)
    return None if pieces is None else torch.cat(pieces)


def by_messages(piece: torch.Tensor, dst: int) -> torch.Tensor | None:
    sizes = all_sizes(piece)
    if dist.get_rank() != dst:
        dist.send(piece, dst=dst)
        return None
    pieces = [piece.new_empty(size) for size in sizes]
    for peer in range(dist.get_world_size()):
        if peer == dst:
            pieces[peer] = piece
        else:
            dist.recv(pieces[peer], src=peer)
    return torch.cat(pieces)


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    numels = rng.sample(range(2, 8), world_size)
    dst = world_size - 1 if number < 2 else rng.randrange(world_size)
    if number == 2:
        numels[(dst + 1) % world_size] = 0  # a rank that has nothing
    dtype, seed = DTYPES[number % 3], rng.getrandbits(32)

    def args(rank: int) -> tuple[torch.Tensor, int]:
        piece = whole_numbers(numels[rank], seed=seed, rank=rank, dtype=dtype)
        piece[-1:] = 0  # data may be 0 as well as padding
        return piece, dst

    sizes = ", ".join(map(str, numels))
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    return Case(
        world_size=world_size,
        args=args,
        about=f"{ranks} with {sizes} elements, dst={dst}, {dtype_name(dtype)}",
    )


REPAIR_GATHER = Exercise(
    name="ranks.repair_gather",
    title="Repair: ranks disagree",
    task="Each rank has a flat `piece`, of its own size; one may be empty. Rank `dst` returns all pieces in one "
    "tensor, in the order of ranks, and the other ranks return None. In the program below the ranks disagree, about "
    "the root and about the sizes, and the list for the pieces is made where it should not be. Repair it. Any "
    "collective may be used.",
    stub=stubs.gather_pieces,
    reference=gather_pieces,
    draw=draw,
    variants={"as-objects": as_objects, "by-messages": by_messages},
    mistakes=[
        Mistake(
            id="keeps-the-padding",
            solution=keeps_the_padding,
            told="The pieces are all there, with their padding between them.",
            action="Cut each piece to its own size before you join them: `piece[:size]`.",
        ),
        Mistake(
            id="cuts-to-its-own-size",
            solution=cuts_to_its_own_size,
            told="You cut every piece to the size of rank `dst`'s own. The others have sizes of their own.",
            action="Gather the sizes too, and cut each piece to the size that its rank told.",
        ),
        Mistake(
            id="cuts-to-the-shortest",
            solution=cuts_to_the_shortest,
            told="You cut every piece to the shortest one, so that the sizes agree, and data is lost.",
            action="Pad to the longest instead, and cut the padding off afterwards.",
        ),
        Mistake(
            id="drops-zeros",
            solution=drops_zeros,
            told="You take every 0 for padding, and some of them are data.",
            action="Gather the sizes, and cut by size and not by value.",
        ),
        Mistake(
            id="each-its-own-root",
            solution=each_its_own_root,
            told="Every rank still names itself as the destination, so the ranks disagree about where the pieces go.",
            action="Pass `dst=dst`: the same number on every rank.",
        ),
        Mistake(
            id="always-to-zero",
            solution=always_to_zero,
            told="The pieces always go to rank 0, whatever `dst` says.",
            action="Pass `dst=dst`, and compare the rank with `dst`.",
        ),
        Mistake(
            id="sizes-still-differ",
            solution=sizes_still_differ,
            told="The root is right now; the sizes still differ, and a gather wants the same size from every rank.",
            action="Gather the sizes first, pad every piece to the longest, and cut afterwards.",
        ),
        Mistake(
            id="list-everywhere",
            solution=list_everywhere,
            told="Every rank passes a list for the pieces. Only rank `dst` receives them; torch wants None elsewhere.",
            action="Make the list on rank `dst`, and pass None on the others.",
        ),
        Mistake(
            id="joined-everywhere",
            solution=joined_everywhere,
            told="Every rank returns the joined pieces. They were asked for on rank `dst` alone; the others "
            "return None, and need not hold what they do not return.",
            action="Use `dist.gather`, or return None where the rank is not `dst`.",
        ),
        Mistake(
            id="its-own-first",
            solution=its_own_first,
            told="The piece of rank `dst` stands first. Asked for is the order of ranks, wherever they are joined.",
            action="Join the pieces in the order in which `dist.gather` lists them.",
        ),
    ],
    hints=[
        "For each argument of `dist.gather`: what does each rank pass? Which of these must be the same everywhere?",
        "A collective wants the same root and the same size from every rank. Ranks that do not know each other's sizes "
        "can tell them, since a size has the same size everywhere. Then all can pad to the longest.",
        "`dist.all_gather` for the sizes, as one-element tensors; `torch.cat` with zeros for the padding; "
        "`dist.gather(padded, pieces, dst=dst)` with `pieces` a list on `dst` and None elsewhere; `piece[:size]`.",
        "```python\n"
        "sizes = [torch.tensor(0) for _ in range(world_size)]\n"
        "dist.all_gather(sizes, torch.tensor(piece.numel()))\n"
        "padded = torch.cat([piece, piece.new_zeros(...)])\n"
        "pieces = [torch.empty_like(padded) for _ in range(world_size)] if rank == dst else None\n"
        "dist.gather(padded, pieces, dst=dst)\n"
        "...\n"
        "```",
    ],
    explanation="Ranks have to agree before they call: on the root, on sizes, on dtypes. What they cannot know they "
    "tell each other first, in a message whose size is known. Pad, gather, cut is the usual answer to pieces of "
    "different sizes, and you will meet it again when parameters do not divide evenly among ranks. NCCL and gloo check "
    "none of this themselves: at best they hang.",
)
