"""The loss of a rank, when ranks have different numbers of tokens."""

import random

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from ...exercises import Case, Exercise, Solution, draw_world_size, whole_numbers


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
    tokens = rng.sample(range(1, 2 + world_size), world_size)
    padding = [0] * world_size if number == 0 else [rng.randint(1, 3) for _ in tokens]
    classes = 2 + number % 2
    if number == 2:
        tokens[rng.randrange(world_size)] = 0

    def args(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        length = tokens[rank] + padding[rank]
        targets = whole_numbers(length, seed=seed, rank=rank, dtype=torch.int64) % classes
        targets[tokens[rank] :] = -100
        return whole_numbers(length, classes, seed=seed, rank=rank) / 100, targets.roll(number)  # padding is anywhere

    what = f"tokens on each: {', '.join(map(str, tokens))}" + ", and padding" * any(padding)
    return Case(world_size=world_size, args=args, what=what)


def averaged(solution: Solution, scores: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradient and the loss as data parallel makes them: each is averaged over ranks."""
    weight = torch.ones(scores.shape[1], requires_grad=True)
    loss = solution(scores * weight, targets)
    loss.backward()
    value = loss.detach().reshape(()).float().clone()  # a loss in fp64 is right, too
    averages = {"the mean of the gradients": weight.grad, "the mean of the losses": value}
    for value in averages.values():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return averages


exercise = Exercise("data_parallel.token_mean", title="A loss for each token", draw=draw, trial=averaged,
    inputs_matter=False, task="""
    Return this rank's loss, for `loss.backward()`. The engine averages gradients over ranks, as torch's engines do.
    Scale your loss so that the mean of the ranks' losses is the mean over all tokens of all ranks. The mean of their
    gradients is then its gradient. Ranks have different numbers of tokens, and a rank may have none. A target of -100
    marks padding, which is not a token.""", hints="""
    One rank has 1 token and another rank has 3. What is the mean over 4 tokens? What is the mean of the two means?

    The mean over all tokens is a sum over ranks, divided by the number of tokens on all ranks. The engine divides the
    sum over ranks by the number of ranks, and you cannot turn that off. What has to be in your loss to cancel it?

    `cross_entropy(..., reduction="sum")` leaves out targets of -100. `(targets != -100).sum()` counts this rank's
    tokens. An all-reduce adds up the counts.

    ```python
    total = cross_entropy(scores, targets, reduction="sum")
    tokens = (targets != -100).sum()
    dist.all_reduce(...)
    return total * ... / ...
    ```
    """, explanation="""
    The engine computes the sum of the ranks' gradients, divided by the world size. Your factor, world size divided by
    the number of all tokens, leaves the sum divided by the tokens. DDP, FSDP2 and every stage of ZeRO average in this
    way, so the factor is the same for all of them. Only the count is communicated, and no gradient flows through it.
    Gradient accumulation needs the same care: divide by the tokens of all micro-batches of the step, not by those of
    each one.""")


@exercise
def token_mean(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return this rank's loss, whose gradient is averaged over ranks after backward.

    The average is the gradient of the mean cross-entropy over all tokens of all ranks. `scores`
    [length, classes] and `targets` [length] belong to this rank. A target of -100 is padding.
    """
    total = cross_entropy(scores, targets, reduction="sum")
    tokens = (targets != -100).sum()
    dist.all_reduce(tokens)
    return total * dist.get_world_size() / tokens


SUM = 'cross_entropy(scores, targets, reduction="sum")'
COUNT = "tokens = (targets != -100).sum()\ndist.all_reduce(tokens)\n"
SCALED = "total * dist.get_world_size() / tokens"

exercise.edit("mean-of-this-rank", {SUM: "cross_entropy(scores, targets)", COUNT: "", SCALED: "total"}, """
    Your loss is the mean over this rank's tokens. The engine then averages the ranks' means, so a token counts more on
    a rank that has few tokens. A rank without tokens makes everything NaN.
    Next: divide the sum of this rank's losses by the number of tokens on all ranks.""")

exercise.edit("mean-of-this-rank-or-zero", {COUNT: "tokens = (targets != -100).sum().clamp(min=1)\n",
    SCALED: "total / tokens"}, """
    Your loss is the mean over this rank's tokens, and 0 if there are none. The engine then averages the ranks' means,
    so a token counts more on a rank that has few tokens.
    Next: divide the sum of this rank's losses by the number of tokens on all ranks.""")

exercise.edit("mean-of-the-means", {SUM: "cross_entropy(scores, targets)", COUNT: "dist.all_reduce(total)\n",
    SCALED: "total / dist.get_world_size()"}, """
    Your loss is the mean of the ranks' means, so a token counts more on a rank that has few tokens. The gradient is
    also too small: autograd does not see an all-reduce, and the engine divides by the number of ranks again.
    Next: sum over this rank's tokens, and all-reduce only their number.""")

exercise.edit("divided-by-ranks-again", {" * dist.get_world_size()": ""}, """
    You divide by the number of all tokens, and then the engine divides by the number of ranks. The gradient is too
    small by this factor. Next: multiply your loss by the world size.""")

exercise.edit("counts-padding", {"(targets != -100).sum()": "torch.tensor(targets.numel())"}, """
    You count padding as tokens, so you divide by too large a number. Next: count the targets that are not -100.""")

exercise.edit("class-0-left-out", {"targets != -100": "targets > 0"}, """
    Your count leaves out the tokens whose target is 0. That is a class like any other; only -100 is padding.
    Next: count the targets that are not -100.""")

exercise.edit("nan-of-no-tokens", {SUM: "cross_entropy(scores, targets) * (targets != -100).sum()"}, """
    You multiply the mean over this rank's tokens by their number. On a rank without tokens the mean is NaN, and NaN
    times 0 is NaN. Next: take the sum of the losses, which is 0 where there are no tokens.""")

exercise.edit("leaves-without-tokens", {"dist.all_reduce": "if tokens == 0:\n    return total\ndist.all_reduce"}, """
    A rank without tokens returns before the all-reduce, so the other ranks wait for a call that it never makes.
    Next: let every rank call the all-reduce. A rank without tokens contributes a count of 0.""")

exercise.edit("reduces-the-loss", {"dist.all_reduce": "dist.all_reduce(total)\ndist.all_reduce", SCALED:
    "total / tokens"}, """
    The value of your loss is right on every rank, but autograd does not see an all-reduce. Each rank's gradient is the
    one of its own tokens, and the engine divides their sum by the number of ranks.
    Next: all-reduce only the count, and multiply this rank's own sum by the world size.""")

exercise.edit("gradient-of-the-sum", {f"return {SCALED}": "mean = total.detach().clone()\ndist.all_reduce(mean)\n"
    "return total - total.detach() + mean / tokens"}, """
    The value of your loss is right, but only the sum of this rank's losses has a gradient, and nothing divides it. What
    you detach changes the value and not the gradient.
    Next: scale the sum that has a gradient.""")

exercise.edit("sum-of-this-rank", {COUNT: "", SCALED: "total"}, """
    You return the sum of this rank's losses. A rank with more tokens then has a longer gradient, and so has a longer
    text. Next: by which number must the sum of all ranks' losses be divided, and how does a rank learn this number?""")

exercise.edit("by-its-own-tokens", {"dist.all_reduce(tokens)\n": ""}, """
    You divide by the tokens of this rank, and multiply by the number of ranks. The tokens of the other ranks do not
    count. Next: which number should be the same on all ranks, and is not?""")


@exercise.variant
def share_of_the_tokens(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    counts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, (targets >= 0).sum().float())
    return cross_entropy(scores, targets, reduction="none").sum() / torch.stack(counts).mean()


@exercise.variant
def without_padding(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    real = targets != -100
    count = real.sum() / dist.get_world_size()
    dist.all_reduce(count)
    chosen = scores.log_softmax(dim=1)[real].gather(1, targets[real].unsqueeze(1))
    return -chosen.sum() / count
