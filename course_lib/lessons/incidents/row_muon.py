"""Incident: Muon trains differently on each number of ranks, because a rank makes its own rows orthogonal."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, lets_go
from ...meter import mark

BETWEEN = "between two steps"
LR = 0.1

SLACK = 9500
"""In bytes. Shards of all gradients and a few whole matrices take 8,200, and the whole momentum takes 10,700."""


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = (2, 4, 3)[number % 3], rng.getrandbits(31)
    width, inner = (4, 8) if number == 0 else (5, 42)  # of 5 rows, the last of 4 ranks has none
    what = f"4 matrices, from width {width} to {inner} and back, 4 steps"
    return Case(world_size=world_size, args=lambda rank: (width, inner, seed), what=what)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return an approximation of U Vᵀ, where U S Vᵀ is `matrix`: 20 iterations of Newton and Schulz."""
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(20):
        matrix = torch.addmm(matrix, matrix @ matrix.T, matrix, beta=1.5, alpha=-0.5)  # few calls, which are measured
    return matrix


def trained(solution: Solution, width: int, inner: int, seed: int) -> dict[str, Any]:
    """Train on four batches. Return the losses, how far the first step stretches, and the parameters at the end."""
    torch.manual_seed(seed)
    widths = [width, inner, inner, inner, width]
    layers = [nn.Linear(into, out, bias=False) for into, out in itertools.pairwise(widths)]
    whole = torch.randn(4, 12, width, generator=torch.Generator().manual_seed(seed))  # whatever the number of ranks
    inputs = whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
    before: list[list[Tensor]] = []

    def batches() -> Iterator[Tensor]:
        for number, x in enumerate(inputs):
            if number < 2:
                before.append([layer.weight.detach().clone() for layer in (layers[0], layers[-1])])
            elif number == 2:
                mark(BETWEEN)
            yield x

    losses = solution(nn.Sequential(*layers), batches(), LR, orthogonal)
    first, last = (torch.linalg.svdvals((gathered(old) - gathered(new)) / LR).tolist()
        for old, new in zip(*before, strict=True))
    return {"losses": losses, "first step, first matrix": first, "first step, last matrix": last,
        "parameters": [gathered(layer.weight) for layer in layers]}


def gathered(param: Tensor) -> Tensor:
    return (param.full_tensor() if isinstance(param, DTensor) else param).detach().clone()


exercise = Exercise("incidents.row_muon", title="Incident: each number of ranks has its own curve", draw=draw,
    trial=trained,
    answers={
        "large": 2**0.5,
        "where": "line 20: orthogonal",
        "one": "the row, scaled to length 1",
    },
    measured=True, rules=[lets_go(BETWEEN, slack=SLACK)], inputs_matter=False, case_count=2, tolerance=1e-3, task="""
    With the same seed and the same global batch, the loss depends on the number of ranks. In the first step,
    the gradients and the momentum are right on every rank. Repair the program: each step is the step of one
    GPU. Between two steps, a rank still holds no more of the momentum than its shard.
    """, hints="""
    The first update should have singular values of about 1. Which are they with 2 ranks, and which matrix has each rank
    made orthogonal?

    Adam works on each element by itself, so it may run on shards. The orthogonal matrix of some rows is not
    those rows of the orthogonal matrix, because every row of it depends on all the others.

    `momentum.full_tensor()` gathers the whole matrix, on every rank. Then each rank takes its rows of the result. FSDP2
    gives each rank equally many rows, rounded up, and the last ranks get what is left.

    ```python
    whole = orthogonal(...)
    rows = ...  # of each rank, rounded up
    update = whole[...]
    ```
    """, explanation="""
    Muon's update is a function of the whole matrix, and the program gave it the rows of one rank. Each shard became
    orthogonal by itself, and together they are not: some directions move too far, because several ranks found them,
    and others hardly move. So every number of ranks trains a different model, without an error. People ask
    about it in [Megatron-LM, issue 5961](https://github.com/NVIDIA/Megatron-LM/issues/5961), and DeepSpeed has measured
    the same in tensor parallel, [issue 8437](https://github.com/deepspeedai/DeepSpeed/issues/8437). Gathering costs an
    all-gather for each matrix, and every rank computes the same. Where this takes too long, each matrix gets an owner,
    which computes its update for all. torch's own `torch.optim.Muon` is right on the DTensors of
    FSDP2, but it communicates in every iteration.
    """)


