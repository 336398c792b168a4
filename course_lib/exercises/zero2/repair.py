"""A stage 2 of another make to be repaired: every parameter has an owner, which keeps its gradient and updates it."""

# mypy: disable-error-code="arg-type,assignment,misc,operator,union-attr"
# (a gradient may be None for all that mypy knows)

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...meter import mark
from ..checking.rules import lets_go
from ..data_parallel.data import ranks
from ..declare import Case, Exercise, Mistake, Solution
from . import stubs

Params = list[nn.Parameter]
Step = Callable[[], None]


def make_adam_step(params: list[nn.Parameter], owners: list[int], lr: float) -> Callable[[], None]:
    """Return a function that makes a step of Adam in ZeRO-2: `owners[number]` updates `params[number]`."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in enumerate(params) if owners[n] == rank}
    steps = 0

    def on_gradient(number: int, param: nn.Parameter) -> None:
        dist.all_reduce(param.grad)  # on every rank, for every parameter
        if owners[number] == rank:
            param.grad /= world_size
        else:
            param.grad = None

    for number, param in enumerate(params):
        param.register_post_accumulate_grad_hook(partial(on_gradient, number))

    @torch.no_grad()
    def step() -> None:
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


def averaged(param: nn.Parameter, owner: int) -> None:
    """Every rank takes part; the owner has the average, the others the sum."""
    dist.all_reduce(param.grad)
    if owner == dist.get_rank():
        param.grad /= dist.get_world_size()


def free_others(param: nn.Parameter, owner: int) -> None:
    if owner != dist.get_rank():
        param.grad = None


def reduce_all_and_free(param: nn.Parameter, owner: int) -> None:
    averaged(param, owner)
    free_others(param, owner)


def subtract(param: nn.Parameter, change: Tensor) -> None:
    param.data -= change


def build(
    params: Params,
    owners: list[int],
    lr: float,
    *,
    on_gradient: Callable[[nn.Parameter, int], None] = reduce_all_and_free,
    steps_in: Callable[[int, int], int] = lambda step, updated: step,
    update: Callable[[nn.Parameter, Tensor], None] = subtract,
    shards_moments: bool = True,
) -> Step:
    """A right program, but for the parts that are given.

    Args:
        on_gradient: called with a parameter and its owner when there is a gradient.
        steps_in: the step counter, of the number of the step and of the parameters that were updated so far in all.
        update: changes a parameter.
        shards_moments: whether a rank has the moments only of the parameters that it owns.
    """
    owned = [number for number, owner in enumerate(owners) if owner == dist.get_rank()]
    with_moments = owned if shards_moments else range(len(params))
    state = {number: [torch.zeros_like(params[number]), torch.zeros_like(params[number])] for number in with_moments}
    counts = {"steps": 0, "updated": 0}
    for param, owner in zip(params, owners, strict=True):
        param.register_post_accumulate_grad_hook(lambda param, owner=owner: on_gradient(param, owner))

    def step() -> None:
        counts["steps"] += 1
        for number in owned:
            counts["updated"] += 1
            mean, square = state[number]
            param, steps = params[number], steps_in(counts["steps"], counts["updated"])
            mean.lerp_(param.grad, 1 - 0.9)
            square.lerp_(param.grad**2, 1 - 0.999)
            update(param, lr * mean / (1 - 0.9**steps) / ((square / (1 - 0.999**steps)).sqrt() + 1e-8))
            param.grad = None
        for param, owner in zip(params, owners, strict=True):
            dist.broadcast(param.detach(), src=owner)

    return step


def with_parts(**parts: Any) -> Solution:
    """`build` with other parts."""
    return partial(build, **parts)


def only_owner_reduces(param: nn.Parameter, owner: int) -> None:
    if owner == dist.get_rank():
        averaged(param, owner)
    free_others(param, owner)


def reduce_to_myself(param: nn.Parameter, owner: int) -> None:
    dist.reduce(param.grad, dst=dist.get_rank())
    if owner == dist.get_rank():
        param.grad /= dist.get_world_size()
    free_others(param, owner)


def zero_all(param: nn.Parameter, owner: int) -> None:
    averaged(param, owner)
    param.grad.zero_()


def zero_the_others(param: nn.Parameter, owner: int) -> None:
    averaged(param, owner)
    if owner != dist.get_rank():
        param.grad.zero_()


def average_all(param: nn.Parameter, owner: int) -> None:
    dist.all_reduce(param.grad)
    param.grad /= dist.get_world_size()


def free_all(param: nn.Parameter, owner: int) -> None:
    dist.all_reduce(param.grad)
    param.grad = None


def sum_and_free(param: nn.Parameter, owner: int) -> None:
    dist.all_reduce(param.grad)
    free_others(param, owner)


def never(step: int, updated: int) -> int:
    """No step is ever counted."""
    return 0


def counts_in_a_local(params: Params, owners: list[int], lr: float) -> Step:
    steps = 0
    step = build(params, owners, lr)

    def counting() -> None:
        steps += 1  # noqa: F823, F841
        step()

    return counting


def subtract_with_grad(param: nn.Parameter, change: Tensor) -> None:
    param -= change


def make_a_new_tensor(param: nn.Parameter, change: Tensor) -> None:
    param = param - change


def reduce_to_owner(param: nn.Parameter, owner: int) -> None:
    param.grad /= dist.get_world_size()
    dist.reduce(param.grad, dst=owner)
    free_others(param, owner)


def with_torchs_adam(params: Params, owners: list[int], lr: float) -> Step:
    mine = [param for param, owner in zip(params, owners, strict=True) if owner == dist.get_rank()]
    optimizer = torch.optim.Adam(mine, lr=lr) if mine else None
    for param, owner in zip(params, owners, strict=True):
        param.register_post_accumulate_grad_hook(lambda param, owner=owner: reduce_all_and_free(param, owner))

    def step() -> None:
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        for param, owner in zip(params, owners, strict=True):
            dist.broadcast(param.data, src=owner)

    return step


def draw(rng: random.Random, number: int) -> Case:
    """Every rank owns something, and no two parameters have one size: so what meets by mistake does not match.

    The moments of the smallest take more bytes than two right solutions may differ by.
    """
    world_size, seed = (2, 3, 4)[number % 3], rng.getrandbits(32)
    count = rng.randint(max(3, world_size), 5)
    numels = rng.sample(range(12, 40), count)
    owners = [rank % world_size for rank in range(count)]
    rng.shuffle(owners)

    def args(rank: int) -> tuple[Params, list[int], list[list[Tensor]]]:
        shared = torch.Generator().manual_seed(seed)
        params = [nn.Parameter(torch.randn(numel, generator=shared)) for numel in numels]
        own = torch.Generator().manual_seed(seed + 1 + rank)
        return params, owners, [[torch.randn(numel, generator=own) for numel in numels] for _ in range(3)]

    return Case(world_size=world_size, args=args, about=f"{ranks(world_size)}, owners {owners}, 3 steps")


def three_steps(
    solution: Solution, params: Params, owners: list[int], factors_of_steps: list[list[Tensor]]
) -> list[dict[str, Any]]:
    """After each backward, the gradients; after each step, the parameters."""
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


AFTER = "after the last step"


REPAIR = Exercise(
    name="zero2.repair",
    title="Repair a stage 2",
    task="This program has four faults. Gradients are to be averaged during backward, and only the owner of a "
    "parameter keeps its gradient and its moments; it makes a step of Adam with them, and all ranks get the result. "
    "Numbers are to be those of `torch.optim.Adam` in one process with the mean of all ranks' gradients.",
    stub=stubs.make_adam_step,
    reference=make_adam_step,
    draw=draw,
    trial=three_steps,
    measured=True,
    inputs_matter=False,
    rules=[lets_go(AFTER)],
    case_count=3,
    variants={"with-reduce": with_parts(on_gradient=reduce_to_owner), "with-torchs-adam": with_torchs_adam},
    mistakes=[
        Mistake(
            id="only-owners-reduce",
            solution=with_parts(on_gradient=only_owner_reduces),
            told="The all-reduce is still called by the owner alone. Each rank owns another parameter, so the call of "
            "one owner meets the call of another, for another gradient, or nobody's.",
            action="Let every rank call it for every gradient. What they do with the result may differ.",
        ),
        Mistake(
            id="reduces-to-itself",
            solution=with_parts(on_gradient=reduce_to_myself),
            told="`dist.reduce` leaves the sum on one rank, and all have to name the same one. You name each rank "
            "itself.",
            action="Give the owner: `dst=owners[number]`.",
        ),
        Mistake(
            id="zeroes-all",
            solution=with_parts(on_gradient=zero_all),
            told="The hook still zeroes the gradient, on the owner, too: it makes its step with zeros. And zeros take "
            "as much memory as any numbers.",
            action="Let the owner keep its gradient, and the others set `param.grad = None`.",
        ),
        Mistake(
            id="zeroes-all-and-never-counts",
            solution=with_parts(on_gradient=zero_all, steps_in=never),
            told="The hook still zeroes the gradient, on the owner, too, and zeros take as much memory as any "
            "numbers. With 0 steps the bias correction then divides 0 by 0: NaN.",
            action="Let the owner keep its gradient, and the others set `param.grad = None`. Then see who counts the "
            "steps.",
        ),
        Mistake(
            id="zeroes-the-others",
            solution=with_parts(on_gradient=zero_the_others),
            told="The numbers are right. Who does not own a parameter sets its gradient to zero, and zeros take as "
            "much memory as any numbers.",
            action="Set `param.grad = None` there.",
        ),
        Mistake(
            id="keeps-the-others",
            solution=with_parts(on_gradient=averaged),
            told="The numbers are right, and every rank keeps all gradients, also of what others own: that is the "
            "memory of ZeRO-1. (And the next backward adds to them.)",
            action="Where another rank owns the parameter, set `param.grad = None`.",
        ),
        Mistake(
            id="zeroes-the-others-and-never-counts",
            solution=with_parts(on_gradient=zero_the_others, steps_in=never),
            told="Who does not own a parameter sets its gradient to zero, and zeros take as much memory as any "
            "numbers. And nobody counts the steps: with 0 of them the bias correction divides by 0, and the model is "
            "NaN.",
            action="Set `param.grad = None` where another rank owns the parameter. Then see who counts the steps.",
        ),
        Mistake(
            id="keeps-the-others-and-never-counts",
            solution=with_parts(on_gradient=averaged, steps_in=never),
            told="Every rank keeps all gradients, also of what others own: that is the memory of ZeRO-1. And nobody "
            "counts the steps: with 0 of them the bias correction divides by 0, and the model is NaN.",
            action="Set `param.grad = None` where another rank owns the parameter. Then see who counts the steps.",
        ),
        Mistake(
            id="keeps-all-moments",
            solution=with_parts(shards_moments=False),
            told="The numbers are right, but every rank has Adam's moments of all parameters. ZeRO shards them before "
            "anything else: a rank needs the moments only of the parameters that it updates.",
            action="Make the moments only where `owners[number] == rank`.",
        ),
        Mistake(
            id="averages-and-keeps-all",
            solution=with_parts(on_gradient=average_all),
            told="Every rank has all averaged gradients, and keeps them: that is data parallel. (And the next "
            "backward adds to what nobody has freed.)",
            action="Where another rank owns the parameter, set `param.grad = None`.",
        ),
        Mistake(
            id="frees-all",
            solution=with_parts(on_gradient=free_all),
            told="The owner, too, lets go of its gradient, and has none in its step.",
            action="Let go of it only where another rank owns the parameter.",
        ),
        Mistake(
            id="sum-for-mean",
            solution=with_parts(on_gradient=sum_and_free),
            told="The owner has the sum over ranks. One process with the whole batch would have the mean.",
            action="Divide by the world size on the owner.",
        ),
        Mistake(
            id="never-counts",
            solution=with_parts(steps_in=never),
            told="Nobody counts the steps. With `steps` 0 the bias correction divides by 1 - 0.9**0, which is 0, and "
            "the model is NaN after the first step, without an error.",
            action="Count one more at the beginning of each step.",
        ),
        Mistake(
            id="counts-to-one",
            solution=with_parts(steps_in=lambda step, updated: 1),
            told="Every step is the first for the bias correction: the counter begins anew each time.",
            action="Keep the counter outside of `step`, and count it up with `nonlocal steps`.",
        ),
        Mistake(
            id="counts-from-zero",
            solution=with_parts(steps_in=lambda step, updated: step + 1),
            told="The counter is one ahead: the first step has to be number 1.",
            action="Start from 0, and count up at the beginning of the step.",
        ),
        Mistake(
            id="counts-parameters",
            solution=with_parts(steps_in=lambda step, updated: updated),
            told="The counter goes up with each parameter. It counts steps.",
            action="Count once in each step, before the loop.",
        ),
        Mistake(
            id="counts-in-a-local",
            solution=counts_in_a_local,
            told="`steps += 1` in a function makes `steps` a variable of that function, which has no value yet.",
            action="Say that it is the outer one: `nonlocal steps`.",
        ),
        Mistake(
            id="in-place-with-grad",
            solution=with_parts(update=subtract_with_grad),
            told="Autograd watches the update. It refuses to change a parameter in place, since it could not "
            "differentiate through that.",
            action="Update under `torch.no_grad()`.",
        ),
        Mistake(
            id="makes-a-new-tensor",
            solution=with_parts(update=make_a_new_tensor),
            told="`param = param - ...` makes a new tensor and calls it `param`; the model has the old one, unchanged.",
            action="Change it in place, with `-=`, under `torch.no_grad()`.",
        ),
    ],
    hints=[
        "Play one rank, and then another. For each gradient: which calls does each of the two make? What is in "
        "`param.grad` when the hook has ended, on the owner and elsewhere?",
        "A collective needs everyone, whoever wants its result. Memory is freed when nobody refers to it, not when "
        "it is zero. Adam's bias correction needs the number of the step, from 1 on. And autograd must not watch an "
        "update.",
        "Gradients: `dist.all_reduce` outside the `if`, `param.grad = None` in its `else`. Steps: `nonlocal`. Update: "
        "`torch.no_grad()`.",
        "```python\ndef on_gradient(number, param):\n    dist.all_reduce(param.grad)\n    if owners[number] == rank:\n"
        "        ...\n    else:\n        ...\n\n@torch.no_grad()\ndef step():\n    nonlocal ...\n    ...\n```",
    ],
    explanation="Each fault is of a kind that returns. *Collectives under a condition* meet the wrong partner, or "
    "none. *Zeroed is not freed*: a tensor of zeros is as large as any other, and here it was the gradient that the "
    "owner needs. *State that is never written*: with step 0, Adam divides by 1 − 0.9⁰ = 0, and the first step fills "
    "the model with NaN without a word. *Updates that autograd sees*: a leaf that requires a gradient refuses in-place "
    "changes, and `param = param - ...` makes a new tensor that nobody looks at. Right as it is now, the program still "
    "sends more than it has to: an all-reduce brings everyone the sum that one rank needs, twice the bytes of "
    "`dist.reduce`. And one parameter at a time makes many small messages: hence buckets.",
)
