"""How much of what a rank holds is a copy."""

import random

import torch
import torch.distributed as dist

from ...exercises import Case, Exercise

KINDS = {
    "one's own": torch.float32,
    "a copy": torch.bfloat16,
    "a copy but for the last element": torch.float32,
    "a copy but for one in the middle": torch.float32,
    "reordered": torch.float64,
    "a copy on odd ranks": torch.float64,
    "almost a copy": torch.float32,
}
"""How a rank's tensor differs from rank 0's, and its dtype."""


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 4, 3, 1)[number] if number < 4 else rng.randint(2, 4)
    kinds = {"one's own": torch.float32, "a copy": torch.float32}
    if number == 4:
        kinds = dict.fromkeys(("a copy", "a copy on odd ranks"), torch.float32)
    elif number:  # the copy first, where draw 0 has it last
        kinds = {kind: KINDS[kind] for kind in ("a copy", *rng.sample(list(KINDS), len(KINDS)))}
    numels, seed = [rng.randint(3, 9) for _ in kinds], rng.getrandbits(32)
    if number == 2:
        numels[0] = 1  # like a count of steps

    def args(rank: int) -> tuple[list[torch.Tensor]]:
        drawn = zip(kinds.items(), numels, strict=True)
        tensors = [make_tensor(kind, numel, seed, rank).to(dtype) for (kind, dtype), numel in drawn]
        if number == 2:
            first = make_tensor("a copy", 4, seed, rank)
            tensors += [first, 2 * first] if rank == 0 else [2 * first, first]
        return (tensors,)

    what = f"{len(kinds)} tensors" + ", and two that have changed places" * (number == 2)
    return Case(world_size=world_size, args=args, what=what)


def make_tensor(kind: str, numel: int, seed: int, rank: int) -> torch.Tensor:
    """Return `numel` different values, which differ from rank 0's values as `kind` says."""
    original = 1 + torch.randperm(numel, generator=torch.Generator().manual_seed(seed)) / 8  # exact in each dtype
    if rank == 0 or kind == "a copy" or (kind == "a copy on odd ranks" and rank % 2):
        return original
    return {
        "one's own": original + numel + rank,
        "a copy but for the last element": torch.cat([original[:-1], original[-1:] + rank]),
        "a copy but for one in the middle": torch.cat([original[:1], original[1:2] + rank, original[2:]]),
        "reordered": original.roll(1),
        "a copy on odd ranks": original - 2 * rank,
        "almost a copy": original * (1 + 2**-20),
    }[kind]


exercise = Exercise("memory.redundancy", title="What is a copy", draw=draw, case_count=5, task="""
    Return how many bytes of this rank's tensors are copies. A tensor is a copy if all its values equal the values of
    rank 0's tensor at the same place in the list. Rank 0 holds the originals, so it has 0 bytes of copies. The tensors
    keep their values.""", hints="""
    To know whether your tensor is a copy of rank 0's, which tensor do you compare it with? Where is that tensor?

    Bring rank 0's tensor to every rank, into memory of its own, and compare. All ranks take part, rank 0 as well; rank
    0 counts nothing.

    `tensor.clone()`, `dist.broadcast(..., src=0)`, `torch.equal`, `dist.get_rank()`.

    ```python
    for tensor in tensors:
        original = ...
        dist.broadcast(original, src=0)
        if dist.get_rank() != 0 and ...:
            copied += ...
    ```
    """, explanation="""
    A broadcast brings the originals. Each rank receives them in a clone, because a broadcast overwrites the tensor that
    receives. Every rank calls the broadcast; the rank number decides only what is counted.""")


@exercise
def copied_bytes(tensors: list[torch.Tensor]) -> int:
    """Return how many bytes of this rank's tensors are copies of what rank 0 holds.

    A tensor is a copy if all its values are those of rank 0's tensor at the same place in the
    list. Rank 0 holds the originals. On each rank the list has the same shapes and dtypes.
    """
    copied = 0
    for tensor in tensors:
        original = tensor.clone()  # broadcast overwrites its tensor
        dist.broadcast(original, src=0)
        if dist.get_rank() != 0 and torch.equal(tensor, original):
            copied += tensor.numel() * tensor.element_size()
    return copied


