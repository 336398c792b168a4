"""A step of the optimizer on copies in fp32, of parameters that are in bf16."""

import random
from typing import Any

import torch
from torch import nn

from ...exercises import Case, Exercise, Solution, normal
from .data import OPTIMIZERS

STEPS = 3
LARGE = 4.0
"""Factor of the last gradients in one case. Then an update that is itself rounded to bf16 gives wrong parameters."""


def draw(rng: random.Random, number: int) -> Case:
    name, make_optimizer = OPTIMIZERS[number % 2]
    count, seed = 1 + number % 3, rng.getrandbits(32)
    large = number == 2  # with three parameters, of which at most two have no gradient in the last step
    numels = rng.sample(range(200, 300) if large else range(2, 7), count)
    silent = {(rng.randrange(STEPS), rng.randrange(count)) for _ in range(number and 2)}
    what = f"{STEPS} steps of {name} with {count} parameter{'s' * (count > 1)}"
    what += "".join(f", no gradient for parameter {n} in step {step + 1}" for step, n in sorted(silent))
    what += ", large gradients in the last step" * large
    scales = [1.0, 0.01, LARGE if large else 0.01]
    return Case(world_size=0, args=lambda rank: (numels, silent, make_optimizer, seed, scales), what=what)


def steps(
    solution: Solution,
    numels: list[int],
    silent: set[tuple[int, int]],
    make_optimizer: Any,
    seed: int,
    scales: list[float],
) -> dict[str, Any]:
    """Make steps, whose gradients have these scales: 0.01 is too small for bf16.

    The gradients of each parameter's first element are too small for fp16. Adam's step there is nearly as large.
    """
    masters = [nn.Parameter(3 + normal(numel, seed=seed + n)) for n, numel in enumerate(numels)]
    params = [nn.Parameter(master.detach().bfloat16()) for master in masters]
    views = [param.data for param in params]
    optimizer = make_optimizer(masters)
    for step in range(STEPS):
        for n, param in enumerate(params):
            grad = normal(param.numel(), seed=seed + 100 * step + n + 50, dtype=torch.bfloat16)
            grad *= scales[step]
            grad[0] *= 1e-8
            param.grad = None if (step, n) in silent else grad.to(param.dtype)
        solution(params, masters, optimizer)
    return {
        "parameters": [param.detach() for param in params],
        "masters": [master.detach() for master in masters],
        "gradients of the masters": [master.grad for master in masters],
        "the memory that the parameters had": views,
    }


exercise = Exercise("precision.master_step", title="A step with masters", draw=draw, trial=steps, inputs_matter=False,
    task="""
    `params` and their gradients are in bf16. `masters` are copies of `params` in fp32, in the same order, and
    `optimizer` updates the masters. Give each master the gradient of its parameter, in fp32. If the parameter has no
    gradient, its master gets None. Make a step, and copy each master into its parameter. Then remove the masters'
    gradients. You may keep or remove the gradients of `params`.""", hints="""
    Where did backward leave the gradients? Which tensors does `optimizer.step()` read and change?

    Gradients go from bf16 to fp32, from parameters to masters. Values go from fp32 to bf16, from masters to parameters.
    Nothing goes in the opposite direction.

    `param.grad.float()`, `optimizer.step()`, `param.data.copy_(master)`.

    ```python
    for param, master in zip(params, masters):
        master.grad = None if ... else ...
    optimizer.step()
    for param, master in zip(params, masters):
        ...  # copy the value, remove the gradient
    ```
    """, explanation="""
    bf16 has 8 significant bits. Between 2 and 4 its numbers are 1/64 apart, and an update below half of that is rounded
    away, however often it is repeated. In the master the updates add up, until their sum is large enough to change the
    parameter. `copy_` converts the values, and writes them into the parameter's own memory. The gradients in fp32 exist
    only during the step, and take 4 bytes for each parameter. A fused optimizer, or one that works bucket by bucket,
    avoids these 4 bytes.""")


