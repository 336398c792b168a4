"""The loss of a sequence whose tokens lie on different ranks."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, draw_world_size, normal
from .places import places

KINDS = 5


def draw(rng: random.Random, number: int) -> Case:
    """Draw sequences that end in padding, so that ranks have different numbers of targets, and once some have none."""
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(31)
    length = 2 * world_size * rng.randint(2, 3)
    padding = 3 * length // 4 if number % 4 == 1 else rng.randint(1, length // 2)

    def args(rank: int) -> tuple[int, Tensor, Tensor]:
        tokens = torch.randint(1, KINDS, (length + 1,), generator=torch.Generator().manual_seed(seed))
        tokens[length + 1 - padding :] = 0
        return seed, tokens, places(rank, world_size, length)

    return Case(world_size=world_size, args=args, what=f"{length} tokens, {padding} of them padding")


def averaged(solution: Solution, seed: int, tokens: Tensor, mine: Tensor) -> Any:
    """Return the gradients and the loss as data parallel makes them: each is averaged over ranks."""
    weight, position = normal(KINDS, KINDS, seed=seed), normal(len(tokens), KINDS, seed=seed + 1)
    leaves = {"weight": weight.requires_grad_(), "position": position.requires_grad_()}
    scored = list[int]()

    def model(inputs: Tensor, places: Tensor) -> Tensor:
        scored.extend(torch.arange(len(tokens))[places].flatten().tolist())
        return weight[inputs] + position[places]

    loss = solution(model, tokens, mine)
    loss.backward()
    averages = {f"the mean of the gradients of `{name}`": gradient(leaf) for name, leaf in leaves.items()}
    averages["the mean of the losses"] = loss.detach().reshape(()).clone()
    for value in averages.values():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return averages | {
        "tokens that it scored besides its own": max(0, len(scored) - len(mine)),
        "places of other ranks that it scored": sorted({*scored} - {*mine.tolist()}),
    }


def gradient(leaf: Tensor) -> Tensor:
    """Return the gradient of a leaf: zeros if a rank without targets returned a loss that does not depend on it."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


exercise = Exercise("context.loss", title="The loss of a cut sequence", draw=draw, trial=averaged, case_count=4,
    tolerance=1e-5, inputs_matter=False, task="""
    Every rank has the whole sequence of tokens, which is small, and computes with its own places of it. Each token
    predicts the one that follows in the sequence. `model(inputs, places)` returns the scores of this rank's inputs.
    Return a loss for `backward()`. The engine averages over ranks, and the average of the ranks' losses must be the
    mean over all targets of the sequence. A target of 0 is padding, and does not count.
    """, hints="""
    The last token of a rank's piece has a target, too. On which rank does the target lie?

    Shift first, then cut: inputs are `tokens[:-1]`, targets `tokens[1:]`, and a rank takes its places of both. For the
    mean, remember lesson 03: what do you divide by, if the engine divides by the number of ranks once more?

    `F.cross_entropy(scores, targets, ignore_index=0, reduction="sum")`. Every rank can count all targets by itself.

    ```python
    inputs, targets = tokens[:-1], tokens[1:]
    total = F.cross_entropy(model(inputs[mine], ...), targets[mine], ignore_index=0, reduction="sum")
    return total * ... / ...
    ```
    """, explanation="""
    Three things go wrong here in public code. If the shift comes after the cut, each piece loses the target at its
    border. If the positions are 0, 1, 2, … on each rank, every rank computes as if it had the beginning. And if a rank
    takes the mean of its own tokens, a token counts more where there is more padding. The context ranks are also data
    parallel ranks for all parameters: their gradients are averaged over both axes.
    """)


@exercise
def loss_of_my_tokens(model: Callable[..., Tensor], tokens: Tensor, mine: Tensor) -> Tensor:
    """Return this rank's loss; the average over ranks is the mean over all targets that are not padding.

    model: `model(inputs, places)` returns the scores [n, kinds] of n tokens at these places of the sequence.
    tokens: [length + 1], the whole sequence, on every rank; 0 is padding.
    mine: [length / world size], the places of this rank, below `length`.
    """
    inputs, targets = tokens[:-1], tokens[1:]
    total = F.cross_entropy(model(inputs[mine], mine), targets[mine], ignore_index=0, reduction="sum")
    return total * dist.get_world_size() / (targets != 0).sum()


