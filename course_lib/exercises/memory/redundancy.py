"""How much of what a rank holds is a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..form.declare import Exercise, Mistake, Solution
from . import stubs
from .data import draw_tensors


def copied_bytes(tensors: list[torch.Tensor]) -> int:
    """Return how many bytes of this rank's tensors are copies of what rank 0 holds."""
    copied = 0
    for tensor in tensors:
        original = tensor.clone()  # broadcast overwrites what it is given
        dist.broadcast(original, src=0)
        if dist.get_rank() != 0 and torch.equal(tensor, original):
            copied += tensor.numel() * tensor.element_size()
    return copied


def broadcast_from(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    original = tensor.clone()
    dist.broadcast(original, src=src)
    return original


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes


def counting(
    is_copy: Callable[[torch.Tensor, torch.Tensor], Any] = torch.equal,
    size: Callable[[torch.Tensor], int] = nbytes,
    original_of: Callable[[torch.Tensor], torch.Tensor] = broadcast_from,
) -> Solution:
    """The count, with a part of it done otherwise: what is a copy of the original, its size, how the original comes."""

    def count(tensors: list[torch.Tensor]) -> int:
        copied = sum(size(tensor) for tensor in tensors if is_copy(tensor, original_of(tensor)))
        return copied if dist.get_rank() else 0

    return count


def overwritten(tensor: torch.Tensor) -> torch.Tensor:
    dist.broadcast(tensor, src=0)
    return tensor


def makes_copies(tensors: list[torch.Tensor]) -> int:
    return sum(overwritten(tensor).nbytes for tensor in tensors)


def rank_0_counts_too(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors if torch.equal(tensor, broadcast_from(tensor)))


def equal_elements(tensors: list[torch.Tensor]) -> int:
    same = sum(int((tensor == broadcast_from(tensor)).sum()) * tensor.element_size() for tensor in tensors)
    return same if dist.get_rank() else 0


def sent_by_rank_0_alone(tensor: torch.Tensor) -> torch.Tensor:
    return broadcast_from(tensor) if dist.get_rank() == 0 else tensor.clone()


def rank_0_returns_early(tensors: list[torch.Tensor]) -> int:
    return rank_0_counts_too(tensors) if dist.get_rank() else 0


def sum_over_ranks(tensors: list[torch.Tensor]) -> int:
    total = torch.tensor(copied_bytes(tensors))
    dist.all_reduce(total)
    return int(total)


def until_the_first_difference(tensors: list[torch.Tensor]) -> int:
    copied, same = 0, True
    for tensor in tensors:
        same = torch.equal(tensor, broadcast_from(tensor)) and same
        if same and dist.get_rank() != 0:
            copied += tensor.nbytes
    return copied


def all_or_nothing(tensors: list[torch.Tensor]) -> int:
    same = [torch.equal(tensor, broadcast_from(tensor)) for tensor in tensors]
    return sum(tensor.nbytes for tensor in tensors) if all(same) and dist.get_rank() else 0


def first_only(tensors: list[torch.Tensor]) -> int:
    return copied_bytes(tensors[:1])


def last_only(tensors: list[torch.Tensor]) -> int:
    same = [tensor.nbytes for tensor in tensors if torch.equal(tensor, broadcast_from(tensor))]
    return same[-1] if dist.get_rank() and same else 0


def gathers_all(tensors: list[torch.Tensor]) -> int:
    copied = 0
    for tensor in tensors:
        everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, tensor)
        copied += tensor.nbytes * bool((everyones[0] == tensor).all())
    return copied if dist.get_rank() else 0


def as_objects(tensors: list[torch.Tensor]) -> int:
    originals = list(tensors)
    dist.broadcast_object_list(originals, src=0)
    if dist.get_rank() == 0:
        return 0
    pairs = zip(tensors, originals, strict=True)
    return sum(mine.untyped_storage().nbytes() for mine, original in pairs if mine.tolist() == original.tolist())


