"""Incident: the gradient norm counts every expert once for each rank."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ... import parallel
from ...exercises import Case, Exercise, Solution, normal

LIMITS = ("0.1", "less than the norm of the first step, and more than each part of it", "more than each norm")


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (4, 2, 3)[number % 3], rng.randint(3, 4), rng.getrandbits(31)
    what = f"width {width}, an expert on each rank, 4 steps, clipped to {LIMITS[number % 3]}"
    return Case(world_size=world_size, args=lambda rank: (width, seed, number % 3), what=what)


def limit_of(kind: int, parts: list[list[Tensor]]) -> float:
    """Return a limit of `LIMITS`, from the gradients of the shared parameters and of this rank's expert."""
    shared, own = (torch.nn.utils.get_total_norm(part) for part in parts)
    owns = [torch.empty(()) for _ in range(dist.get_world_size())]
    dist.all_gather(owns, own)
    largest, norm = max(shared, *owns).item(), torch.stack([shared, *owns]).norm().item()
    if kind == 2:
        return norm**0.75  # the norm is below 1, and above the square of this limit
    return (max(largest, norm**2 if norm < 1 else 0.0) + norm) / 2


def four_steps(solution: Solution, width: int, seed: int, kind: int) -> dict[str, Any]:
    """Return the norms, their parts in the first step, the losses, and the parameters of this rank."""
    torch.manual_seed(seed)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(width, width), parallel.Experts(width, world_size))
    own = list(model[1].experts.parameters())
    shared = [param for param in model.parameters() if all(param is not other for other in own)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, losses, parts = normal(6, width, seed=seed + rank), [], []

    def backward() -> None:
        loss = F.mse_loss(model(x), torch.ones_like(x))
        loss.backward()
        parallel.average_gradients(model)
        losses.append(loss.item())
        parts.append([torch.nn.utils.get_total_norm(each).item() for each in gradients()])

    def gradients() -> list[list[Tensor]]:
        return [[param.grad for param in params] for params in (shared, own)]

    limit = 0.1  # below every norm
    if kind:
        backward()
        limit = limit_of(kind, gradients())
        optimizer.zero_grad()
        losses.clear()
        parts.clear()
    norms = [solution(shared, own, optimizer, backward, limit) for _ in range(4)]
    params = [param.detach() for param in (*shared, *own)]
    return {"norms": norms, "shared and own norm, first step": parts[0], "losses": losses, "parameters": params}


exercise = Exercise("incidents.expert_norm", title="Incident: a norm that grows with the ranks", draw=draw,
    trial=four_steps,
    answers={
        "norm": 0.328,
        "times": 4,
    },
    inputs_matter=False, case_count=3, tolerance=1e-4, task="""
    The norm in the log is larger than that of one GPU, with the same seed and the same tokens, and the job learns more
    slowly. Repair the program: the model is clipped as one process would clip it, and every rank returns the norm of
    the whole model.
    """, hints="""
    Follow the square of one expert's norm through the two all-reduces. How often is it in the result? And how often is
    the square of a shared parameter's norm?

    The norm needs each gradient once. Every rank has the shared gradients, and they are the same; each rank has a
    different expert.

    One all-reduce is enough, if each gradient goes into it from one rank only.

    ```python
    squares = torch.nn.utils.get_total_norm(...).square()
    if dist.get_rank() == 0:
        squares += ...
    dist.all_reduce(squares)
    ```
    """, explanation="""
    `squares` was summed over the ranks, and so contained all experts on every rank. Then the total was summed once
    more, which is right for what only rank 0 had added. So the experts' squares counted once for each rank, and the
    gradients were clipped too much; more ranks clip more. FastMoE's users asked about
    these two sums, [issue 169](https://github.com/laekov/fastmoe/issues/169). The opposite is as common: experts that
    are averaged or left out, as in [DeepSpeed, issue 8475](https://github.com/deepspeedai/DeepSpeed/issues/8475).
    Comparing the norm with that of one process finds both.
    """)


@exercise
def step(
    shared: list[nn.Parameter],
    own: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    backward: Callable[[], None],
    max_norm: float,
) -> float:
    """Make a step, clipped by the gradient norm of the whole model. Return this norm on every rank.

    All ranks have the parameters `shared`, and `own` are those of this rank's expert. `backward()` fills `.grad` with
    the gradients of the mean of all ranks' losses. Those of `shared` are the same on every rank.
    """
    backward()
    squares = torch.nn.utils.get_total_norm([param.grad for param in own]).square()
    if dist.get_rank() == 0:
        squares += torch.nn.utils.get_total_norm([param.grad for param in shared]).square()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    torch.nn.utils.clip_grads_with_norm_([*shared, *own], max_norm, norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


OWN = "squares = torch.nn.utils.get_total_norm([param.grad for param in own]).square()\n"
SHARED = "squares += torch.nn.utils.get_total_norm([param.grad for param in shared]).square()\n"
ONCE = "if dist.get_rank() == 0:\n" + SHARED
ROOT = "dist.all_reduce(squares)\nnorm = squares.sqrt()\n"
CLIP = "torch.nn.utils.clip_grads_with_norm_([*shared, *own], max_norm, norm)\n"

exercise.start_edit({OWN: OWN + "dist.all_reduce(squares)\n"})

exercise.edit("experts-once-for-each-rank", {OWN: OWN + "dist.all_reduce(squares)\ndist.barrier()\n"}, """
    You sum the experts' squares over all ranks, and then sum the total once more. So the norm contains every expert
    once for each rank. Next: let every gradient go into one all-reduce, from one rank.
    """)

exercise.edit("shared-once-for-each-rank", {ONCE: SHARED}, """
    Every rank adds the shared gradients, and they are the same on all ranks. So the norm contains them once for each
    rank. Next: count them on one rank only.
    """)

exercise.edit("own-norm", {ONCE: SHARED, ROOT: "norm = squares.sqrt()\n"}, """
    Each rank clips by the norm of what it has. So each scales the shared gradients by a different factor, and the
    shared parameters are no longer the same. Next: sum the experts' squares over the ranks.
    """)

exercise.edit("experts-left-out", {OWN: "squares = torch.zeros(())\n"}, """
    Your norm contains the shared gradients only, so the model is clipped too little. Next: add the squares of every
    rank's expert.
    """)

exercise.edit("mean-of-norms", {ONCE: SHARED, ROOT: "norm = squares.sqrt()\ndist.all_reduce(norm)\n"
    "norm /= dist.get_world_size()\n"}, """
    All ranks agree on one norm now: the mean of theirs. The norm of the whole model is larger, because it contains
    every expert. Next: add up squares, and take the root at the end.
    """)

exercise.edit("divided-by-the-ranks", {OWN: OWN + "dist.all_reduce(squares)\n", ROOT: ROOT.replace(".sqrt", " / "
    "dist.get_world_size()).sqrt").replace("= squares", "= (squares")}, """
    You divide the whole sum by the number of ranks. Now the experts count once, and the shared gradients too little.
    Next: let each gradient go into the sum once.
    """)

exercise.edit("sum-of-norms", {OWN: OWN.replace(".square()", ""), "for param in shared]).square()":
    "for param in shared])", "squares.sqrt()": "squares"}, """
    You add up norms. The norms 3 and 4 make 5, not 7. Next: add up squares, then take the root.
    """)

exercise.edit("only-experts-clipped", {"[*shared, *own], max_norm": "own, max_norm"}, """
    The norm is right, but the shared gradients are not clipped. Next: scale all gradients by the same factor.
    """)

exercise.edit("decides-by-a-different-number", {CLIP:
    "if squares > max_norm:\n    for param in (*shared, *own):\n        param.grad *= max_norm / norm\n"}, """
    You return the right norm, but you do not clip wherever it is above the limit: a different number decides, such as
    the square of the norm or the norm of one part. Next: compare the norm that you return with `max_norm`.
    """)

exercise.edit("clips-to-twice-the-limit", {CLIP: CLIP.replace("max_norm, norm", "max_norm, norm / 2")}, """
    The norm that you return is right, but you clip by a smaller one. Next: scale by the norm that you return.
    """)


@exercise.variant
def by_hand(shared: Any, own: Any, optimizer: Any, backward: Any, max_norm: float) -> float:
    backward()
    mine = torch.stack([param.grad.norm() for param in own]).norm()
    norms = [torch.empty(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, mine)
    norm = torch.stack([*norms, *(param.grad.norm() for param in shared)]).norm()
    for param in (*shared, *own):
        param.grad *= (max_norm / norm).clamp(max=1.0)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


exercise.variant_edit("shared-after-the-sum", {ONCE: "", "norm = squares.sqrt()\n": SHARED + "norm = squares.sqrt()\n"})
