"""The loss, if each rank has the scores of a part of the vocabulary."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...exercises import Case, Exercise, Solution, at_most, draw_world_size, normal, only_calls, sends_no_more
from .all_reduce import all_reduce
from .data import my_part, output_and_gradients


def draw(rng: random.Random, number: int) -> Case:
    """Draw large scores in every second case, all of them far below 0 for the first token."""
    world_size, seed, count = draw_world_size(rng, number), rng.getrandbits(32), rng.randint(3, 4)
    vocab = 3 * world_size
    targets = [rng.randrange(vocab) for _ in range(count)]
    largest = (2, 400)[number % 2]

    def args(rank: int) -> tuple[Tensor, Tensor]:
        scores = largest * normal(count, vocab, seed=seed)
        scores[0] -= 2000 * (number % 2)
        return my_part(scores, 1), torch.tensor(targets)

    what = f"{count} tokens, a vocabulary of {vocab}, scores up to about {3 * largest}"
    return Case(world_size=world_size, args=args, what=what + ", those of token 0 below -500" * (number % 2))


def one_step(solution: Solution, scores: Tensor, targets: Tensor) -> Any:
    """Return the loss, and the gradient of this rank's scores."""
    scores = scores.clone().requires_grad_()
    return output_and_gradients(solution(scores, targets), torch.tensor(2.0), scores=scores)


exercise = Exercise("tensor.cross_entropy", title="A loss without the scores", draw=draw, trial=one_step, case_count=4,
    rules=[only_calls("all_reduce"), at_most("all_reduce", 3),
        sends_no_more("three all-reduces of one number for each token", slack=1)], task="""
    The head is cut along the vocabulary as well: this rank has the scores of the tokens from `rank * scores.shape[1]`
    on. Return the mean cross-entropy of the whole scores, on every rank, as `F.cross_entropy` computes it in one
    process. For each token it is log(sum of exp(score)) minus the score of the target. Backward gives this
    rank's scores the gradient that they have in one process. No rank gathers the scores: use at most three
    all-reduces, of one number for each token. Large scores do not overflow.
    """, hints="""
    Which numbers does the loss of one token need from each rank? There are three.

    The largest score, so that exp does not overflow; then the sum of exp(score - largest); then the target's score,
    from the rank that has it. The loss does not change when you subtract the same number from all scores of a token.

    `dist.all_reduce(largest, dist.ReduceOp.MAX)`, of `scores.detach()`: the shift cancels, so it needs no gradient. For
    the other two use your `all_reduce`, which backward passes through. The target's score: as in `embedding`, with a
    mask.

    ```python
    largest = scores.detach().amax(1)
    dist.all_reduce(...)
    scores = scores - largest[:, None]
    total = all_reduce(...)
    index = targets - ...
    mine = ...
    found = scores.gather(1, torch.where(mine, index, 0)[:, None])[:, 0]
    of_target = all_reduce(...)
    return (... - ...).mean()
    ```
    """, explanation="""
    The scores are often the largest activation: 4,096 tokens and a vocabulary of 128,000 are 2.1 GB in fp32. Three
    numbers for each token travel instead. Each rank must subtract the same largest score: otherwise the ranks' sums are
    scaled differently, and cannot be added. If a token is masked, its score is minus infinity: times `mine` it would be
    NaN, and `torch.where` leaves it out. The gradient is softmax minus 1 at the target, and each rank computes its own
    part of it.
    """)


