"""Incident: the stages of a pipeline clip by different norms."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution


def draw(rng: random.Random, number: int) -> Case:
    """Draw a limit far below all norms, then one between a stage's and the whole norm, then one the norm is below."""
    shape, width, seed, limit = ((2, 2), (1, 3), (1, 2))[number % 3], rng.randint(3, 5), rng.getrandbits(31), 0.1
    if number % 3:
        largest, norm = first_norms(shape, width, seed)
        while norm < 2 or largest > 0.95 * norm:
            width, seed = rng.randint(3, 5), rng.getrandbits(31)
            largest, norm = first_norms(shape, width, seed)
        limit = round((largest + norm) / 2 if number % 3 == 1 else norm**1.5, 2)  # the square is above norm**1.5
    what = f"a mesh of {shape[0]} × {shape[1]} (copies × stages), width {width}, 4 steps, clipped to {limit:g}"
    return Case(world_size=shape[0] * shape[1], args=lambda rank: (shape, width, seed, limit), what=what)


def make_part(width: int, seed: int, stage: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + stage)
        part = nn.Sequential(nn.Linear(width, width), nn.Tanh())
    with torch.no_grad():
        part[0].weight.mul_(3.0 ** (2 * stage - 1))  # gradients of different sizes
    return part


def batch(width: int, seed: int, copy: int) -> torch.Tensor:
    return torch.randn(2, width, generator=torch.Generator().manual_seed(seed + 50 + copy))


def first_norms(shape: tuple[int, int], width: int, seed: int) -> tuple[float, float]:
    """Return two gradient norms of the first step: the largest of a stage, and that of the whole model."""
    parts = [make_part(width, seed, stage) for stage in range(shape[1])]
    y = nn.Sequential(*parts)(torch.cat([batch(width, seed, copy) for copy in range(shape[0])]))
    F.mse_loss(y, torch.ones_like(y)).backward()
    norms = torch.stack([torch.nn.utils.get_total_norm([p.grad for p in part.parameters()]) for part in parts])
    return norms.max().item(), norms.norm().item()


