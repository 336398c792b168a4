"""Incident: a batch without images skips the collectives of the vision tower."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution

Batch = tuple[torch.Tensor | None, torch.Tensor]


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = (4, 2, 3)[number % 3], rng.getrandbits(31)
    without = 1 if number == 0 else rng.randrange(world_size)
    batch = 0 if number == 2 else 2

    def args(rank: int) -> tuple[nn.Module, nn.Module, list[Batch]]:
        torch.manual_seed(seed)
        vision, language = nn.Linear(4, 4), nn.Linear(4, 4)
        torch.manual_seed(seed + 1 + rank)
        data: list[Batch] = [(torch.randn(3, 4), torch.randn(3, 4)) for _ in range(4)]
        if rank == without:
            data[batch] = (None, data[batch][1])
        return vision, language, data

    what = f"4 batches each; batch {batch} of rank {without} has no images"
    return Case(world_size=world_size, args=args, what=what)


def trained(solution: Solution, vision: nn.Module, language: nn.Module, data: list[Batch]) -> dict[str, Any]:
    losses = solution(vision, language, data)
    shards = [[local(param) for param in part.parameters()] for part in (vision, language)]
    return {"losses": losses, "shards of the vision tower": shards[0], "shards of the language model": shards[1]}


def local(param: Any) -> torch.Tensor:
    shard: torch.Tensor = param.to_local() if hasattr(param, "to_local") else param
    return shard.detach()


exercise = Exercise("incidents.mixed_data", title="Incident: the new data", draw=draw, trial=trained,
    answers={
        "where": "rank 1's all-gather with number 9, at line 17",
        "why": "shards of the vision tower and, from rank 1, of the language model",
    },
    inputs_matter=False, case_count=3, task="""
    A model for images and text stops as soon as one rank has a batch without images:
    [transformers, issue 37186](https://github.com/huggingface/transformers/issues/37186), rebuilt. Repair the program
    until its docstring is true.
    """, hints="""
    Which collectives does FSDP make for one batch with images, forward and backward? And for one without?

    A unit of FSDP gathers its parameters when its forward is called, and reduces gradients when its backward runs. Both
    are collectives, so every rank has to run both for every batch.

    Give the vision tower something to compute for a batch without images: `torch.zeros_like(texts)`. Its output must
    not change the result, and backward has to pass through it.

    ```python
    seen = vision(torch.zeros_like(texts) if images is None else images)
    hidden = texts + ... * seen
    ```
    """, explanation="""
    FSDP's collectives belong to modules: a module that is not called makes none. The output of the vision tower, times
    zero, keeps the graph and changes nothing: forward gathers, backward reduces gradients of zero. Reading the data in
    an order in which all ranks have images, or none has, is the other repair in use
    ([prime-rl, 1959](https://github.com/PrimeIntellect-ai/prime-rl/pull/1959)). A forward under `no_grad` repairs only
    half: the gather, and not the reduce-scatter.
    """)


@exercise
def train(
    vision: nn.Module, language: nn.Module, data: list[tuple[torch.Tensor | None, torch.Tensor]]
) -> list[float]:
    """Train both parts with FSDP2 on this rank's batches, and return their losses.

    A batch is a pair: images [batch, 4], or None, and texts [batch, 4]. The model sees the sum of the
    texts and of the vision tower's output. A batch without images trains on its texts only; in the
    mean over ranks, its gradient for the vision tower counts as zero.
    """
    for part in (vision, language):
        fully_shard(part)
    optimizer = torch.optim.SGD([*vision.parameters(), *language.parameters()], lr=0.1)
    losses = []
    for step, (images, texts) in enumerate(data):
        seen = vision(torch.zeros_like(texts) if images is None else images)
        hidden = texts + float(images is not None) * seen
        loss = F.mse_loss(language(hidden), texts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {step}: {'text only' if images is None else 'images'}, loss {losses[-1]:.3f}")
    return losses


SEEN = "seen = vision(torch.zeros_like(texts) if images is None else images)\n"
HIDDEN = "hidden = texts + float(images is not None) * seen"

exercise.start_edit({SEEN: "", HIDDEN: "hidden = texts if images is None else texts + vision(images)"})

exercise.edit("barrier-before-each-batch", {SEEN: "dist.barrier()\n",
    HIDDEN: "hidden = texts if images is None else texts + vision(images)"}, """
    The rank without images still makes fewer collectives than the others. A barrier or a setting does not change that.
    Next: let the vision tower run on every rank, for every batch.
    """)

exercise.edit("without-backward", {SEEN: "", HIDDEN: "if images is None:\n    with torch.no_grad():\n        "
    "vision(torch.zeros_like(texts))\nhidden = texts if images is None else texts + vision(images)"}, """
    Your vision tower gathers for a batch without images, and no backward comes back to it. So the reduce-scatter of its
    backward is still missing on this rank. Next: use its output in the loss, with its graph and times zero.
    """)

exercise.edit("an-image-of-zeros", {HIDDEN: "hidden = texts + seen"}, """
    Your batch without images trains with an image of zeros. The tower's bias is not zero, so the loss changes, and
    backward trains the tower with it. Next: multiply the tower's output by zero.
    """)

exercise.edit("texts-as-images", {SEEN: "seen = vision(texts if images is None else images)\n", HIDDEN:
    "hidden = texts + seen"}, """
    A batch without images gives its texts to the vision tower. All ranks make the same calls, and the tower learns from
    texts. Next: multiply the tower's output by zero there.
    """)

exercise.edit("one-rank-skips", {SEEN: "if images is None:\n    continue\n", HIDDEN: "hidden = texts + vision(images)"},
    """
    The rank skips its batch without images, and is one batch behind the others from then on.
    Next: train on the texts of this batch, and let the vision tower run for it.
    """)

exercise.edit("all-skip", {SEEN: "usable = torch.tensor(float(images is not None))\ndist.all_reduce(usable, "
    "dist.ReduceOp.MIN)\nif not usable:\n    continue\n", HIDDEN: "hidden = texts + vision(images)"}, """
    All your ranks skip the batch if one of them has no images. Nobody hangs, but the data are lost.
    Next: train on all batches; the vision tower contributes nothing on the rank without images.
    """)

exercise.edit("tower-not-sharded", {"for part in (vision, language):\n    fully_shard(part)": "fully_shard(language)",
    SEEN: "", HIDDEN: "hidden = texts if images is None else texts + vision(images)"}, """
    Your vision tower is not sharded, so nothing averages its gradients: each rank trains a tower of its own.
    Next: shard both parts, and run both on every rank.
    """)

exercise.edit("the-tower-last", {SEEN: "", HIDDEN: "hidden = texts if images is None else texts + vision(images)",
    "loss.backward()": "unused = 0 * vision(texts).sum() if images is None else 0\n(loss + unused).backward()"}, """
    Your batch without images runs the vision tower after the language model. The numbers of calls match now, but their
    order does not: the gather of one part meets the gather of the other. Both have the same size, so nothing complains,
    and the ranks compute with mixed shards. Next: run the tower where the other ranks run it.
    """)


@exercise.mistake
def all_without_images(vision: nn.Module, language: nn.Module, data: list[Batch]) -> list[float]:
    """All your ranks leave their images out if one of them has none. The calls match, but images are lost.
    Next: leave out the images of the one rank only: its vision tower runs, and contributes nothing."""
    for part in (vision, language):
        fully_shard(part)
    optimizer = torch.optim.SGD([*vision.parameters(), *language.parameters()], lr=0.1)
    losses = []
    for images, texts in data:
        usable = torch.tensor(float(images is not None))
        dist.all_reduce(usable, dist.ReduceOp.MIN)
        loss = F.mse_loss(language(texts + vision(images) if usable else texts), texts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


exercise.variant_edit("zero-in-the-loss", {SEEN: "unused = 0 * vision(texts).sum() if images is None else 0\n",
    HIDDEN: "hidden = texts if images is None else texts + vision(images)",
    "loss.backward()": "(loss + unused).backward()"})

exercise.variant_edit("a-detached-image", {"torch.zeros_like(texts)": "texts.detach()", HIDDEN:
    "hidden = texts + (seen if images is not None else seen - seen)"})