@exercise
def train(
    model: nn.Module, batches: Iterable[Tensor], lr: float, orthogonal: Callable[[Tensor], Tensor]
) -> list[float]:
    """Train `model` with FSDP2 and Muon, and return the loss of each batch.

    `orthogonal(matrix)` keeps the directions of a matrix, and makes its singular values 1. Each weight moves
    by `lr` times the orthogonal matrix of its momentum, as on one GPU. Between two steps a rank holds
    only its shard of each momentum.
    """
    fully_shard(model)
    momenta = {param: torch.zeros_like(param) for param in model.parameters()}
    losses = []
    for x in batches:
        loss = (model(x) - x).square().mean()
        loss.backward()
        with torch.no_grad():
            for param, momentum in momenta.items():
                momentum.lerp_(param.grad, 0.1)
                whole = orthogonal(momentum.full_tensor())
                rows = -(-len(whole) // dist.get_world_size())
                update = whole[dist.get_rank() * rows :][:rows]
                param.to_local().sub_(update, alpha=lr)
        model.zero_grad()
        losses.append(loss.item())
    return losses


MOMENTA = "momenta = {param: torch.zeros_like(param) for param in model.parameters()}\n"
LERP = "momentum.lerp_(param.grad, 0.1)\n"
WHOLE = "whole = orthogonal(momentum.full_tensor())\n"
UPDATE = "rows = -(-len(whole) // dist.get_world_size())\nupdate = whole[dist.get_rank() * rows :][:rows]\n"
OWN_ROWS = "update = orthogonal(momentum.to_local())\n"

exercise.start_edit({WHOLE: "", UPDATE: OWN_ROWS})

exercise.edit("each-rank-its-own-rows", {WHOLE: "dist.barrier()\n", UPDATE: OWN_ROWS}, """
    Each rank makes the rows of its own shard orthogonal, and knows nothing of the other rows. Put together, the shards
    are no orthogonal matrix. Next: gather the matrix before you call `orthogonal`.""")

exercise.edit("scaled-shards", {WHOLE: "", UPDATE: OWN_ROWS + "update /= dist.get_world_size() ** 0.5\n"}, """
    You make each shard orthogonal, and divide by the square root of the number of ranks. The length may be right now,
    and the directions are still those of each shard by itself. Next: call `orthogonal` with the whole matrix.""")

exercise.edit("smaller-steps", {WHOLE: "", UPDATE: OWN_ROWS, "alpha=lr": "alpha=lr / dist.get_world_size()"}, """
    You make smaller steps, and each still goes in the wrong direction. Next: compare the update with that of one GPU,
    and find the line in which they first differ.""")

exercise.edit("columns-instead-of-rows", {
    WHOLE: "columns = momentum.full_tensor().chunk(dist.get_world_size(), dim=1)\n"
    "whole = torch.cat([orthogonal(part) for part in columns], dim=1)\n"}, """
    You make groups of columns orthogonal instead of groups of rows. That is a different part of the matrix, and again
    not the whole. Next: call `orthogonal` with the whole matrix.""")

exercise.edit("orthogonal-twice", {WHOLE: "rows = DTensor.from_local(orthogonal(momentum.to_local()), "
    "param.device_mesh, param.placements, shape=param.shape, stride=param.stride())\n"
    "whole = orthogonal(rows.full_tensor())\n"}, """
    You gather what each rank has made orthogonal, and make that orthogonal. Its singular values are right, but its
    directions are not, because the first call has changed how much each direction counts.
    Next: gather the momentum itself.""")

exercise.edit("one-long-row", {WHOLE: "whole = momentum.full_tensor()\nwhole = orthogonal(whole.reshape(1, -1))"
    ".reshape(whole.shape)\n"}, """
    You gather the matrix, and give `orthogonal` all its elements as one row. Of a single row it can change only the
    length. Next: keep the matrix's shape.""")

exercise.edit("gradient-without-momentum", {WHOLE: "whole = orthogonal(param.grad.full_tensor())\n"}, """
    You make the gradient of this batch orthogonal, so the momentum is never used.
    Next: gather the momentum.""")

exercise.edit("momentum-of-the-updates", {LERP: "", WHOLE: "whole = orthogonal(param.grad.full_tensor())\n",
    UPDATE: UPDATE + "momentum.to_local().lerp_(update, 0.1)\nupdate = momentum.to_local()\n"}, """
    You make each gradient orthogonal, and average afterwards. Muon averages first: a mean of orthogonal matrices is not
    orthogonal. Next: update the momentum, then make it orthogonal.""")

exercise.edit("whole-momentum", {MOMENTA: MOMENTA.replace("zeros_like(param)", "zeros(param.shape)"),
    LERP: "momentum.lerp_(param.grad.full_tensor(), 0.1)\n", "momentum.full_tensor()": "momentum"}, """
    The steps are right, but every rank keeps the whole momentum. Memory no longer falls with the number of ranks.
    Next: keep shards, and gather one matrix at a time.""")


@exercise.variant
def owners(model: Any, batches: Iterable[Tensor], lr: float, orthogonal: Callable[[Tensor], Tensor]) -> list[float]:
    fully_shard(model)
    params, losses = list(model.parameters()), []
    momenta = [torch.zeros_like(param) for param in params]
    for x in batches:
        loss = F.mse_loss(model(x), x)
        loss.backward()
        for number, (param, momentum) in enumerate(zip(params, momenta, strict=True)):
            momentum.mul_(0.9).add_(param.grad, alpha=0.1)
            whole = momentum.full_tensor()
            if number % dist.get_world_size() == dist.get_rank():
                whole.copy_(orthogonal(whole))
            dist.broadcast(whole, number % dist.get_world_size())
            update = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)
            param.detach().sub_(update, alpha=lr)
            param.grad = None
        losses.append(loss.item())
    return losses


exercise.variant_edit("dtensor-gathers", {WHOLE: "", UPDATE:
    "update = orthogonal(momentum).redistribute(placements=param.placements).to_local()\n"})

exercise.variant_edit("two-whole-matrices", {WHOLE: "momentum_matrix = momentum.full_tensor()\n"
    "whole = orthogonal(momentum_matrix)\n"})