@exercise
def master_step(
    params: list[nn.Parameter],
    masters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Update `params`, in bf16, through their `masters`: copies in fp32 that `optimizer` updates.

    Afterwards each parameter is its master, rounded, in the memory that it had before. The masters
    keep all their digits, and no gradient. A parameter without a gradient is not updated.
    """
    for param, master in zip(params, masters, strict=True):
        master.grad = None if param.grad is None else param.grad.float()
    optimizer.step()
    for param, master in zip(params, masters, strict=True):
        param.data.copy_(master)
        master.grad = None


WIDEN = "None if param.grad is None else param.grad.float()"
COPY = "param.data.copy_(master)"

exercise.edit("no-gradients", {f"for param, master in zip(params, masters, strict=True):\nmaster.grad = {WIDEN}\n": ""},
    """
    The masters do not change: `optimizer.step()` finds no gradient in them, or is not called. Backward stores gradients
    in the parameters. Next: before the step, set each `master.grad` to its parameter's gradient, in fp32.""")

exercise.edit("gradients-in-bf16", {".float()": ""}, """
    You give a master the gradient of its parameter as it is, in bf16. A master is in fp32, and torch accepts only a
    gradient of the same dtype. Next: convert it with `param.grad.float()`.""")

exercise.edit("through-fp16", {".float()": ".half().float()"}, """
    Your gradients pass through fp16, in which numbers below 3e-8 become 0. Bf16 goes down to about 1e-40.
    Next: convert them from bf16 to fp32 directly.""")

exercise.edit("never-copies-back", {f"{COPY}\n": ""}, """
    The masters are updated and the parameters are not. The model computes with the parameters.
    Next: after the step, copy each master into its parameter.""")

exercise.edit("adds-the-difference", {COPY: "param.data.add_((master.data - param.data.float()).bfloat16())"}, """
    You round the difference between the master and its parameter to bf16, and add it to the parameter. Adding rounds
    again, so after a large update some parameters are a neighbour of the rounded master.
    Next: write the master's value into the parameter, so that it is rounded once.""")

exercise.edit("masters-as-parameters", {COPY: "param.grad = None\nparam.data = master.data"}, """
    After your step the parameters are the masters themselves, in fp32. The model then computes in fp32, and saves no
    time and no memory. Next: copy the values into the parameter's own memory, which rounds them.""")

exercise.edit("other-memory", {COPY: "param.data = master.data.to(param.dtype)"}, """
    You give the parameters new memory in each step. A view of the old memory, such as a flat tensor that is gathered,
    keeps the old values. Next: write into the memory that the parameter has: `copy_`.""")

exercise.edit("masters-from-parameters", {"master.grad = None if": "master.data.copy_(param)\nmaster.grad = None if"},
    """
    You begin by copying the parameters into the masters. That discards the digits that bf16 cannot hold, and masters
    exist to keep these digits. Next: copy values in one direction only, from master to parameter.""")

exercise.edit("rounds-masters", {COPY: f"{COPY}\nmaster.data.copy_(param)"}, """
    You end by copying the rounded parameters into the masters. A small update is lost before the next step can add to
    it. Next: copy values in one direction only, from master to parameter.""")

exercise.edit("keeps-gradients", {f"{COPY}\nmaster.grad = None": COPY}, """
    The masters still have gradients at the end: 4 bytes for each parameter that nothing uses.
    Next: drop the masters' gradients after the step.""")

exercise.edit("zeros-for-none", {WIDEN: "torch.zeros_like(master) if param.grad is None else param.grad.float()"}, """
    You give a master zeros where its parameter has no gradient. An optimizer updates a tensor with a gradient of zeros:
    momentum moves it, and weight decay shrinks it.
    Next: set `master.grad` to None there. The optimizer then skips this master.""")


@exercise.variant
def with_zero_grad(params: list[nn.Parameter], masters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    for number, param in enumerate(params):
        if param.grad is not None:
            masters[number].grad = param.grad.to(torch.float32)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for number, param in enumerate(params):
            param[...] = masters[number].bfloat16()


exercise.variant_edit("the-optimizer-clears", {f"{COPY}\nmaster.grad = None": f"{COPY}\noptimizer.zero_grad()"})
