"""Repair: a stage 2 in which every parameter has an owner, which keeps its gradient and updates it."""

# (annotations of inner functions are code, which the learner's cell would evaluate)

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...exercises import Case, Exercise, Solution, lets_go
from ...meter import mark

AFTER = "after the last step"


def draw(rng: random.Random, number: int) -> Case:
    """Draw parameters of different sizes, so that no two match by mistake. Every rank owns at least one.

    The moments of the smallest take more bytes than two right solutions may differ by.
    """
    world_size, seed = (2, 3, 4)[number % 3], rng.getrandbits(32)
    count = rng.randint(max(3, world_size), 5)
    numels = rng.sample(range(12, 40), count)
    owners = [rank % world_size for rank in range(count)]
    rng.shuffle(owners)

    def args(rank: int) -> tuple[list[nn.Parameter], list[int], list[list[Tensor]]]:
        shared = torch.Generator().manual_seed(seed)
        params = [nn.Parameter(torch.randn(numel, generator=shared)) for numel in numels]
        own = torch.Generator().manual_seed(seed + 1 + rank)
        return params, owners, [[torch.randn(numel, generator=own) for numel in numels] for _ in range(3)]

    return Case(world_size=world_size, args=args, what=f"owners {owners}, 3 steps")


def three_steps(
    solution: Solution, params: list[nn.Parameter], owners: list[int], factors_of_steps: list[list[Tensor]]
) -> list[dict[str, Any]]:
    """Return the gradients after each backward, and the parameters after each step."""
    step = solution(params, owners, 0.1)
    seen = []
    for factors in factors_of_steps:
        loss = torch.zeros(())
        for param, factor in zip(params, factors, strict=True):  # so backward comes to the last parameter first
            loss = loss + (param * factor).square().sum()
        loss.backward()
        gradients = [None if param.grad is None else param.grad.clone() for param in params]
        step()
        seen.append({"gradients": gradients, "parameters": [param.detach().clone() for param in params]})
    mark(AFTER)
    return seen


exercise = Exercise("zero2.repair", title="Repair a stage 2", draw=draw, trial=three_steps, measured=True,
    inputs_matter=False, rules=[lets_go(AFTER)], case_count=3, task="""
    This program has four faults. It should average the gradients during backward. Only the owner of a parameter keeps
    its gradient and its moments. The owner makes a step of Adam with them, and all ranks get the result. The numbers
    are those of `torch.optim.Adam` in one process that uses the mean of all ranks' gradients.""", hints="""
    Follow one rank, and then a second rank. For each gradient: which calls does each of the two ranks make?

    Every rank has to call a collective, even a rank that does not need the result. Memory is freed when nothing refers
    to it, not when it is zero. Adam's bias correction needs the number of the step, starting at 1. And autograd must
    not record an update.

    Gradients: `dist.all_reduce` outside the `if`, `param.grad = None` in its `else`. Steps: `nonlocal`. Update:
    `torch.no_grad()`.

    ```python
    def on_gradient(number, param):
        dist.all_reduce(param.grad)
        if owners[number] == rank:
            ...
        else:
            ...

    @torch.no_grad()
    def step():
        nonlocal ...
        ...
    ```
    """, explanation="""
    You will meet each of these faults again. *Collectives under a condition* meet the wrong partner, or none. *Zeroed
    is not freed*: a tensor of zeros takes as much memory as any other, and here the program zeroed the gradient that
    the owner needs. *State that is never updated*: with step 0, Adam divides by 1 − 0.9⁰ = 0, and the first step fills
    the model with NaN without an error. *Updates that autograd records*: torch refuses to change a leaf that requires a
    gradient in place, and `param = param - ...` makes a new tensor that nothing uses. The repaired program still sends
    more than it has to. An all-reduce gives every rank the sum that only one rank needs, for twice the bytes of
    `dist.reduce`. And one parameter at a time makes many small messages; buckets avoid that.""")


