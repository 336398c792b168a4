"""Gradients that are handed over as soon as they are complete, and that nothing keeps."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...exercises import Case, Exercise, Solution
from ...meter import mark
from .data import keeps_no_more


class Twice(nn.Module):
    """Layers one after the other, all of which are used twice.

    Args:
        widths: the input width of each layer.
        frozen: the layers with a frozen bias.
        on_layer: called in backward with a layer's number before its gradients become complete.
    """

    def __init__(self, widths: list[int], frozen: list[int], on_layer: Callable[[int], None]) -> None:
        super().__init__()
        ends = [*widths[1:], widths[0]]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, ends, strict=True))
        self.on_layer = on_layer
        for layer in self.layers:
            nn.init.zeros_(layer.bias)  # a parameter is not known by its values
        for number in frozen:
            self.layers[number].bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for use in ("first", "second"):
            for number, layer in enumerate(self.layers):
                x = layer(x).tanh()
                if use == "first":  # backward comes to it last
                    x.register_hook(lambda _, number=number: self.on_layer(number))
        return x


def draw(rng: random.Random, number: int) -> Case:
    layers = 2 if number == 0 else rng.randint(2, 4)
    widths, seed = rng.sample(range(2, 8), layers), rng.getrandbits(32)
    if number % 3 == 2:
        widths = widths[:1] * layers  # nor is it known by its shape
    frozen = rng.sample(range(layers), 1 if number % 2 else 0)

    def args(rank: int) -> tuple[list[int], list[int], list[Tensor]]:
        torch.manual_seed(seed)
        return widths, frozen, [torch.randn(3, widths[0]) for _ in range(3)]

    one_width, frozen_bias = " of one width" * (number % 3 == 2), ", one frozen bias" * bool(frozen)
    what = f"{layers} layers{one_width}, each used twice{frozen_bias}, 3 backward passes"
    return Case(world_size=0, args=args, what=what)


def taken_gradients(solution: Solution, widths: list[int], frozen: list[int], batches: list[Tensor]) -> dict[str, Any]:
    """Return the gradients in the order in which `take` got them, and the values of the last ones after backward."""
    torch.manual_seed(0)
    taken: list[Any] = []
    kept: dict[int, Tensor] = {}
    backward = 0

    def take(number: int, grad: Any) -> None:
        taken.append({"number": number, "gradient": grad.tolist() if isinstance(grad, Tensor) else grad})
        if backward == len(batches):
            kept[number] = grad

    model = Twice(widths, frozen, lambda layer: mark(f"In backward {backward}, before the gradients of layer {layer}"))
    solution(list(model.parameters()), take)
    for batch in batches:
        backward += 1
        model(batch).square().sum().backward()
        mark(f"After backward {backward}")
    left = [param.grad for param in model.parameters()]
    return {"taken": taken, "left in param.grad": left, "kept": list(kept.items())}


exercise = Exercise("zero2.hand_over", title="Hand each gradient over", draw=draw, trial=taken_gradients,
    inputs_matter=False, measured=True, rules=[keeps_no_more], task="""
    Register hooks on `params`, and return. In every later backward, your hooks call `take(number, grad)` for each
    parameter as soon as its gradient is complete. From then on the gradient belongs to `take`: when `take` drops it,
    its memory is free. Frozen parameters (`requires_grad=False`) have no gradient, and torch refuses hooks on them.
    They still count: `number` is the place in `params`.""", hints="""
    Backward computes one gradient after the other. When is a gradient complete, and what refers to it at that moment?

    torch can call you at that moment: register a hook on the parameter. Memory is freed when the last reference to it
    goes. `param.grad` is one reference.

    `param.register_post_accumulate_grad_hook(fn)` calls `fn(param)`. `functools.partial(fn, number)` passes a number,
    too. A frozen parameter has `requires_grad` False.

    ```python
    def on_gradient(number, param):
        grad = ...
        ...  # the parameter drops it
        take(number, grad)

    for number, param in enumerate(params):
        if ...:
            param.register_post_accumulate_grad_hook(partial(on_gradient, number))
    ```
    """, explanation="""
    The hook runs inside backward, after the gradient is in `param.grad` and before backward goes on. If `take` drops
    each gradient, only those of one layer are in memory at a time, however many layers there are. The parameter may
    drop its reference before `take` or after it. Before is better: if `take` fails, no gradient stays behind. A
    parameter that is used twice, such as a tied weight, has one gradient. It is complete when both uses have added
    their part, and the hook is called once.""")


@exercise
def hand_over(params: list[nn.Parameter], take: Callable[[int, torch.Tensor], None]) -> None:
    """From now on, call `take(number, grad)` as soon as backward has the gradient of `params[number]`.

    The gradient belongs to `take` from then on: neither the parameter nor this function keeps it.
    A frozen parameter has no gradient; the others keep their numbers.
    """

    def on_gradient(number: int, param: nn.Parameter) -> None:
        grad, param.grad = param.grad, None  # whatever `take` does with it, the parameter has dropped it
        take(number, grad)

    for number, param in enumerate(params):
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(partial(on_gradient, number))


exercise.edit("keeps-it", {"grad, param.grad = param.grad, None": "grad = param.grad"}, """
    You hand each gradient over, and the parameter keeps it, too. Nothing is freed, and the next backward adds the new
    gradient to the old one. Next: let the parameter drop its gradient in the hook.""")

exercise.edit("zeroes-it", {"grad, param.grad = param.grad, None": "grad = param.grad", "take(number, grad)":
    "take(number, grad)\ngrad.zero_()"}, """
    The parameter keeps zeros, which take as much memory as any numbers. And if `take` got the same tensor, it now has
    zeros, too. Next: do not write into the gradient; let the parameter drop it.""")

exercise.edit("frees-first", {"grad, param.grad = param.grad, None": "param.grad = None", "take(number, grad)":
    "take(number, param.grad)"}, """
    You set `param.grad` to None before you hand it over, so `take` gets None.
    Next: put the gradient into a variable of the hook first, or hand it over first.""")

HOOK = "param.register_post_accumulate_grad_hook(partial(on_gradient, number))"

exercise.edit("before-it-is-there", {HOOK: "param.register_hook(partial(take, number))"}, """
    You hand over the right gradients, but from `register_hook`, which runs before backward fills `param.grad`. So the
    parameters still get their gradients afterwards, and all of them stay in memory.
    Next: use the hook that is called when the gradient has been accumulated.""")

exercise.edit("all-at-the-end", {"def on_gradient": "waiting = {}\n\ndef on_gradient", "grad, param.grad =":
    "waiting[number], param.grad =", "take(number, grad)": "if len(waiting) == sum(param.requires_grad for param in "
    "params):\n    for number in sorted(waiting):\n        take(number, waiting.pop(number))"}, """
    You wait for the last gradient and hand all of them over at once. Then the whole gradient of the model is in memory,
    which ZeRO-2 avoids. Next: call `take` in the hook, once for each gradient.""")

exercise.edit("all-count-as-the-last", {"partial(on_gradient, number)": "lambda param: on_gradient(number, param)"}, """
    Every gradient comes with the last number. A function that you define in a loop reads the loop's variable when it is
    called, and by then the loop has ended.
    Next: bind the number when you define the hook, with a default argument or `functools.partial`.""")

exercise.edit("counts-from-the-end", {"enumerate(params)": "enumerate(reversed(params))"}, """
    Your numbers count from the end of `params`. Backward reaches the last parameter first, but `number` is a place in
    the list. Next: number the parameters in the order of the list.""")

exercise.edit("frozen-too-and-all-as-the-last", {f"if param.requires_grad:\n{HOOK}":
    "param.register_post_accumulate_grad_hook(lambda param: on_gradient(number, param))"}, """
    Every gradient comes with the last number, because a function that you define in a loop reads the loop's variable
    when it is called. And frozen parameters get a hook, too, which torch refuses.
    Next: bind the number when you define the hook, and leave frozen parameters out.""")

exercise.edit("counts-without-the-frozen", {"enumerate(params)":
    "enumerate(param for param in params if param.requires_grad)"}, """
    You number the parameters without the frozen ones, so every number behind a frozen parameter is too low.
    Next: count all of `params` with `enumerate`, and skip the frozen ones inside the loop.""")

exercise.edit("without-a-hook", {f"if param.requires_grad:\n{HOOK}":
    "if param.grad is not None:\n    on_gradient(number, param)"}, """
    `take` is never called. The gradients do not exist yet when your function runs; they come later, in backward.
    Next: register a hook on each parameter.""")

exercise.variant_edit("frees-afterwards", {"grad, param.grad = param.grad, None": "grad = param.grad",
    "take(number, grad)": "take(number, grad)\nparam.grad = None",
    "partial(on_gradient, number)": "lambda param, number=number: on_gradient(number, param)"})


@exercise.variant
def by_lookup(params: list[nn.Parameter], take: Callable[[int, Tensor], None]) -> None:
    numbers = {param: number for number, param in enumerate(params) if param.requires_grad}

    def on_gradient(param: nn.Parameter) -> None:
        assert param.grad is not None
        take(numbers[param], param.grad.clone())
        param.grad = None

    for param in numbers:
        param.register_post_accumulate_grad_hook(on_gradient)