SCALED = "total * dist.get_world_size() / (targets != 0).sum()"

exercise.edit("mean-of-this-rank", {', reduction="sum"': "", SCALED: "total"}, """
    You take the mean over this rank's targets. Ranks have different numbers of them, because one has more padding, so
    the average of the means is a different number. Next: divide this rank's sum by the count of all targets.
    """)

exercise.edit("nan-of-no-targets", {', reduction="sum")': ") * (targets[mine] != 0).sum()"}, """
    A rank without targets divides 0 by 0: its mean is NaN, and NaN times 0 is NaN. Next: take the sum of the losses,
    which is 0 where there are no targets.
    """)

exercise.edit("divided-by-ranks-again", {" * dist.get_world_size()": ""}, """
    You divide by the number of all targets, and the engine divides by the number of ranks once more. Next: multiply by
    the world size, as in lesson 03.
    """)

exercise.edit("shift-after-the-cut", {"targets[mine], ignore_index": "tokens[mine].roll(-1), ignore_index"}, """
    You cut first and then shift, so at each border the target is a token of a different piece. Next: shift the whole
    sequence, then take this rank's places of inputs and targets.
    """)

exercise.edit("shift-inside-the-piece", {"model(inputs[mine], mine), targets[mine]":
    "model(inputs[mine[:-1]], mine[:-1]), inputs[mine[1:]]"}, """
    You cut first and then shift, so the last token of each piece has no target, and at a border inside it a wrong one.
    Next: shift the whole sequence, then take this rank's places of inputs and targets.
    """)

exercise.edit("predicts-itself", {"targets[mine]": "inputs[mine]"}, """
    Input and target are the same token. Next: the target of a token is the one after it.
    """)

exercise.edit("positions-from-zero", {"model(inputs[mine], mine)": "model(inputs[mine], torch.arange(len(mine)))"}, """
    You number this rank's tokens 0, 1, 2, …, so every rank computes as if it had the beginning of the sequence.
    Next: give the model the places in the whole sequence.
    """)

exercise.edit("counts-padding", {"(targets != 0).sum()": "len(targets)", "ignore_index=0, ": "ignore_index=0, "}, """
    You divide by the number of all tokens, with padding. Next: count only targets that are not 0.
    """)

exercise.edit("counts-the-first-token", {"(targets != 0).sum()": "(tokens != 0).sum()"}, """
    You count the tokens, and the first one is nobody's target. Next: count the targets.
    """)

exercise.edit("sum-of-this-rank", {SCALED: "total"}, """
    You return a sum over this rank's targets, and the task asks for a loss whose average over ranks is a mean. Next: by
    how many targets, in the whole sequence, should it be divided? The engine divides by the number of ranks as well.
    """)

exercise.edit("reduced-in-place", {SCALED: "loss / (targets != 0).sum()", "total = F.cross_entropy":
    "loss = F.cross_entropy", 'reduction="sum")\n': 'reduction="sum")\ndist.all_reduce(loss)\n'}, """
    The loss is right, and the gradients are N times too small: autograd does not see the all-reduce, so each rank's
    gradient is that of its own sum, and the engine then takes the mean of them. Next: send nothing, and let the average
    over the ranks make the sum.
    """)

exercise.edit("padding-scored", {"ignore_index=0, ": ""}, """
    Targets of 0 are padding, and you score them like tokens. Next: leave them out, as in the count.
    """)


@exercise.variant
def by_hand(model: Callable[..., Tensor], tokens: Tensor, mine: Tensor) -> Tensor:
    target = tokens[mine + 1]
    counts = target != 0
    count = counts.sum() / dist.get_world_size()
    dist.all_reduce(count)
    scores = model(tokens[mine], mine).log_softmax(dim=1).gather(1, target[:, None])[:, 0]
    return -(scores * counts).sum() / count


exercise.variant_edit("mean-of-the-counts", {"total * dist.get_world_size() / (targets != 0).sum()":
    "total / ((targets != 0).sum() / dist.get_world_size())"})
