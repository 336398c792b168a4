"""A step of the optimizer on copies in fp32, of parameters that are in bf16."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import OPTIMIZERS, normal

Params = list[nn.Parameter]


def master_step(params: list[nn.Parameter], masters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Update `params`, in bf16, through their `masters`: copies in fp32 that `optimizer` updates."""
    for param, master in zip(params, masters, strict=True):
        master.grad = None if param.grad is None else param.grad.float()
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(master)
        master.grad = None


def widen(params: Params, masters: Params) -> None:
    """Let each master have its parameter's gradient, in fp32."""
    for param, master in zip(params, masters, strict=True):
        master.grad = None if param.grad is None else param.grad.float()


def narrow(params: Params, masters: Params) -> None:
    """Round each master to its parameter, and let go of the master's gradient."""
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(master)
        master.grad = None


def no_gradients(params: Params, masters: Params, optimizer: Optimizer) -> None:
    optimizer.step()
    narrow(params, masters)


def gradients_of_16_bits(params: Params, masters: Params, optimizer: Optimizer) -> None:
    for param, master in zip(params, masters, strict=True):
        master.grad = param.grad
    optimizer.step()
    narrow(params, masters)


def never_copies_back(params: Params, masters: Params, optimizer: Optimizer) -> None:
    widen(params, masters)
    optimizer.step()
    for master in masters:
        master.grad = None


def masters_as_parameters(params: Params, masters: Params, optimizer: Optimizer) -> None:
    widen(params, masters)
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.grad = master.grad = None
        param.data = master.data


def other_memory(params: Params, masters: Params, optimizer: Optimizer) -> None:
    widen(params, masters)
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.data = master.data.to(param.dtype)
        master.grad = None


def masters_from_parameters(params: Params, masters: Params, optimizer: Optimizer) -> None:
    for param, master in zip(params, masters, strict=True):
        master.data.copy_(param)
    master_step(params, masters, optimizer)


def rounds_masters(params: Params, masters: Params, optimizer: Optimizer) -> None:
    master_step(params, masters, optimizer)
    for param, master in zip(params, masters, strict=True):
        master.data.copy_(param)


def keeps_gradients(params: Params, masters: Params, optimizer: Optimizer) -> None:
    widen(params, masters)
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(master)


def zeroes_gradients(params: Params, masters: Params, optimizer: Optimizer) -> None:
    widen(params, masters)
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(master)
        if master.grad is not None:
            master.grad.zero_()


def stumbles_over_none(params: Params, masters: Params, optimizer: Optimizer) -> None:
    for param, master in zip(params, masters, strict=True):
        grad: Any = param.grad
        master.grad = grad.float()
    optimizer.step()
    narrow(params, masters)


def zeros_for_none(params: Params, masters: Params, optimizer: Optimizer) -> None:
    for param, master in zip(params, masters, strict=True):
        master.grad = torch.zeros_like(master) if param.grad is None else param.grad.float()
    optimizer.step()
    narrow(params, masters)


def adds_the_difference(params: Params, masters: Params, optimizer: Optimizer) -> None:
    before = [master.detach().clone() for master in masters]
    widen(params, masters)
    optimizer.step()
    for param, master, old in zip(params, masters, before, strict=True):
        param.data += (master.detach() - old).to(param.dtype)
        master.grad = None


def copies_before_the_step(params: Params, masters: Params, optimizer: Optimizer) -> None:
    widen(params, masters)
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(master)
    optimizer.step()
    for master in masters:
        master.grad = None


def with_zero_grad(params: Params, masters: Params, optimizer: Optimizer) -> None:
    for number, param in enumerate(params):
        if param.grad is not None:
            masters[number].grad = param.grad.to(torch.float32)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for number, param in enumerate(params):
            param[...] = masters[number].bfloat16()


def with_foreach(params: Params, masters: Params, optimizer: Optimizer) -> None:
    for param, master in zip(params, masters, strict=True):
        if param.grad is not None:
            master.grad = torch.empty_like(master).copy_(param.grad)
            param.grad = None
    optimizer.step()
    with torch.no_grad():
        torch._foreach_copy_(list[Tensor](params), list[Tensor](masters))
    for master in masters:
        master.grad = None


STEPS = 3


def draw(rng: random.Random, number: int) -> Case:
    name, make_optimizer = OPTIMIZERS[number % 2]
    count, seed = 1 + number % 3, rng.getrandbits(32)
    numels = rng.sample(range(2, 7), count)
    silent = {(rng.randrange(STEPS), rng.randrange(count)) for _ in range(number and 2)}
    about = f"{STEPS} steps of {name} with {count} parameter{'s' * (count > 1)}"
    about += "".join(f", no gradient for parameter {n} in step {step + 1}" for step, n in sorted(silent))
    return Case(world_size=0, args=lambda rank: (numels, silent, make_optimizer, seed), about=about)


def steps(
    solution: Solution, numels: list[int], silent: set[tuple[int, int]], make_optimizer: Any, seed: int
) -> dict[str, Any]:
    """Steps with gradients that are far too small for bf16: all but the first of them."""
    masters = [nn.Parameter(3 + normal(numel, seed=seed + n)) for n, numel in enumerate(numels)]
    params = [nn.Parameter(master.detach().bfloat16()) for master in masters]
    views = [param.data for param in params]
    optimizer = make_optimizer(masters)
    for step in range(STEPS):
        for n, param in enumerate(params):
            grad = normal(param.numel(), seed=seed + 100 * step + n + 50, dtype=torch.bfloat16)
            grad *= 1 if step == 0 else 0.01
            param.grad = None if (step, n) in silent else grad.to(param.dtype)
        solution(params, masters, optimizer)
    return {
        "parameters": [param.detach() for param in params],
        "masters": [master.detach() for master in masters],
        "gradients of the masters": [master.grad for master in masters],
        "the memory that the parameters had": views,
    }


