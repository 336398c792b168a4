"""Checkpointing: a block is run again in backward, in place of what forward would have kept."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import normal


def recompute(
    block: nn.Module, x: torch.Tensor, random_state: torch.Tensor, grad_output: torch.Tensor
) -> torch.Tensor | None:
    """Run `block(x)` again as it ran before, and go back through it from `grad_output`."""
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        output = block(x)
    output.backward(grad_output)
    return x.grad


def without_grad(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(random_state)
        output = block(x)
    output.backward(grad_output)
    return x.grad


def other_random_numbers(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        output = block(x)
    output.backward(grad_output)
    return x.grad


def goes_on_drawing(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        output = block(x)
    output.backward(grad_output)
    return x.grad


def turns_back_the_clock(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    torch.set_rng_state(random_state)
    return goes_on_drawing(block, x, random_state, grad_output)


def back_to_the_beginning(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    grad = turns_back_the_clock(block, x, random_state, grad_output)
    torch.set_rng_state(random_state)
    return grad


def from_ones(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    return recompute(block, x, random_state, torch.ones_like(grad_output))


def only_of_x(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        return torch.autograd.grad(block(x), x, grad_output)[0]


def nothing_of_x(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        output = block(x.detach())
    output.backward(grad_output)
    return x.grad


def returns_the_output(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        output = block(x)
    output.backward(grad_output)
    return output.detach()


def passes_through(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    recompute(block, x, random_state, grad_output)
    return grad_output


def overwrites_gradients(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    block.zero_grad()
    return recompute(block, x, random_state, grad_output)


def back_twice(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        output = block(x)
    output.backward(grad_output, retain_graph=True)
    output.backward(grad_output)
    return x.grad


def without_dropout(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    block.eval()
    grad = recompute(block, x, random_state, grad_output)
    block.train()
    return grad


def never_back(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Any:
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(random_state)
        block(x)
    return grad_output


def by_hand(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Tensor:
    now = torch.get_rng_state()
    torch.set_rng_state(random_state)
    leaf = x.clone().requires_grad_(True)
    torch.set_grad_enabled(True)
    output = block(leaf)
    torch.set_grad_enabled(False)
    torch.autograd.backward(output, grad_output)
    torch.set_rng_state(now)
    assert leaf.grad is not None
    return leaf.grad


def with_autograd_grad(block: nn.Module, x: Tensor, random_state: Tensor, grad_output: Tensor) -> Tensor:
    params = [param for param in block.parameters() if param.requires_grad]
    with torch.enable_grad(), torch.random.fork_rng():
        torch.random.set_rng_state(random_state)
        y = x.detach().requires_grad_()
        mine, *theirs = torch.autograd.grad(block(y), [y, *params], grad_output)
    for param, grad in zip(params, theirs, strict=True):
        param.grad = grad if param.grad is None else param.grad + grad
    return mine


def draw(rng: random.Random, number: int) -> Case:
    count, width, seed = 1 + number % 3, rng.randint(3, 6), rng.getrandbits(32)
    p = (0.0, 0.5)[number % 2]
    about = f"{count} block{'s' * (count > 1)} of width {width}, {'dropout' if p else 'no dropout'}"
    return Case(world_size=0, args=lambda rank: (count, width, p, seed), about=about)


def make_block(width: int, p: float) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(p), nn.Linear(2 * width, width))


def gradients(solution: Solution, count: int, width: int, p: float, seed: int) -> dict[str, Any]:
    """What two backwards leave, through blocks one after the other, and what is drawn afterwards."""
    torch.manual_seed(seed)
    blocks = [make_block(width, p) for _ in range(count)]
    x = normal(4, width, seed=seed).requires_grad_()
    for micro_batch in (1, 2):
        y, kept = x * micro_batch, []
        with torch.no_grad():
            for block in blocks:
                kept.append((block, y, torch.get_rng_state()))
                y = block(y).requires_grad_()  # as the output of an autograd function
            grad = normal(4, width, seed=seed + micro_batch)
            for block, of_block, state in reversed(kept):
                grad = solution(block, of_block, state, grad)
    return {
        "gradient of x": grad,
        "gradients of the parameters": [param.grad for block in blocks for param in block.parameters()],
        "random numbers that are drawn later": torch.rand(2),
    }


RECOMPUTE = Exercise(
    name="precision.recompute",
    title="Run it again",
    task="In forward the block ran without autograd: all that is left are its input `x` and the state that random "
    "numbers had. Backward has come to its output, with the gradient `grad_output`, and autograd is off. Run the block "
    "again, with autograd and with the same random numbers, and go back through it. Return the gradient of `x`, also "
    "where `x` asks for none. Those of the parameters add up in their `.grad`, as usual. Leave the state of random "
    "numbers as you found it.",
    stub=stubs.recompute,
    reference=recompute,
    draw=draw,
    trial=gradients,
    inputs_matter=False,
    variants={"by-hand": by_hand, "with-autograd-grad": with_autograd_grad},
    mistakes=[
        Mistake(
            id="without-grad",
            solution=without_grad,
            told="Autograd is off while backward runs, so the block runs again and leaves no graph to go back through.",
            action="Turn it on: `with torch.enable_grad():`.",
        ),
        Mistake(
            id="other-random-numbers",
            solution=other_random_numbers,
            told="The second time, dropout drops other elements than the first. So the gradient belongs to an output "
            "that never was.",
            action="Before the block runs, set the state that it had: `torch.set_rng_state(random_state)`.",
        ),
        Mistake(
            id="goes-on-drawing",
            solution=goes_on_drawing,
            told="The block draws new random numbers: dropout drops other elements than the first time, and whoever "
            "draws afterwards gets other numbers, too.",
            action="Set `random_state` inside of `torch.random.fork_rng(devices=[])`, which puts back what was before.",
        ),
        Mistake(
            id="turns-back-the-clock",
            solution=turns_back_the_clock,
            told="You set the state of random numbers to what it was, and leave it there. What is drawn next has been "
            "drawn before: the next dropout, say, drops the same elements again.",
            action="Put back the state that you found; `torch.random.fork_rng(devices=[])` does that.",
        ),
        Mistake(
            id="back-to-the-beginning",
            solution=back_to_the_beginning,
            told="At the end you set `random_state` once more. That is the state of the block's first run; you found "
            "a later one.",
            action="Keep `torch.get_rng_state()` before you change it, or use `torch.random.fork_rng(devices=[])`.",
        ),
        Mistake(
            id="from-ones",
            solution=from_ones,
            told="You go back from ones, as if the loss were the sum of the output. What the layers behind have found "
            "is in `grad_output`.",
            action="Go back from `grad_output`: `output.backward(grad_output)`.",
        ),
        Mistake(
            id="only-of-x",
            solution=only_of_x,
            told="The parameters get no gradient: `torch.autograd.grad` gives those that it is asked for, and adds to "
            "no `.grad`.",
            action="Use `output.backward(grad_output)`.",
        ),
        Mistake(
            id="nothing-of-x",
            solution=nothing_of_x,
            told="There is no gradient of `x`: it does not require one. So the layers before this block learn nothing.",
            action="Run the block on `x.detach().requires_grad_()`.",
        ),
        Mistake(
            id="returns-the-output",
            solution=returns_the_output,
            told="You return the output, which was known in forward. Asked for is the gradient of the input.",
            action="Return the gradient of `x`.",
        ),
        Mistake(
            id="passes-through",
            solution=passes_through,
            told="You return `grad_output` itself, as if the block changed nothing.",
            action="Return what backward has left in `x.grad`.",
        ),
        Mistake(
            id="overwrites-gradients",
            solution=overwrites_gradients,
            told="You clear the parameters' gradients first, and with them those of earlier micro-batches.",
            action="Let them add up.",
        ),
        Mistake(
            id="back-twice",
            solution=back_twice,
            told="You go back twice, and gradients add up: each is twice what it should be.",
            action="One backward gives all gradients.",
        ),
        Mistake(
            id="without-dropout",
            solution=without_dropout,
            told="The second time the block runs without dropout, so it is another function.",
            action="Leave the block in its mode, and give it the same random numbers.",
        ),
        Mistake(
            id="never-back",
            solution=never_back,
            told="You run the block, and never go back through it.",
            action="Call `output.backward(grad_output)`.",
        ),
    ],
    hints=[
        "Which output belongs to `grad_output`? What has to be the same for the second run to give it?",
        "A graph needs autograd, and a tensor to begin with that requires a gradient. Dropout is the same if random "
        "numbers begin at the same state; and afterwards everybody else should find the state that they left.",
        "`x.detach().requires_grad_()`, `torch.enable_grad()`, `torch.random.fork_rng(devices=[])`, "
        "`torch.set_rng_state(random_state)`, `output.backward(grad_output)`.",
        "```python\nx = x.detach().requires_grad_()\nwith torch.random.fork_rng(devices=[]), ...:\n"
        "    torch.set_rng_state(...)\n    output = ...\noutput.backward(...)\nreturn ...\n```",
    ],
    explanation="The second run builds the graph that the first did not, and backward uses it up at once: so the "
    "activations of one block are in memory at a time. `detach` cuts the graph at the block's input, and what arrives "
    "there is handed on. That the second run equals the first is up to you: dropout has to drop the same elements, "
    "and nothing that the block reads may have changed meanwhile. `torch.utils.checkpoint` does the same, for GPUs and "
    "autocast, too.",
)