def four_steps(solution: Solution, shape: tuple[int, int], width: int, seed: int, limit: float) -> dict[str, Any]:
    """Return the norms that the program logs, the losses, and the parameters of this rank's stage."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "stage"))
    copies, stages = mesh.get_group("copy"), mesh.get_group("stage")
    part, x = make_part(width, seed, stages.rank()), batch(width, seed, copies.rank())
    losses: list[float] = []

    def backward() -> None:
        losses.append(through_all_stages(part, x, stages))

    optimizer = torch.optim.SGD(part.parameters(), lr=0.05 / limit)  # after long steps, rounding would show
    norms = [solution(part, optimizer, backward, stages, copies, limit) for _ in range(4)]
    params = [param.detach() for param in part.parameters()]
    return {"norms": norms, "losses of the last stage": losses, "parameters": params}


def through_all_stages(part: nn.Module, x: torch.Tensor, stages: dist.ProcessGroup) -> float:
    """Take a batch through all stages and its gradients back; return the loss on the last stage, 0 on all others."""
    stage, last = stages.rank(), stages.size() - 1
    if stage > 0:
        x = torch.empty_like(x)
        dist.recv(x, group=stages, group_src=stage - 1)
        x.requires_grad_()
    y = part(x)
    if stage == last:
        loss = F.mse_loss(y, torch.ones_like(y))
        loss.backward()
    else:
        dist.send(y.detach(), group=stages, group_dst=stage + 1)
        grad = torch.empty_like(y)
        dist.recv(grad, group=stages, group_src=stage + 1)
        y.backward(grad)
    if stage > 0:
        dist.send(x.grad, group=stages, group_dst=stage - 1)
    return loss.item() if stage == last else 0.0


exercise = Exercise("incidents.stage_norm", title="Incident: two norms in one model", draw=draw, trial=four_steps,
    answers={
        "norm": 1.774,
        "group": "stages: they have different parameters",
    },
    inputs_matter=False, case_count=3, task="""
    With the same seed and the same data, the loss curve of a two-stage pipeline differs from that of one GPU. The log
    of rank 0 and the log of rank 1 show different gradient norms for the same step. Repair the program: the model is
    clipped as one process would clip it, and every rank returns the norm of the whole model.
    """, hints="""
    Write down for each rank which parameters it has. Over which of them does it take the norm?

    A mesh has ranks with different parameters, and ranks with copies of the same ones. The norm needs each gradient
    once: sum over the first kind, not over the second.

    `dist.all_reduce(squares, group=stages)`: squares add up, norms do not. Then scale with the total.
    `torch.nn.utils.get_total_norm` and `clip_grads_with_norm_` are the two halves of `clip_grad_norm_`.

    ```python
    squares = torch.nn.utils.get_total_norm(...).square()
    dist.all_reduce(squares, group=...)
    norm = ...
    torch.nn.utils.clip_grads_with_norm_(part.parameters(), max_norm, norm)
    ```
    """, explanation="""
    `clip_grad_norm_` sees the parameters that it is given, and those of a stage are a part of the model. Every stage
    was scaled by a factor of its own, so the step pointed in a different direction. Nothing fails, and the
    loss falls. The report: [torchtitan issue 596](https://github.com/pytorch/torchtitan/issues/596).
    FSDP2 hides this for its shards, because the norm of DTensors is a collective; a DTensor does not know of the
    pipeline's stages.
    """)


@exercise
def step(
    part: nn.Module,
    optimizer: torch.optim.Optimizer,
    backward: Callable[[], None],
    stages: dist.ProcessGroup,
    copies: dist.ProcessGroup,
    max_norm: float,
) -> float:
    """Make a step, clipped by the gradient norm of the whole model. Return this norm on every rank.

    Each rank of `stages` has a different part of the model. The ranks of `copies` have the same part
    and different batches. `backward()` takes a batch through all stages, and fills `.grad` here.
    """
    backward()
    for param in part.parameters():
        dist.all_reduce(param.grad, group=copies)
        param.grad /= copies.size()
    squares = torch.nn.utils.get_total_norm([param.grad for param in part.parameters()]).square()
    dist.all_reduce(squares, group=stages)
    norm = squares.sqrt()
    torch.nn.utils.clip_grads_with_norm_(part.parameters(), max_norm, norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


LOCAL = "squares = torch.nn.utils.get_total_norm([param.grad for param in part.parameters()]).square()\n"
OVER_STAGES = "dist.all_reduce(squares, group=stages)\n"
ROOT = "norm = squares.sqrt()\n"
CLIP = "torch.nn.utils.clip_grads_with_norm_(part.parameters(), max_norm, norm)\n"
ONE_STAGE = "norm = torch.nn.utils.clip_grad_norm_(part.parameters(), max_norm)\n"
OWN = {LOCAL: "", OVER_STAGES: "", ROOT: ONE_STAGE, CLIP: ""}

exercise.start_edit(OWN)

exercise.edit("always-scales", {"torch.nn.utils.clip_grads_with_norm_(part.parameters(), max_norm, norm)":
    "for param in part.parameters():\n    param.grad *= max_norm / norm"}, """
    You scale the gradients even where their norm is below the limit, and so make them longer. Clipping only shortens.
    Next: multiply only where the norm is too large.""")

exercise.edit("decides-by-one-stage", {LOCAL: LOCAL + "own = squares.sqrt()\n",
    CLIP: "if own > max_norm:\n    for param in part.parameters():\n        param.grad *= max_norm / norm\n"}, """
    You return the right norm, but you do not clip wherever it is above the limit: a different number decides, such as
    the norm of one stage. Next: compare the norm that you return with `max_norm`.""")

exercise.edit("norm-of-one-stage", {OVER_STAGES: ""}, """
    Each stage clips by the norm of its own gradients, and the stages scale by different factors.
    Next: add up the squares of all stages before you take the root.""")

exercise.edit("right-norm-in-the-log-only", {**OWN, CLIP: "squares = norm.square()\n" + OVER_STAGES + ROOT}, """
    The log now shows the norm of the whole model, and all ranks agree. But the gradients were clipped by the norm of
    one stage. Next: scale by the norm that you return.""")

exercise.edit("over-all-ranks", {OVER_STAGES: "dist.all_reduce(squares)\n"}, """
    You sum over all ranks. The ranks of `copies` have the same gradients after the averaging, so each gradient counts
    once for every copy. Next: sum over the ranks that have different parameters.""")

exercise.edit("over-the-copies", {OVER_STAGES: "dist.all_reduce(squares, group=copies)\n"}, """
    You sum over `copies`, where all ranks have the same gradients, and not over `stages`, where they differ.
    Next: use the group whose ranks have different parameters.""")

exercise.edit("sum-of-norms", {LOCAL: LOCAL.replace(".square()", ""), ROOT: "norm = squares\n"}, """
    You add up the norms of the stages. The norms 3 and 4 make 5, not 7. Next: add up squares, then take the root.""")

exercise.edit("no-root", {ROOT: "norm = squares\n"}, """
    Your norm is the square of the norm: the sum of all squares, without the root. Next: take the root of the total.""")

exercise.edit("mean-of-norms", {LOCAL: LOCAL.replace(".square()", ""), ROOT: "norm = squares / stages.size()\n"}, """
    All stages agree on one norm now, the mean of their own. The norm of the whole model is larger than each of them.
    Next: add up the squares of all stages, then take the root.""")

exercise.edit("largest-norm", {OVER_STAGES: "dist.all_reduce(squares, op=dist.ReduceOp.MAX, group=stages)\n"}, """
    All stages agree on one norm now: the norm of a single stage. The norm of the whole model is larger, so
    one process would clip more. Next: add up the squares of all stages instead.""")

exercise.edit("smaller-limit", {**OWN, ROOT: ONE_STAGE.replace("max_norm)", "max_norm / stages.size() ** 0.5)")}, """
    You give each stage a smaller limit. That would be right only if all stages had equal norms; each still scales by a
    factor of its own. Next: let all stages agree on one norm first.""")

exercise.edit("no-clipping", {CLIP: ""}, """
    You return the right norm, and clip nothing or only after the step. Next: before `optimizer.step()`, scale the
    gradients of each stage by the same factor.""")

exercise.edit("clips-before-averaging", {
    "for param in part.parameters():\ndist.all_reduce(param.grad, group=copies)\nparam.grad /= copies.size()\n": "",
    "optimizer.step()\n": "for param in part.parameters():\n    dist.all_reduce(param.grad, group=copies)\n"
    "    param.grad /= copies.size()\noptimizer.step()\n"}, """
    Your norm is that of one batch's gradients, before they are averaged over `copies`. One process clips by the norm of
    the whole batch's gradient. Next: average over `copies` first.""")


@exercise.variant
def by_hand(part: Any, optimizer: Any, backward: Any, stages: Any, copies: Any, max_norm: float) -> float:
    backward()
    grads = [param.grad for param in part.parameters()]
    for grad in grads:
        dist.all_reduce(grad, op=dist.ReduceOp.SUM, group=copies)
        grad.div_(copies.size())
    norms = [torch.zeros(()) for _ in range(stages.size())]
    dist.all_gather(norms, torch.cat([grad.flatten() for grad in grads]).norm(), group=stages)
    norm = torch.stack(norms).norm()
    for grad in grads:
        grad.mul_((max_norm / norm).clamp(max=1.0))
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return float(norm)


exercise.variant_edit("every-gradient-once-over-all", {
    OVER_STAGES: "dist.all_reduce(squares)\nsquares /= copies.size()\n"})
