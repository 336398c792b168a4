"""Incident: short sequences count more than long ones, by the split into micro-batches and ranks."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution


def draw(rng: random.Random, number: int) -> Case:
    world_size, micro, seed = (2, 3, 1)[number % 3], 2 + number % 2, rng.getrandbits(31)
    lengths = [rng.sample(range(2, 12), micro) for _ in range(world_size)]
    padding = [[rng.randint(0, 3) for _ in range(micro)] for _ in range(world_size)]
    if number == 2:
        lengths[0][0], padding[0][0] = 0, 2  # a micro-batch of padding only

    def args(rank: int) -> Any:
        return lengths[rank], padding[rank], seed + 10 * rank

    return Case(world_size=world_size, args=args, what=f"micro-batches of {lengths} tokens")


def four_steps(solution: Solution, lengths: list[int], padding: list[int], seed: int) -> dict[str, Any]:
    """Make four steps on the same micro-batches; return the losses that the program logs and the parameters."""
    generator = torch.Generator().manual_seed(seed)
    micro_batches = []
    for length, more in zip(lengths, padding, strict=True):
        tokens = torch.randint(4, (length + more,), generator=generator)
        targets = (tokens + (length < 6)) % 4  # short answers want a different token
        targets[length:] = -100
        micro_batches.append((tokens, targets))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = [solution(model, optimizer, micro_batches) for _ in range(4)]
    return {"losses": losses, "parameters": [param.detach() for param in model.parameters()]}


exercise = Exercise("incidents.short_answers", title="Incident: a different curve on every cluster", draw=draw,
    answers={
        "weight": 4.5,
        "where": "line 12: the loss",
    },
    trial=four_steps, inputs_matter=False, case_count=3, task="""
    The same model, the same data, the same global batch: on 2 ranks, with one large micro-batch each, the loss curve
    differs from that on 8 ranks, with one small micro-batch each. Answers of few tokens get better, long ones worse.
    Repair the step: every target token of the global batch counts the same, wherever it is. The returned loss is the
    mean over all these tokens, on every rank.
    """, hints="""
    Two micro-batches have 2 and 10 tokens. By how much does each token change the gradient, as the program is, and in
    one batch of 12?

    The mean of means is not the mean. How many target tokens does the global batch have, over all micro-batches and
    ranks? This number has to be known before the first backward.

    `cross_entropy(..., reduction="sum")` adds up and leaves out targets of -100. Count the targets of all
    micro-batches, and all-reduce the count.

    ```python
    count = torch.tensor(sum(int((targets != -100).sum()) for _, targets in micro_batches))
    dist.all_reduce(count)
    ...
    loss = F.cross_entropy(model(tokens), targets, reduction="sum") / count
    ```

    The gradients of the ranks are then parts of one sum. What becomes of the division by the number of ranks?
    """, explanation="""
    Each micro-batch was divided by its own number of tokens, so a token in a short one weighed more. The error depends
    on how the batch is cut, so the curve changed with the cluster. Many trainers had it until October 2024:
    [transformers pull request 34191](https://github.com/huggingface/transformers/pull/34191) repaired it over
    micro-batches, and [pull request 34373](https://github.com/huggingface/transformers/pull/34373) then over ranks.
    A test that finds it: cut the same global batch in two ways, and compare the gradients.
    """)


@exercise
def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: list[tuple[Tensor, Tensor]]
) -> float:
    """Make a step on the micro-batches of all ranks, as if they were one batch. Return its loss on every rank.

    A micro-batch has tokens and targets, [length] each. A target of -100 is padding. Every other target
    in the global batch counts the same.
    """
    count = torch.tensor(sum(int((targets != -100).sum()) for _, targets in micro_batches))
    dist.all_reduce(count)
    total = torch.zeros(())
    for tokens, targets in micro_batches:
        loss = F.cross_entropy(model(tokens), targets, reduction="sum") / count
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    for param in model.parameters():
        dist.all_reduce(param.grad)
    optimizer.step()
    optimizer.zero_grad()
    return total.item()


COUNT = "count = torch.tensor(sum(int((targets != -100).sum()) for _, targets in micro_batches))\n"
COUNT_ALL = "dist.all_reduce(count)\n"
LOSS = 'loss = F.cross_entropy(model(tokens), targets, reduction="sum") / count\n'
TOTAL = "dist.all_reduce(total)\n"
GRADS = "for param in model.parameters():\n    dist.all_reduce(param.grad)\n"
MEAN_TOTAL = TOTAL + "total /= dist.get_world_size()\n"
MEAN_GRADS = GRADS + "    param.grad /= dist.get_world_size()\n"
MEANS = {COUNT: "", COUNT_ALL: "", LOSS: "loss = F.cross_entropy(model(tokens), targets) / len(micro_batches)\n",
    TOTAL: MEAN_TOTAL, GRADS: MEAN_GRADS}

exercise.start_edit(MEANS)

exercise.edit("mean-of-means", MEANS | {TOTAL: "dist.barrier()\n" + MEAN_TOTAL}, """
    Each micro-batch is divided by its own number of tokens. A token in a short micro-batch changes the gradient more
    than one in a long micro-batch. Next: divide sums by one number, that of all target tokens of the step.""")

exercise.edit("repaired-on-one-rank-only", {COUNT_ALL: "", TOTAL: MEAN_TOTAL, GRADS: MEAN_GRADS}, """
    Within a rank all tokens now count the same. Between ranks they do not: each rank divides by its own number of
    tokens, and the ranks' means are averaged. Next: count the tokens of all ranks.""")

exercise.edit("divided-by-ranks-again", {GRADS: MEAN_GRADS}, """
    The loss in the log is right, but the gradients are too small: the sums are divided by the number of all tokens, and
    then by the number of ranks. Next: add up the gradients, without the second division.""")

exercise.edit("divided-by-micro-batches-again", {LOSS: LOSS.replace("/ count", "/ count / len(micro_batches)")}, """
    You divide the sums by the number of all tokens, and then by the number of micro-batches. So the loss in the log and
    the gradients are too small. Next: leave out the second division, `/ len(micro_batches)`.""")

exercise.edit("log-divided-by-micro-batches", {"total += loss.detach()": "total += loss.detach() / len(micro_batches)"},
    """
    The training is right. The loss in the log is too small: you divide the sums by the number of all tokens, and then
    by the number of micro-batches. Next: leave out the second division.""")

exercise.edit("right-loss-in-the-log-only", MEANS | {"total = torch.zeros(())\n": COUNT + COUNT_ALL
    + "total = torch.zeros(())\n", "total += loss.detach()": 'total += F.cross_entropy(model(tokens), targets, '
    'reduction="sum").detach() / count', TOTAL: TOTAL}, """
    The log shows the mean over all tokens, and the gradients are still those of the mean of means. The curve looks
    right where it starts, and the training is the old one.
    Next: call backward on the loss that you log.""")

exercise.edit("counts-padding", {"int((targets != -100).sum())": "len(targets)"}, """
    You count padding as tokens, so you divide by too large a number. Next: count only targets that are not -100.""")

exercise.edit("weighs-by-length", MEANS | {LOSS: "loss = F.cross_entropy(model(tokens), targets)\n"
    "loss = loss * len(targets) / sum(len(others) for _, others in micro_batches)\n"}, """
    You weigh each micro-batch by its length. The length includes padding, and the ranks are still averaged without
    weights. Next: divide sums by the number of target tokens of all ranks.""")

exercise.edit("sum-without-division", {LOSS: LOSS.replace(" / count", ""), COUNT: "", COUNT_ALL: ""}, """
    You add up the losses of all tokens and never divide. Every token counts the same, but a step with more tokens goes
    further. Next: divide by the number of target tokens of all ranks.""")

exercise.edit("counts-in-each-micro-batch", {COUNT: "", COUNT_ALL: "", LOSS:
    "count = (targets != -100).sum()\ndist.all_reduce(count)\n" + LOSS.replace("/ count",
    "/ count / len(micro_batches)")}, """
    You count over ranks, but for each micro-batch separately, and then average the micro-batches. Tokens of a round
    with short micro-batches still count more. Next: count once for the whole step.""")


@exercise.variant
def scaled_for_an_engine_that_averages(model: nn.Module, optimizer: Any, micro_batches: Any) -> float:
    ranks = dist.get_world_size()
    counts = torch.stack([(targets >= 0).sum() for _, targets in micro_batches]).sum().float()
    dist.all_reduce(counts)
    total = 0.0
    for tokens, targets in micro_batches:
        real = targets >= 0
        loss = F.cross_entropy(model(tokens[real]), targets[real], reduction="none").sum() * ranks / counts
        loss.backward()
        total += loss.item() / ranks
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= ranks
    optimizer.step()
    optimizer.zero_grad()
    everyones = torch.tensor(total)
    dist.all_reduce(everyones)
    return float(everyones)


exercise.variant_edit("divides-at-the-end", {LOSS: LOSS.replace(" / count", ""),
    GRADS: GRADS + "    param.grad /= count\n", "total.item()": "(total / count).item()"})