@exercise
def cross_entropy(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the whole scores, the same on every rank.

    scores: [tokens, vocabulary / N], this rank's part of each token's scores.
    targets: [tokens], numbers of the whole vocabulary, the same on every rank.
    Backward gives each rank the gradient of its scores, as in one process.
    Use at most three all-reduces, of one number for each token, and no other call.
    """
    largest = scores.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    scores = scores - largest[:, None]
    total = all_reduce(scores.exp().sum(1))
    index = targets - dist.get_rank() * scores.shape[1]
    mine = (index >= 0) & (index < scores.shape[1])
    found = scores.gather(1, torch.where(mine, index, 0)[:, None])[:, 0]
    of_target = all_reduce(torch.where(mine, found, 0))
    return (total.log() - of_target).mean()


MAXIMUM = "dist.all_reduce(largest, dist.ReduceOp.MAX)\n"
SHIFT = f"largest = scores.detach().amax(1)\n{MAXIMUM}scores = scores - largest[:, None]\n"

exercise.edit("overflows", {SHIFT: ""}, """
    From 89 on, exp is infinite in fp32, and so is the loss.
    Next: subtract the largest score of each token, over all ranks, before you take exp.
    """)

exercise.edit("largest-of-this-rank", {MAXIMUM: ""}, """
    Each rank subtracts its own largest score, so the ranks' sums of exp are scaled differently and cannot be added.
    Next: take the largest score over all ranks.
    """)

exercise.edit("largest-with-a-history", {"scores.detach().amax(1)": "scores.amax(1)"}, """
    Your loss is right, but backward goes through `largest` as well, and sees nothing of the all-reduce that changed it.
    Next: take the largest of `scores.detach()`: the shift cancels, so it needs no gradient.
    """)

exercise.edit("sum-of-the-largest", {", dist.ReduceOp.MAX": ""}, """
    You add up the ranks' largest scores. The loss changes little while exp stays in range, and with large scores every
    exp is 0 or infinite. Next: reduce with `dist.ReduceOp.MAX`.
    """)

exercise.edit("largest-of-all-tokens", {"scores.detach().amax(1)": "scores.detach().max()",
    "largest[:, None]": "largest"}, """
    You subtract one number from the scores of all tokens, the largest of them all. If a token's own scores are far
    below it, each exp is 0 and the log of their sum is minus infinity. Next: take a maximum for each token.
    """)

exercise.edit("own-sum", {"all_reduce(scores.exp().sum(1))": "scores.exp().sum(1)"}, """
    You divide by the sum over this rank's part of the vocabulary. Next: sum over ranks before you take the log.
    """)

exercise.edit("own-target", {"all_reduce(torch.where(mine, found, 0))": "torch.where(mine, found, 0)"}, """
    Only the rank with the target subtracts its score, so the ranks have different losses.
    Next: bring the score to all ranks: sum it with `all_reduce`; all other ranks add 0.
    """)

exercise.edit("target-not-masked", {"torch.where(mine, found, 0)": "found"}, """
    A rank that does not have the target adds the score of its first token. Next: add 0 there, with `mine`.
    """)

exercise.edit("clamped-not-masked", {"torch.where(mine, index, 0)": "index.clamp(0, scores.shape[1] - 1)",
    "torch.where(mine, found, 0)": "found"}, """
    A rank that does not have the target adds the score of its first or its last token. Next: add 0 there, with `mine`.
    """)

exercise.edit("own-largest-added", {MAXIMUM: "", "of_target).mean()": "of_target).mean() + largest.mean()",
    "found = scores": "found = (scores + largest[:, None])"}, """
    Each rank subtracts its own largest score inside exp, so the ranks' sums are scaled differently and cannot be added,
    and each adds a different score at the end. Next: take the largest score over all ranks.
    """)

exercise.edit("log-before-the-sum", {"all_reduce(scores.exp().sum(1))": "all_reduce(scores.exp().sum(1).log())",
    "total.log()": "total"}, """
    You add the logs of the ranks' sums. The log of a sum is not the sum of the logs.
    Next: sum over ranks first, then take the log.
    """)

exercise.edit("shifted-once", {"scores = scores - largest[:, None]\ntotal = all_reduce(scores.exp().sum(1))":
    "total = all_reduce((scores - largest[:, None]).exp().sum(1))"}, """
    You subtract the largest score inside exp, and not from the target's score. The loss is too small by the largest
    score. Next: use the shifted scores in both places.
    """)

exercise.edit("gathers-the-scores", {"largest =": "parts = [torch.empty_like(scores) for _ in "
    "range(dist.get_world_size())]\ndist.all_gather(parts, scores.detach())\nparts[dist.get_rank()] = scores\n"
    "return torch.nn.functional.cross_entropy(torch.cat(parts, 1), targets)\nlargest ="}, """
    The numbers are right. Every rank gathers all scores, the largest activation of the model, and computes the whole
    loss. Next: bring three numbers for each token together: the largest score, the sum, and the target's score.
    """)


@exercise.variant
def with_logsumexp(scores: Tensor, targets: Tensor) -> Tensor:
    mine = scores.logsumexp(1)
    largest = mine.detach().clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    begin = dist.get_rank() * scores.shape[1]
    one_hot = targets[:, None] == torch.arange(begin, begin + scores.shape[1])
    both = all_reduce(torch.stack([(mine - largest).exp(), (scores * one_hot).sum(1)]))
    return (both[0].log() + largest - both[1]).mean()


exercise.variant_edit("largest-within-autograd", {"scores.detach().amax(1)": "scores.amax(1).detach().clone()",
    "(total.log() - of_target).mean()": "(total.log() - of_target).sum() / len(targets)"})
