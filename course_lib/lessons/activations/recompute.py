"""Checkpointing: a block runs a second time in backward, and forward does not have to keep its activations."""

import random
from typing import Any

import torch
from torch import nn

from ...exercises import Case, Exercise, Solution, normal


def draw(rng: random.Random, number: int) -> Case:
    count, width, seed = 1 + number % 3, rng.randint(3, 6), rng.getrandbits(32)
    p, asks = (0.0, 0.5)[number % 2], number % 3 != 2
    what = f"{count} block{'s' * (count > 1)} of width {width}, {'dropout' if p else 'no dropout'}"
    what += "" if asks else ", inputs that require no gradient"
    return Case(world_size=0, args=lambda rank: (count, width, p, asks, seed), what=what)


def make_block(width: int, p: float) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(p), nn.Linear(2 * width, width))


def gradients(solution: Solution, count: int, width: int, p: float, asks: bool, seed: int) -> dict[str, Any]:
    """Go back twice through blocks, one after the other; return the gradients, and the next random numbers."""
    torch.manual_seed(seed)
    blocks = [make_block(width, p) for _ in range(count)]
    x = normal(4, width, seed=seed).requires_grad_(asks)
    for micro_batch in (1, 2):
        y, kept = x * micro_batch, []
        with torch.no_grad():
            for block in blocks:
                kept.append((block, y, torch.get_rng_state()))
                y = block(y).requires_grad_(asks)  # as the output of an autograd function
            grad = normal(4, width, seed=seed + micro_batch)
            for block, of_block, state in reversed(kept):
                grad = solution(block, of_block, state, grad)
    return {
        "gradient of x": grad,
        "gradients of the parameters": [param.grad for block in blocks for param in block.parameters()],
        "random numbers that are drawn later": torch.rand(2),
    }


exercise = Exercise("activations.recompute", title="Run it again", draw=draw, trial=gradients, inputs_matter=False,
    task="""
    In forward, the block ran without autograd. Two things were kept: its input `x`, and the state of the random numbers
    before it ran. Now backward has reached the block's output, with the gradient `grad_output`, and autograd is off.
    Run the block again, with autograd and with the same random numbers, and go back through it. Return the gradient
    of `x`, even if `x` needs no gradient. Add the parameters' gradients to their `.grad`, as backward does. Leave
    the state of the random numbers as you found it.""", hints="""
    `grad_output` is the gradient of one particular output. What has to be the same for the second run to compute this
    output again?

    A graph needs autograd, and an input that requires a gradient. Dropout drops the same elements if the random numbers
    start from the same state. Afterwards, the rest of the program needs the state that it left.

    `x.detach().requires_grad_()`, `torch.enable_grad()`, `torch.random.fork_rng(devices=[])`,
    `torch.set_rng_state(random_state)`, `output.backward(grad_output)`.

    ```python
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), ...:
        torch.set_rng_state(...)
        output = ...
    output.backward(...)
    return ...
    ```
    """, explanation="""
    The second run builds the graph that the first run did not build, and backward uses it up at once. So the
    activations of only one block are in memory at a time. `detach` cuts the graph at the block's input, and you return
    the gradient that arrives there. You have to make the second run equal the first: dropout has to drop the same
    elements, and nothing that the block reads may have changed. `torch.utils.checkpoint` does the same, also for GPUs
    and autocast.""")


@exercise
def recompute(
    block: nn.Module,
    x: torch.Tensor,
    random_state: torch.Tensor,
    grad_output: torch.Tensor,
) -> torch.Tensor | None:
    """Run `block(x)` again as it ran before, and go back through it from `grad_output`.

    Return the gradient of `x`, and add those of the block's parameters to their `.grad`. Before the
    first run, `torch.get_rng_state()` returned `random_state`. Afterwards the state of the random
    numbers is as it was before this call. Autograd is off when this is called.
    """
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        output = block(x)
    output.backward(grad_output)
    return x.grad


FORK = "torch.random.fork_rng(devices=[]), "
RESTORE = "torch.set_rng_state(random_state)\n"
DETACHED = "x.detach().requires_grad_()"

exercise.edit("without-grad", {", torch.enable_grad()": ""}, """
    Autograd is off during backward. What you compute outside `torch.enable_grad()` has no graph to go back through.
    Next: turn autograd on for the second run.""")

exercise.edit("other-random-numbers", {RESTORE: ""}, """
    In the second run, dropout drops different elements than in the first. So your gradient belongs to a different
    output. Next: before the block runs, set the state of the random numbers that it had in forward.""")

exercise.edit("goes-on-drawing", {FORK: "", RESTORE: ""}, """
    The block draws new random numbers. Dropout drops different elements than the first time, and everything that is
    drawn later changes too.
    Next: set `random_state` where the state is restored afterwards: `torch.random` has a context manager for it.""")

exercise.edit("turns-back-the-clock", {FORK: ""}, """
    You set the state of the random numbers and leave it so. The numbers that are drawn next repeat earlier ones: the
    next dropout, for example, drops the same elements again.
    Next: restore the state that you found: `torch.random` has a context manager for it.""")

exercise.edit("from-ones", {"(grad_output)": "(torch.ones_like(grad_output))"}, """
    You go back from ones, as if the loss were the sum of the output. `grad_output` is the gradient that the later
    layers computed. Next: go back from the gradient that you were given.""")

exercise.edit("only-of-x", {"output.backward(grad_output)\nreturn x.grad":
    "return torch.autograd.grad(output, x, grad_output)[0]"}, """
    The parameters have no gradient at the end. `torch.autograd.grad` adds nothing to any `.grad`, and a backward with
    `inputs` adds only to theirs. Next: use a backward that adds to the `.grad` of every parameter, and goes back from
    the gradient that you were given.""")

exercise.edit("nothing-of-x", {DETACHED: "x.detach()"}, """
    You return None, so the layers before this block get no gradient. A tensor gets a `.grad` only if it is the start
    of the graph and requires a gradient.
    Next: let a leaf that requires a gradient stand for `x` in the second run, and return its `.grad`.""")

exercise.edit("not-detached", {DETACHED: "x.requires_grad_()"}, """
    `x` gets no `.grad`, because it is a result of the layers before: your backward goes on into them.
    Next: cut the graph at the block's input: run the block on a leaf with the values of `x`.""")

exercise.edit("only-detached-where-asked", {DETACHED: "x.detach().requires_grad_(x.requires_grad)"}, """
    You do not return the gradient of `x` if `x` requires none. The task asks for it in this case too.
    Next: let the block's input require a gradient in every case.""")

exercise.edit("overwrites-gradients", {"x = x.detach": "block.zero_grad()\nx = x.detach"}, """
    The parameters' gradients of earlier micro-batches are lost: you clear them, or overwrite them.
    Next: leave them, so that the gradients add up.""")


@exercise.variant
def with_autograd_grad(block: nn.Module, x: torch.Tensor, random_state: torch.Tensor, grad_output: torch.Tensor) -> Any:
    params = [param for param in block.parameters() if param.requires_grad]
    with torch.enable_grad(), torch.random.fork_rng():
        torch.random.set_rng_state(random_state)
        y = x.detach().requires_grad_()
        mine, *theirs = torch.autograd.grad(block(y), [y, *params], grad_output)
    for param, grad in zip(params, theirs, strict=True):
        param.grad = grad if param.grad is None else param.grad + grad
    return mine


exercise.variant_edit("puts-the-state-back", {FORK: "", RESTORE: f"now = torch.get_rng_state()\n{RESTORE}",
    "output.backward": "torch.set_rng_state(now)\noutput.backward"})
