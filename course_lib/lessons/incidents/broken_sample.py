"""Incident: one rank leaves a step out, and trains a model of its own from then on."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution
from .data import Batch, batches, make_mlp, parameters


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (4, 2, 3)[number % 3], rng.randint(2, 4), rng.getrandbits(31)
    odd = (2, 1, 2, 0)[number % 4]

    def args(rank: int) -> tuple[nn.Module, list[Batch]]:
        data = batches([4] * 5, width, seed + rank)
        if rank == odd:
            data[2] = (data[2][0], 7 + data[2][1])  # a broken sample
        if number > 0:  # on each rank two high losses, the first just below or above the limit
            with torch.no_grad():
                just_above = number == 3 and rank == odd
                data[0] = (data[0][0], (30.5 if just_above else 29.5) ** 0.5 + make_mlp(width, seed)(data[0][0]))
            data[3] = (data[3][0], 3.5 + data[3][1])
        return make_mlp(width, seed), data

    what = f"batch 2 of rank {odd} is broken" + ", the loss of its batch 0 is just above 30" * (number == 3)
    return Case(world_size=world_size, args=args, what=what)


def trained(solution: Solution, model: nn.Module, data: list[Batch]) -> dict[str, Any]:
    return {"losses": solution(model, data), "parameters": parameters(model)}


exercise = Exercise("incidents.broken_sample", title="Incident: a broken sample", draw=draw, trial=trained,
    answers={
        "where": "line 18: if loss > 30",
        "why": "different parameters; three of them trained with the broken sample",
    },
    inputs_matter=False, case_count=4, task="""
    A broken sample gives a loss far above the usual. The program leaves such steps out, and nothing hangs; the model
    gets worse. In [WeatherGenerator, pull request 2718](https://github.com/ecmwf/WeatherGenerator/pull/2718) the ranks
    decided by the loss of one rank only. Repair the program until its docstring is true.
    """, hints="""
    Compare the ranks' last lines. All ranks should have the same parameters at every moment.

    A loss belongs to one rank. Which ranks have to know that one of them is too high?

    All ranks have to decide alike, so the decision needs a collective: `dist.all_reduce(worst, dist.ReduceOp.MAX)`.

    ```python
    worst = loss.detach().clone()
    dist.all_reduce(...)
    if worst > 30:
        ...
    ```
    """, explanation="""
    The gradient of the broken sample was in the mean before the rank decided, so the other ranks took the step with it;
    and the rank that left its step out now has parameters that differ from theirs. Every later gradient is a mean over
    different models. No call is missing, so no tool that compares calls can see it: compare parameters over ranks,
    with a norm in the log, for example. A decision about all ranks has to be made by all ranks.
    """)


@exercise
def train(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Train on this rank's batches, and return their losses.

    All ranks make a step together for each batch, with the mean of their gradients. If the loss of any
    rank is above 30, no rank makes this step.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, (x, y) in enumerate(data):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        worst = loss.detach().clone()
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        if worst > 30:
            print(f"step {step}: the worst loss is {worst.item():.3f}, step skipped")
            continue
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
    print(f"norm of the parameters: {sum(param.norm().item() for param in model.parameters()):.3f}")
    return losses


AGREE = "worst = loss.detach().clone()\ndist.all_reduce(worst, dist.ReduceOp.MAX)\n"
NORMAL = 'print(f"step {step}: the worst loss is {worst.item():.3f}, step skipped")'

exercise.start_edit({AGREE: "", "if worst > 30": "if loss > 30", NORMAL:
    'print(f"step {step}: loss {loss.item():.3f} is above 30, step skipped")'})

exercise.edit("sum-of-the-losses", {"worst, dist.ReduceOp.MAX": "worst"}, """
    You compare the sum of all losses with 30, and so leave out steps in which no loss is above it. The more ranks
    there are, the more such steps. Next: find the largest loss of all ranks.
    """)

exercise.edit("still-alone", {AGREE: "worst = loss.detach()\ndist.barrier()\n"}, """
    One rank decides alone, by its own loss. It leaves the step out, and the others take it, with the gradient of the
    broken sample; from then on the ranks have different parameters. A barrier does not help: each rank still knows only
    its own loss. Next: find the largest loss of all ranks, and let all decide by it.
    """)

exercise.edit("averages-the-parameters", {AGREE: "worst = loss.detach()\n", "continue": "optimizer.zero_grad()",
    "optimizer.step()\n": "optimizer.step()\nfor param in model.parameters():\n    dist.all_reduce(param.data)\n"
    "    param.data /= dist.get_world_size()\n"}, """
    You average the parameters of all ranks after each step. They agree again, and the mean contains the step of the
    ranks that made it with the broken sample. Next: let all ranks make the step, or none.
    """)

exercise.edit("leaves-the-calls-out", {AGREE: "", "loss.backward()\n": "worst = loss.detach()\nif worst > 30:\n    "
    "continue\nloss.backward()\n", f"if worst > 30:\n    {NORMAL}\n    continue\n": "", "losses.append(loss.item())\n":
    "", "loss = F.mse_loss(model(x), y)": "loss = F.mse_loss(model(x), y)\nlosses.append(loss.item())"}, """
    Your rank with the broken sample leaves the all-reduces out, too, and is a step behind the others.
    Next: let all ranks make the calls, and decide together.
    """)

exercise.edit("rank-zero-decides", {"dist.all_reduce(worst, dist.ReduceOp.MAX)": "dist.broadcast(worst, 0)"}, """
    Your ranks decide alike, by the loss of one rank. A broken sample of a different rank is never seen.
    Next: take the largest loss of all ranks.
    """)

exercise.edit("never-skips", {AGREE: "worst = torch.zeros(())\n"}, """
    All ranks make every step, so the model trains with the broken sample. Next: leave the step out on all ranks if the
    loss of any rank is too high.
    """)

exercise.edit("by-the-mean", {"dist.all_reduce(worst, dist.ReduceOp.MAX)":
    "dist.all_reduce(worst)\nworst /= dist.get_world_size()"}, """
    Your ranks decide by the mean of their losses, which hides one that is far too high.
    Next: take the largest loss of all ranks.
    """)

exercise.edit("limit-too-high", {"worst > 30": "worst > 31"}, """
    Your ranks make a step though a loss is above 30, if it is only a little above. Next: compare the largest loss of
    all ranks with 30.
    """)

exercise.edit("only-if-all", {"ReduceOp.MAX": "ReduceOp.MIN"}, """
    Your ranks leave the step out only if the loss is too high on all of them. Next: one of them is enough.
    """)

exercise.edit("clips", {AGREE: "worst = torch.zeros(())\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"}, """
    You clip the gradients, so the broken sample moves the model less far; it still moves it, and every other step is
    clipped, too. Next: leave this step out, on all ranks.
    """)

exercise.edit("copies-rank-zero", {AGREE: "worst = loss.detach()\n", "print(f\"norm": "for param in "
    "model.parameters():\n    dist.broadcast(param.data, 0)\nprint(f\"norm"}, """
    At the end you copy the parameters of rank 0. All ranks agree now, on a model that was trained with the broken
    sample, and with gradients of different models. Next: let all ranks leave the step out together.
    """)

exercise.edit("zero-on-that-rank", {AGREE: "worst = torch.zeros(())\n", "loss.backward()": "(loss * float(loss <= "
    "30)).backward()"}, """
    Your rank with the broken sample contributes a gradient of zero, and all ranks make the step. The docstring wants no
    step at all. Next: find the largest loss of all ranks, and let all of them leave the step out.
    """)

exercise.variant_edit("before-backward", {AGREE: "", "loss.backward()\nlosses.append(loss.item())\n":
    f"losses.append(loss.item())\n{AGREE}if worst > 30:\n    continue\nloss.backward()\n",
    f"if worst > 30:\n    {NORMAL}\n    continue\n": ""})

exercise.variant_edit("a-list-of-flags", {AGREE: "flags = [False] * dist.get_world_size()\n"
    "dist.all_gather_object(flags, loss.item() > 30)\nworst = torch.tensor(100.0 * any(flags))\n"})