REDUNDANCY = Exercise(
    name="memory.redundancy",
    title="What is a copy",
    task="Return how many bytes of this rank's tensors are copies: tensors all of whose values are those of rank 0's "
    "tensor at the same place in the list. On rank 0 these are the originals: it has 0 bytes of copies. The tensors "
    "keep their values.",
    stub=stubs.copied_bytes,
    reference=copied_bytes,
    draw=draw_tensors,
    case_count=5,
    variants={"gathers-all": gathers_all, "as-objects": as_objects},
    mistakes=[
        Mistake(
            id="overwrites",
            solution=counting(original_of=overwritten),
            told="Broadcast writes rank 0's values into the tensor that it is given. `original = tensor` is no second "
            "tensor, only a second name: so each tensor becomes a copy, and its own values are gone.",
            action="Broadcast into a copy: `original = tensor.clone()`.",
        ),
        Mistake(
            id="makes-copies",
            solution=makes_copies,
            told="Each tensor is overwritten by rank 0's, and then counted: you make the copies that you count.",
            action="Broadcast into a clone, and compare the two.",
        ),
        Mistake(
            id="compares-with-itself",
            solution=counting(original_of=torch.clone),
            told="Everything is called a copy. Nothing has come from rank 0 that it was compared with.",
            action="Fill a clone by `dist.broadcast(..., src=0)`, then compare with it.",
        ),
        Mistake(
            id="rank-0-counts-too",
            solution=rank_0_counts_too,
            told="Rank 0 compares its tensors with themselves, and calls them all copies. It holds the originals.",
            action="Let rank 0 take part in the broadcast, and count nothing.",
        ),
        Mistake(
            id="elements",
            solution=counting(size=torch.numel),
            told="You count the elements of copies, and not their bytes.",
            action="Multiply `numel()` by `element_size()`.",
        ),
        Mistake(
            id="always-four-bytes",
            solution=counting(size=lambda tensor: 4 * tensor.numel()),
            told="Every element is counted with 4 bytes. In bfloat16 it has 2, in float64 8.",
            action="Use `tensor.element_size()`.",
        ),
        Mistake(
            id="how-many-tensors",
            solution=counting(size=lambda tensor: 1),
            told="You count the tensors that are copies, and not their bytes.",
            action="Add `tensor.numel() * tensor.element_size()` for each of them.",
        ),
        Mistake(
            id="equal-elements",
            solution=equal_elements,
            told="You count equal elements. A tensor that differs in one of them is no copy: it has to be kept.",
            action="Compare whole tensors: `torch.equal(a, b)`.",
        ),
        Mistake(
            id="any-element",
            solution=counting(is_copy=lambda tensor, original: (tensor == original).any()),
            told="One equal element is enough for your function to call a tensor a copy. All of them have to be equal.",
            action="Compare whole tensors: `torch.equal(a, b)`.",
        ),
        Mistake(
            id="same-sums",
            solution=counting(is_copy=lambda tensor, original: tensor.sum() == original.sum()),
            told="You compare sums. Tensors with the same sum can hold other values, or the same in another order.",
            action="Compare all values: `torch.equal(a, b)`.",
        ),
        Mistake(
            id="nearly-equal",
            solution=counting(is_copy=torch.allclose),
            told="`allclose` lets small differences pass. What is nearly equal cannot replace the original: ranks that "
            "drift apart begin like this.",
            action="Compare exactly: `torch.equal(a, b)`.",
        ),
        Mistake(
            id="what-differs",
            solution=counting(is_copy=lambda tensor, original: not torch.equal(tensor, original)),
            told="You count the bytes that are *not* copies.",
            action="Turn the condition round.",
        ),
        Mistake(
            id="only-rank-0-broadcasts",
            solution=counting(original_of=sent_by_rank_0_alone),
            told="Only rank 0 calls broadcast, and the others never receive. A collective is called by all: with "
            "`src=0` rank 0 gives, and the others get.",
            action="Take the broadcast out of the `if`.",
        ),
        Mistake(
            id="rank-0-returns-early",
            solution=rank_0_returns_early,
            told="Rank 0 returns before the broadcast that the others wait in. It has nothing to count, but everyone "
            "needs its values.",
            action="Let every rank broadcast; let the rank decide only about what is counted.",
        ),
        Mistake(
            id="own-rank-as-source",
            solution=counting(original_of=lambda tensor: broadcast_from(tensor, src=dist.get_rank())),
            told="Every rank names itself as the source, and all must name the same: the one whose values they get.",
            action="Write `src=0`.",
        ),
        Mistake(
            id="sum-over-ranks",
            solution=sum_over_ranks,
            told="You return what all ranks have together. Asked is what is a copy on this rank.",
            action="Leave the all-reduce out.",
        ),
        Mistake(
            id="until-the-first-difference",
            solution=until_the_first_difference,
            told="After the first tensor that differs, none is counted any more. Each is judged by itself.",
            action="Let what you found about one tensor not decide about the next.",
        ),
        Mistake(
            id="all-or-nothing",
            solution=all_or_nothing,
            told="You count the whole list if all of it is a copy, and else nothing. Each tensor is judged by itself.",
            action="Add up, tensor by tensor, those that are copies.",
        ),
        Mistake(
            id="finds-none",
            solution=counting(is_copy=lambda tensor, original: tensor is original),
            told="You find no copy at all. `is` would ask whether both are the same object, which they never are; or "
            "rank 0 has sent something else than its tensor, such as an empty one.",
            action="Let the tensor that is broadcast hold rank 0's values, and compare with `torch.equal`.",
        ),
        Mistake(
            id="first-only",
            solution=first_only,
            told="Only the first tensor is looked at: the function returns while it is in the loop.",
            action="Set the `return` back, so that it stands after the loop.",
        ),
        Mistake(
            id="last-only",
            solution=last_only,
            told="Only the last copy is counted: each replaces the one before.",
            action="Write `+=` in place of `=`.",
        ),
    ],
    hints=[
        "To know whether yours is a copy of rank 0's, what do you need beside it? And where does that go?",
        "Bring rank 0's tensor to every rank, into memory of its own, and compare. All ranks take part, also rank 0; "
        "but rank 0 counts nothing.",
        "`tensor.clone()`, `dist.broadcast(..., src=0)`, `torch.equal`, `dist.get_rank()`.",
        "```python\nfor tensor in tensors:\n    original = ...\n    dist.broadcast(original, src=0)\n"
        "    if dist.get_rank() != 0 and ...:\n        copied += ...\n```",
    ],
    explanation="A broadcast brings the originals, and a clone is where they land: without it the comparison would "
    "destroy what it compares. Every rank calls the broadcast; the rank number decides only about what is counted.",
)
