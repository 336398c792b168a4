"""Gradients that are handed over as soon as they are there, and kept by nobody."""

# mypy: disable-error-code="arg-type"
# (a gradient may be None for all that mypy knows)

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...meter import mark
from ..declare import Case, Exercise, Mistake, Solution
from . import stubs
from .rules import keeps_no_more

Params = list[nn.Parameter]
Take = Callable[[int, Tensor], None]


def hand_over(params: list[nn.Parameter], take: Callable[[int, torch.Tensor], None]) -> None:
    """From now on, call `take(number, grad)` as soon as backward has the gradient of `params[number]`."""

    def on_gradient(number: int, param: nn.Parameter) -> None:
        grad, param.grad = param.grad, None  # whatever `take` does with it, the parameter has let go
        take(number, grad)

    for number, param in enumerate(params):
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(partial(on_gradient, number))


def hook(params: Params, on_gradient: Callable[[int, nn.Parameter], None]) -> None:
    """Call `on_gradient` for each parameter that is not frozen, whenever its gradient is complete."""
    for number, param in enumerate(params):
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(lambda param, number=number: on_gradient(number, param))


def keeps_it(params: Params, take: Take) -> None:
    hook(params, lambda number, param: take(number, grad_of(param)))


def zeroes_it(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        take(number, grad_of(param))
        grad_of(param).zero_()

    hook(params, on_gradient)


def zeroes_and_frees_it(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        take(number, grad_of(param))
        grad_of(param).zero_()
        param.grad = None

    hook(params, on_gradient)


def hands_over_a_copy_and_zeroes(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        take(number, grad_of(param).clone())
        grad_of(param).zero_()

    hook(params, on_gradient)


def hands_over_zeros(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        grad = grad_of(param)
        param.grad = None
        take(number, grad.zero_())

    hook(params, on_gradient)


def frees_first(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        param.grad = None
        take(number, param.grad)

    hook(params, on_gradient)


def before_it_is_there(params: Params, take: Take) -> None:
    for number, param in enumerate(params):
        if param.requires_grad:
            param.register_hook(lambda grad, number=number: take(number, grad))


def looks_before_it_is_there(params: Params, take: Take) -> None:
    for number, param in enumerate(params):
        if param.requires_grad:
            param.register_hook(lambda _, number=number, param=param: take(number, param.grad))


def all_at_the_end(params: Params, take: Take) -> None:
    waiting: dict[int, Tensor] = {}

    def on_gradient(number: int, param: nn.Parameter) -> None:
        waiting[number] = grad_of(param)
        param.grad = None
        if len(waiting) == sum(param.requires_grad for param in params):
            for number in sorted(waiting):
                take(number, waiting.pop(number))

    hook(params, on_gradient)


def keeps_a_list(params: Params, take: Take) -> None:
    grads = []

    def on_gradient(number: int, param: nn.Parameter) -> None:
        grads.append(grad_of(param))
        param.grad = None
        take(number, grads[-1])

    hook(params, on_gradient)


def all_count_as_the_last(params: Params, take: Take) -> None:
    for number, param in enumerate(params):

        def on_gradient(param: nn.Parameter) -> None:
            grad, param.grad = grad_of(param), None
            take(number, grad)  # noqa: B023

        if param.requires_grad:
            param.register_post_accumulate_grad_hook(on_gradient)


def counts_without_the_frozen(params: Params, take: Take) -> None:
    hand_over([param for param in params if param.requires_grad], take)


def hooks_the_frozen(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        take(number, grad_of(param))
        param.grad = None

    for number, param in enumerate(params):
        param.register_post_accumulate_grad_hook(partial(on_gradient, number))


def hands_over_the_parameter(params: Params, take: Take) -> None:
    def on_gradient(number: int, param: nn.Parameter) -> None:
        param.grad = None
        take(number, param)

    hook(params, on_gradient)


def without_a_hook(params: Params, take: Take) -> None:
    for number, param in enumerate(params):
        if param.grad is not None:
            take(number, param.grad)
            param.grad = None


def grad_of(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def by_closure(params: Params, take: Take) -> None:
    def make_hook(number: int) -> Callable[[nn.Parameter], None]:
        def on_gradient(param: nn.Parameter) -> None:
            take(number, grad_of(param))
            param.grad = None

        return on_gradient

    for number in range(len(params)):
        if params[number].requires_grad:
            params[number].register_post_accumulate_grad_hook(make_hook(number))


def by_lookup(params: Params, take: Take) -> None:
    numbers = {param: number for number, param in enumerate(params) if param.requires_grad}

    def on_gradient(param: nn.Parameter) -> None:
        take(numbers[param], grad_of(param).clone())
        param.grad = None

    for param in numbers:
        param.register_post_accumulate_grad_hook(on_gradient)


class Twice(nn.Module):
    """Layers one after the other, all of which are used twice.

    Args:
        widths: of what goes into each layer.
        frozen: the layers with a frozen bias.
        on_layer: called in backward with a layer's number before its gradients become complete.
    """

    def __init__(self, widths: list[int], frozen: list[int], on_layer: Callable[[int], None]) -> None:
        super().__init__()
        ends = [*widths[1:], widths[0]]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, ends, strict=True))
        self.on_layer = on_layer
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
    frozen = rng.sample(range(layers), 1 if number % 2 else 0)

    def args(rank: int) -> tuple[list[int], list[int], list[Tensor]]:
        torch.manual_seed(seed)
        return widths, frozen, [torch.randn(3, widths[0]) for _ in range(3)]

    return Case(
        world_size=0,
        args=args,
        about=f"{layers} layers, each used twice{', one frozen bias' * bool(frozen)}, 3 backwards",
    )


def what_is_taken(solution: Solution, widths: list[int], frozen: list[int], batches: list[Tensor]) -> dict[str, Any]:
    """What is handed over, in its order, and what has become of the last of it when backward is over."""
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


HAND_OVER = Exercise(
    name="zero2.hand_over",
    title="Hand each gradient over",
    task="Register hooks on `params`, and return. In every backward from then on, `take(number, grad)` is to be called "
    "for each parameter as soon as its gradient is complete. The gradient is `take`'s from then on: when `take` has "
    "let go of it, its memory is to be free. Frozen parameters (`requires_grad=False`) have no gradient, and torch "
    "refuses hooks on them; they count all the same, so that `number` is the place in `params`.",
    stub=stubs.hand_over,
    reference=hand_over,
    draw=draw,
    trial=what_is_taken,
    inputs_matter=False,
    measured=True,
    rules=[keeps_no_more],
    variants={"by-closure": by_closure, "by-lookup": by_lookup},
    mistakes=[
        Mistake(
            id="keeps-it",
            solution=keeps_it,
            told="Each gradient is handed over, and the parameter keeps it as well: nothing is freed. In the next "
            "backward the new gradient is added to it, so the old one is handed over once more.",
            action="Set `param.grad = None` in the hook.",
        ),
        Mistake(
            id="zeroes-it",
            solution=zeroes_it,
            told="You hand a gradient over and then set it to zero. Who has taken it finds zeros; and zeros take as "
            "much memory as any numbers.",
            action="Do not write into the gradient. Let go of it: `param.grad = None`.",
        ),
        Mistake(
            id="zeroes-and-frees-it",
            solution=zeroes_and_frees_it,
            told="You set the gradient to zero before you let go of it. It is one tensor, whoever refers to it: what "
            "`take` has kept is zero as well.",
            action="Leave out the `zero_()`: to let go is enough.",
        ),
        Mistake(
            id="copy-and-zeroes",
            solution=hands_over_a_copy_and_zeroes,
            told="The copies that you hand over are right. The gradients stay where they are, full of zeros, which "
            "take as much memory as any numbers.",
            action="Set `param.grad = None`; then the copy is not needed.",
        ),
        Mistake(
            id="hands-over-zeros",
            solution=hands_over_zeros,
            told="You set the gradient to zero before you hand it over.",
            action="Leave out the `zero_()`.",
        ),
        Mistake(
            id="frees-first",
            solution=frees_first,
            told="`param.grad` is None already when you hand it over.",
            action="Remember the gradient in a variable of the hook, or hand it over first.",
        ),
        Mistake(
            id="before-it-is-there",
            solution=before_it_is_there,
            told="`register_hook` calls you before the gradient is put into `param.grad`. Whatever you clear there, "
            "backward fills afterwards: in the end, all gradients are in memory.",
            action="Use `register_post_accumulate_grad_hook`, and set `param.grad = None` in it.",
        ),
        Mistake(
            id="looks-before-it-is-there",
            solution=looks_before_it_is_there,
            told="`register_hook` calls you before the gradient is in `param.grad`: you hand over what the backward "
            "before has left there, in the first one None.",
            action="Use `register_post_accumulate_grad_hook`.",
        ),
        Mistake(
            id="all-at-the-end",
            solution=all_at_the_end,
            told="You wait for the last gradient and hand over all at once. By then the whole gradient is in memory, "
            "and that is what ZeRO-2 avoids.",
            action="Call `take` in the hook, each time.",
        ),
        Mistake(
            id="keeps-a-list",
            solution=keeps_a_list,
            told="The parameters have let go of their gradients, and a list of yours has not.",
            action="Keep nothing: a local variable of the hook ends with the hook.",
        ),
        Mistake(
            id="all-count-as-the-last",
            solution=all_count_as_the_last,
            told="Every gradient comes with the last number. A function that is defined in a loop sees the loop's "
            "variable as it is when it is called, and then the loop has ended.",
            action="Bind the number at definition: `functools.partial(on_gradient, number)`, or a default argument.",
        ),
        Mistake(
            id="counts-without-the-frozen",
            solution=counts_without_the_frozen,
            told="You number the parameters without the frozen ones, so every number behind a frozen one is too low.",
            action="Count all of `params` with `enumerate`, and leave the frozen ones out afterwards.",
        ),
        Mistake(
            id="hooks-the-frozen",
            solution=hooks_the_frozen,
            told="A frozen parameter never gets a gradient, and torch refuses to put a hook on it.",
            action="Leave it out: ask `param.requires_grad`.",
        ),
        Mistake(
            id="hands-over-the-parameter",
            solution=hands_over_the_parameter,
            told="You hand over the parameter. The hook is called with it, and its gradient is in `param.grad`.",
            action="Hand over `param.grad`.",
        ),
        Mistake(
            id="without-a-hook",
            solution=without_a_hook,
            told="Nothing is handed over. You look for gradients when the function is called, and they come later, in "
            "backward.",
            action="Register a hook on each parameter.",
        ),
    ],
    hints=[
        "Backward computes one gradient after the other. Which moment is the first at which a gradient is complete, "
        "and who refers to it then?",
        "torch can call you at that moment: a hook on the parameter. And memory is freed when the last reference goes. "
        "One is `param.grad`.",
        "`param.register_post_accumulate_grad_hook(fn)` calls `fn(param)`. `functools.partial(fn, number)` gives it a "
        "number, too. A frozen parameter has `requires_grad` False.",
        "```python\ndef on_gradient(number, param):\n    grad = ...\n    ...  # the parameter lets go\n"
        "    take(number, grad)\n\nfor number, param in enumerate(params):\n    if ...:\n"
        "        param.register_post_accumulate_grad_hook(partial(on_gradient, number))\n```",
    ],
    explanation="The hook runs inside backward, after the gradient has been put into `param.grad` and before the next "
    "one is computed. So when `take` lets go of each gradient, one is in memory at a time, however large the model "
    "is. It makes no difference whether the parameter lets go before `take` or after it; before has the charm that "
    "nothing is left where `take` fails. A parameter that is used twice, such as tied weights, has one gradient, "
    "which is complete when both uses have added theirs: the hook is called once.",
)