@exercise
def make_adam_step(params: list[nn.Parameter], owners: list[int], lr: float) -> Callable[[], None]:
    """Return a function that makes a step of Adam in ZeRO-2: `owners[number]` updates `params[number]`.

    After backward, a rank has the averaged gradients of the parameters that it owns, and no other.
    After the step, all ranks have all parameters and no gradient. Each step follows one backward.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in enumerate(params) if owners[n] == rank}
    steps = 0

    def on_gradient(number, param):
        dist.all_reduce(param.grad)  # on every rank, for every parameter
        if owners[number] == rank:
            param.grad /= world_size
        else:
            param.grad = None

    for number, param in enumerate(params):
        param.register_post_accumulate_grad_hook(partial(on_gradient, number))

    @torch.no_grad()
    def step():
        nonlocal steps
        steps += 1
        for number, (mean, square) in moments.items():
            param = params[number]
            mean.lerp_(param.grad, 1 - 0.9)
            square.lerp_(param.grad**2, 1 - 0.999)
            param -= lr * mean / (1 - 0.9**steps) / ((square / (1 - 0.999**steps)).sqrt() + 1e-8)
            param.grad = None
        for param, owner in zip(params, owners, strict=True):
            dist.broadcast(param.detach(), src=owner)

    return step


ALL_REDUCE = "dist.all_reduce(param.grad)  # on every rank, for every parameter\n"
FREE = "else:\nparam.grad = None"

exercise.start_edit({
    f"{ALL_REDUCE}if owners[number] == rank:": "if owners[number] == rank:\n    dist.all_reduce(param.grad)",
    FREE: "param.grad.zero_()  # free it",
    "@torch.no_grad()\n": "",
    "nonlocal steps\nsteps += 1\n": ""})

exercise.edit("only-owners-reduce", {f"{ALL_REDUCE}if owners[number] == rank:":
    "if owners[number] == rank:\n    dist.all_reduce(param.grad)"}, """
    Only the owner of a parameter calls the all-reduce. The other ranks own different parameters, so the call of one
    owner meets another owner's call for a different gradient, or no call.
    Next: let every rank call the all-reduce for every gradient; only the owner keeps the result.""")

exercise.edit("zeroes-all", {FREE: "param.grad.zero_()"}, """
    The hook still sets the gradient to zero on every rank, so the owner makes its step with zeros. And zeros take as
    much memory as any numbers.
    Next: let the owner keep its gradient, and let the other ranks drop theirs.""")

exercise.edit("zeroes-all-and-never-counts", {FREE: "param.grad.zero_()", "steps += 1\n": ""}, """
    The hook still sets the gradient to zero on every rank, even on the owner. And the program never counts the steps:
    with 0 steps the bias correction divides 0 by 0, which is NaN.
    Next: let the owner keep its gradient, and let the other ranks drop theirs; then count the steps.""")

exercise.edit("zeroes-the-others", {FREE: "else:\n    param.grad.zero_()"}, """
    The numbers are right. A rank that does not own a parameter sets its gradient to zero, and zeros take as much memory
    as any numbers. Next: let these ranks drop the gradient.""")

exercise.edit("keeps-the-others", {f"\n{FREE}": ""}, """
    Every rank keeps all gradients, even those of parameters that it does not own. This takes the memory of ZeRO-1, and
    the next backward adds to the gradients. Next: let a rank drop the gradient where a different rank owns the
    parameter.""")

exercise.edit("reduces-in-the-step", {"for number, param in enumerate(params):\n"
    "param.register_post_accumulate_grad_hook(partial(on_gradient, number))\n": "", "steps += 1\n":
    "steps += 1\nfor number, param in enumerate(params):\n    on_gradient(number, param)\n"}, """
    After backward, every rank still has its own gradients of all parameters: you reduce them only in the step.
    Next: reduce each gradient during backward, as soon as it is there, and drop it where a different rank owns it.""")

exercise.edit("never-counts", {"steps += 1\n": ""}, """
    The program never counts the steps. With `steps` 0 the bias correction divides by 1 - 0.9**0, which is 0, and the
    model is NaN after the first step, without an error. Next: add 1 to `steps` at the beginning of each step.""")

exercise.edit("in-place-with-grad", {"@torch.no_grad()\n": ""}, """
    Autograd records your update. torch refuses to change a parameter in place, because autograd could not compute
    gradients through the change. Next: make the update without recording it for autograd.""")

exercise.edit("makes-a-new-tensor", {"@torch.no_grad()\n": "", "param -=": "param = param -"}, """
    `param = param - ...` makes a new tensor and calls it `param`; the model still has the old one, unchanged.
    Next: change it in place, without recording it for autograd.""")

exercise.variant_edit("with-reduce", {"dist.all_reduce(param.grad)": "dist.reduce(param.grad, dst=owners[number])"})


@exercise.variant
def with_torchs_adam(params: list[nn.Parameter], owners: list[int], lr: float) -> Callable[[], None]:
    mine = [param for param, owner in zip(params, owners, strict=True) if owner == dist.get_rank()]
    optimizer = torch.optim.Adam(mine, lr=lr) if mine else None

    def average(param, owner):
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
        if owner != dist.get_rank():
            param.grad = None

    for param, owner in zip(params, owners, strict=True):
        param.register_post_accumulate_grad_hook(lambda param, owner=owner: average(param, owner))

    def step() -> None:
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        for param, owner in zip(params, owners, strict=True):
            dist.broadcast(param.data, src=owner)

    return step