MASTER_STEP = Exercise(
    name="precision.master_step",
    title="A step with masters",
    task="`params` are in bf16, and have gradients in bf16. `masters` are their copies in fp32, in the same order, and "
    "`optimizer` was made for the masters. Give each master its parameter's gradient in fp32 (None where there is "
    "none), make a step, and copy each master into its parameter. Let go of the masters' gradients; what becomes of "
    "those of `params` is up to you.",
    stub=stubs.master_step,
    reference=master_step,
    draw=draw,
    trial=steps,
    inputs_matter=False,
    variants={"with-zero-grad": with_zero_grad, "with-foreach": with_foreach},
    mistakes=[
        Mistake(
            id="no-gradients",
            solution=no_gradients,
            told="The masters never get a gradient: backward leaves it with the parameters. So the optimizer has "
            "nothing to do.",
            action="Before the step, let each `master.grad` be its parameter's gradient, in fp32.",
        ),
        Mistake(
            id="gradients-of-16-bits",
            solution=gradients_of_16_bits,
            told="You give the masters gradients of 16 bits. A gradient has the dtype of its tensor, and torch refuses "
            "any other.",
            action="Make it fp32 on the way: `.float()`.",
        ),
        Mistake(
            id="never-copies-back",
            solution=never_copies_back,
            told="The masters are updated, and the parameters, with which the model computes, stay what they were.",
            action="After the step, copy each master into its parameter.",
        ),
        Mistake(
            id="masters-as-parameters",
            solution=masters_as_parameters,
            told="After your step the parameters are the masters themselves, in fp32. Then nothing is in 16 bits any "
            "more: neither the memory nor the computing.",
            action="Copy values: `param.data.copy_(master)` rounds them to the parameter's dtype.",
        ),
        Mistake(
            id="other-memory",
            solution=other_memory,
            told="The parameters get other memory in each step. Whoever had a view of the old one, such as a flat "
            "tensor that is gathered, has the old values for ever.",
            action="Write into the memory that is there: `copy_`.",
        ),
        Mistake(
            id="masters-from-parameters",
            solution=masters_from_parameters,
            told="You begin by making the masters anew from the parameters. With that you throw away what the masters "
            "are there for: the digits that bf16 cannot hold.",
            action="Copy in one direction alone: from master to parameter.",
        ),
        Mistake(
            id="rounds-masters",
            solution=rounds_masters,
            told="At the end you copy the rounded parameters into the masters. So a small update is lost again before "
            "the next step can add to it.",
            action="Copy in one direction alone: from master to parameter.",
        ),
        Mistake(
            id="keeps-gradients",
            solution=keeps_gradients,
            told="The masters still have their gradients when you are done: 4 bytes for each parameter, for nothing.",
            action="Set `master.grad = None` in the end.",
        ),
        Mistake(
            id="zeroes-gradients",
            solution=zeroes_gradients,
            told="You set the masters' gradients to zero, and zeros take as much memory as any numbers.",
            action="Set `master.grad = None`.",
        ),
        Mistake(
            id="stumbles-over-none",
            solution=stumbles_over_none,
            told="A parameter may have no gradient: then its `grad` is None, which has no `float()`.",
            action="Let the master's gradient be None there, too.",
        ),
        Mistake(
            id="zeros-for-none",
            solution=zeros_for_none,
            told="Where there is no gradient you give the master zeros. For the optimizer that is a gradient: it goes "
            "on with its momentum, or decays the weight.",
            action="Leave `master.grad` None there, and the optimizer leaves the master alone.",
        ),
        Mistake(
            id="adds-the-difference",
            solution=adds_the_difference,
            told="You add the change of the master to the parameter, in bf16. Small changes are lost there one by one, "
            "as they would be without any masters.",
            action="Copy the whole master, not its change.",
        ),
        Mistake(
            id="copies-before-the-step",
            solution=copies_before_the_step,
            told="You copy the masters before the step that changes them, so the parameters are a step behind.",
            action="Call `optimizer.step()` first.",
        ),
    ],
    hints=[
        "Which tensors does `optimizer.step()` look at, and which does it change? Where has backward left the "
        "gradients?",
        "Gradients go up: from bf16 to fp32, from parameters to masters. Values come down: from masters to parameters. "
        "Nothing goes the other way.",
        "`param.grad.float()`, `optimizer.step()`, `param.data.copy_(master)`.",
        "```python\nfor param, master in zip(params, masters):\n    master.grad = None if ... else ...\n"
        "optimizer.step()\nfor param, master in zip(params, masters):\n    ...  # copy, and let go\n```",
    ],
    explanation="bf16 has 8 significant bits: between 2 and 4 its numbers are 1/64 apart, and an update below half of "
    "that is rounded away, however often it comes. In the master it adds up, until one day it is large enough to show "
    "in the parameter. `copy_` converts on the way, into the memory that is there. The gradients in fp32 exist for the "
    "time of the step alone; they are 4 bytes for each parameter nevertheless, which a fused optimizer, or one that "
    "goes bucket by bucket, does not need.",
)