exercise.edit("overwrites", {"tensor.clone()": "tensor"}, """
    A broadcast writes rank 0's values into the tensor that you pass. Here that is the rank's own tensor, so each tensor
    becomes a copy, and its own values are lost. A second name, as in `original = tensor`, is not a second tensor.
    Next: broadcast into a tensor of its own.""")

exercise.edit("compares-with-itself", {"dist.broadcast(original, src=0)\n": ""}, """
    You count every tensor as a copy on all ranks except rank 0. If you compare a tensor with its own clone, they are
    always equal, because no rank has received rank 0's values.
    Next: bring rank 0's values to the clone before you compare with it.""")

exercise.edit("rank-0-counts-too", {"dist.get_rank() != 0 and": ""}, """
    Rank 0 counts all its tensors as copies. It holds the originals.
    Next: let rank 0 take part in the broadcast and count nothing.""")

exercise.edit("elements", {" * tensor.element_size()": ""}, """
    You count the elements of copies, not their bytes. Next: multiply them by the bytes of one element.""")

exercise.edit("always-four-bytes", {"tensor.element_size()": "4"}, """
    You count 4 bytes for every element. An element takes 2 bytes in bfloat16, and 8 in float64.
    Next: use `tensor.element_size()`.""")

exercise.edit("equal-elements", {" and torch.equal(tensor, original)": "",
    "tensor.numel()": "int((tensor == original).sum())"}, """
    You count equal elements. A tensor that differs in one element is no copy, and the rank has to keep all of it.
    Next: compare whole tensors: torch has a function that returns one bool.""")

exercise.edit("nearly-equal", {"torch.equal": "torch.allclose"}, """
    You ignore small differences, as `allclose` does. A tensor that is nearly equal cannot replace the original: ranks
    that drift apart begin like this. Next: compare exactly.""")

exercise.edit("equal-sums", {"torch.equal(tensor, original)": "tensor.double().sum() == original.double().sum()"}, """
    You also count a tensor that has the original's values in a different order. A comparison of one number, such as the
    sum, does that. Next: compare value with value, place by place.""")

@exercise.mistake
def anywhere_in_the_list(tensors: list[torch.Tensor]) -> int:
    """You also count a tensor whose values rank 0 has at a different place in the list. The task compares the same
    places. Next: compare each tensor only with the original at its own place."""
    originals = [tensor.clone() for tensor in tensors]
    for original in originals:
        dist.broadcast(original, src=0)
    copied = 0
    for tensor in tensors:
        alike = [original for original in originals if original.dtype == tensor.dtype]
        if dist.get_rank() != 0 and any(torch.equal(tensor, original) for original in alike):
            copied += tensor.nbytes
    return copied


exercise.edit("only-rank-0-broadcasts", {"dist.broadcast(": "if dist.get_rank() == 0:\n    dist.broadcast("}, """
    Only rank 0 calls broadcast, so the others never receive. All ranks call a collective: with `src=0`, rank 0 sends
    and the others receive. Next: take the broadcast out of the `if`.""")


@exercise.variant
def gathers_all(tensors: list[torch.Tensor]) -> int:
    copied = 0
    for tensor in tensors:
        of_all_ranks = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(of_all_ranks, tensor)
        copied += tensor.nbytes * bool((of_all_ranks[0] == tensor).all())
    return copied if dist.get_rank() else 0


@exercise.variant
def as_objects(tensors: list[torch.Tensor]) -> int:
    originals = list(tensors)
    dist.broadcast_object_list(originals, src=0)
    if dist.get_rank() == 0:
        return 0
    pairs = zip(tensors, originals, strict=True)
    return sum(mine.untyped_storage().nbytes() for mine, original in pairs if mine.tolist() == original.tolist())
