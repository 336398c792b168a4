"""How much memory an optimizer keeps."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import about_model, make_model
from .model import model_bytes

OPTIMIZERS = ("adam", "momentum", "sgd", "adamw")
STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def state_bytes(model: nn.Module, optimizer: str) -> int:
    """Return the bytes that an optimizer keeps for the model, once it has made a step."""
    states = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[optimizer]  # each like the gradients
    counts = 0
    if optimizer in ("adam", "adamw"):
        counts = 4 * sum(param.requires_grad for param in model.parameters())
    return states * model_bytes(model)["gradients"] + counts


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def step_bytes(optimizer: str) -> int:
    return 4 if optimizer.startswith("adam") else 0


def keeping(
    states: Callable[[str], int] = STATES.__getitem__,
    counts: Callable[[str], int] = step_bytes,
    params: Callable[[nn.Module], Iterable[nn.Parameter]] = trained,
    size: Callable[[nn.Parameter], int] = lambda param: param.nbytes,
) -> Solution:
    """The formula, with a part of it otherwise.

    Args:
        states: how many tensors like a parameter an optimizer keeps for it.
        counts: the bytes of its step count for each tensor.
        params: what an optimizer keeps state for.
        size: the bytes of a tensor like the parameter.
    """
    return lambda model, optimizer: sum(states(optimizer) * size(param) + counts(optimizer) for param in params(model))


def no_counts(optimizer: str) -> int:
    return 0


def in_fp32(param: nn.Parameter) -> int:
    return 4 * param.numel()


def by_name(model: nn.Module) -> list[nn.Parameter]:
    return [param for _, param in model.named_parameters(remove_duplicate=False) if param.requires_grad]


def counting_once_for(count: Callable[[nn.Module], int]) -> Solution:
    """The right states, and `count` step counts in all."""
    return lambda model, optimizer: keeping(counts=no_counts)(model, optimizer) + step_bytes(optimizer) * count(model)


def adamw_forgotten(model: nn.Module, optimizer: str) -> int:
    return state_bytes(model, optimizer) if optimizer != "adamw" else 0


def or_is_always_true(model: nn.Module, optimizer: str) -> int:
    return state_bytes(model, "momentum" if optimizer == "momentum" else "adam")


def asks_torch(model: nn.Module, optimizer: str) -> int:
    model = copy.deepcopy(model)
    made: torch.optim.Optimizer
    if optimizer.startswith("adam"):
        made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer](model.parameters())
    else:
        made = torch.optim.SGD(model.parameters(), momentum=0.9 if optimizer == "momentum" else 0)
    for param in trained(model):
        param.grad = torch.zeros_like(param)
    made.step()
    states = [value for state in made.state.values() for value in state.values()]
    return sum(state.nbytes for state in states if isinstance(state, torch.Tensor))


def one_by_one(model: nn.Module, optimizer: str) -> int:
    total = 0
    for param in model.parameters():
        if not param.requires_grad or optimizer == "sgd":
            continue
        total += param.numel() * param.element_size()
        if optimizer != "momentum":
            total += param.numel() * param.element_size() + 4
    return total


def draw(rng: random.Random, number: int) -> Case:
    seed, optimizer = rng.getrandbits(32), OPTIMIZERS[number % 4]
    return Case(
        world_size=0,
        args=lambda rank: (make_model(seed, number // 2), optimizer),
        about=f"{optimizer}, {about_model(number // 2)}",
    )


OPTIMIZER = Exercise(
    name="memory.optimizer",
    title="What an optimizer keeps",
    task='Return how many bytes an optimizer keeps for a model, once it has made a step: `"sgd"`, `"momentum"` (SGD '
    'with momentum), `"adam"` or `"adamw"`. Beside its moments, Adam keeps, for each tensor, the number of steps, in '
    "a tensor of one float32.",
    stub=stubs.state_bytes,
    reference=state_bytes,
    draw=draw,
    case_count=12,
    variants={"asks-torch": asks_torch, "one-by-one": one_by_one},
    mistakes=[
        Mistake(
            id="four-times",
            solution=keeping(states=lambda optimizer: STATES[optimizer] + 2),
            told="The parameters and the gradients are counted in: with Adam that makes 4 times the model. Of these, "
            "the optimizer keeps 2; the other 2 are there with any optimizer.",
            action="Count only what the optimizer adds.",
        ),
        Mistake(
            id="one-moment",
            solution=keeping(states=lambda optimizer: min(STATES[optimizer], 1)),
            told="Adam keeps two moments of each element: a running mean of its gradients, and one of their squares. "
            "You count one.",
            action="Count 2 for Adam and AdamW.",
        ),
        Mistake(
            id="decay-is-kept",
            solution=keeping(states=lambda optimizer: STATES[optimizer] + (optimizer == "adamw")),
            told="AdamW is given a third state for its weight decay. Decay multiplies the weights by a number, and "
            "needs to remember nothing.",
            action="Let AdamW keep what Adam keeps.",
        ),
        Mistake(
            id="sgd-keeps-gradients",
            solution=keeping(states=lambda optimizer: max(STATES[optimizer], 1)),
            told="Plain SGD is given a state. It uses the gradient and keeps nothing of it; with momentum it does.",
            action='Return 0 for "sgd".',
        ),
        Mistake(
            id="momentum-is-a-number",
            solution=keeping(states=lambda optimizer: STATES[optimizer] if optimizer != "momentum" else 0),
            told="Momentum is given no state. The factor 0.9 is one number, but what it is applied to, the running "
            "sum of gradients, is as large as the gradients.",
            action='Count 1 for "momentum".',
        ),
        Mistake(
            id="always-adam",
            solution=lambda model, optimizer: state_bytes(model, "adam"),
            told="Every optimizer is counted as if it were Adam.",
            action="Let the second argument decide how many states there are.",
        ),
        Mistake(
            id="no-step-counts",
            solution=keeping(counts=no_counts),
            told="The moments are right. What is missing are the step counts of Adam: 4 bytes for each tensor.",
            action="Add 4 bytes for each tensor that Adam or AdamW updates.",
        ),
        Mistake(
            id="one-step-count",
            solution=counting_once_for(lambda model: 1),
            told="Steps are counted once for the whole model. Adam counts them for each tensor, since a tensor may "
            "be left out of a step.",
            action="Add 4 bytes for each tensor that is trained.",
        ),
        Mistake(
            id="eight-byte-counts",
            solution=keeping(counts=lambda optimizer: 2 * step_bytes(optimizer)),
            told="A step count takes 8 bytes in your calculation. It is a float32 and takes 4.",
            action="Add 4 bytes for each tensor.",
        ),
        Mistake(
            id="everyone-counts",
            solution=keeping(counts=lambda optimizer: 4),
            told="SGD is given step counts. Adam needs them to correct its moments, which start at 0; SGD does not.",
            action="Add step counts for Adam and AdamW alone.",
        ),
        Mistake(
            id="counts-of-elements",
            solution=counting_once_for(lambda model: sum(param.numel() for param in trained(model))),
            told="Steps are counted for each element. There is one count for each tensor.",
            action="Multiply 4 bytes by the number of tensors, not by `numel()`.",
        ),
        Mistake(
            id="frozen-keep-states",
            solution=keeping(params=nn.Module.parameters),
            told="Frozen parameters are given states. The optimizer makes a state when it meets the first gradient, "
            "and they never get one.",
            action="Leave out parameters whose `requires_grad` is False.",
        ),
        Mistake(
            id="frozen-keep-counts",
            solution=counting_once_for(lambda model: len(list(model.parameters()))),
            told="The moments are right, but steps are counted for frozen parameters too. They make none.",
            action="Count only the tensors whose `requires_grad` is True.",
        ),
        Mistake(
            id="always-fp32",
            solution=keeping(size=in_fp32),
            told="The moments are counted with 4 bytes an element. torch makes them like the parameter, in its dtype. "
            "(Mixed precision has them in float32 because it gives the optimizer parameters in float32.)",
            action="Use `param.element_size()`, or what `model_bytes` says of the gradients.",
        ),
        Mistake(
            id="elements",
            solution=keeping(counts=no_counts, size=torch.numel),
            told="These are numbers of elements, and not bytes.",
            action="Multiply by the bytes of an element, and add the step counts.",
        ),
        Mistake(
            id="shared-twice",
            solution=keeping(params=by_name),
            told="A tensor that two layers share is counted once for each. The optimizer sees it once.",
            action="Go through `model.parameters()`, which gives it once.",
        ),
        Mistake(
            id="gradients-too",
            solution=keeping(states=lambda optimizer: STATES[optimizer] + 1),
            told="One is counted that the optimizer does not keep: the gradient, or the parameter. Both are there "
            "with any optimizer.",
            action="Count only what the optimizer remembers from step to step.",
        ),
        Mistake(
            id="before-the-first-step",
            solution=lambda model, optimizer: 0,
            told="You return 0, as if no optimizer kept anything. An optimizer that was just made holds nothing yet: "
            "torch makes its states in the first step.",
            action="Compute what it will hold, from the parameters.",
        ),
        Mistake(
            id="adamw-forgotten",
            solution=adamw_forgotten,
            told="AdamW comes out as an optimizer that keeps nothing. It keeps what Adam keeps.",
            action='Treat "adamw" like "adam".',
        ),
        Mistake(
            id="or-is-always-true",
            solution=or_is_always_true,
            told='SGD comes out like Adam. Does a condition read `optimizer == "adam" or "adamw"`? Python takes the '
            "text after `or` for a condition of its own, and a text that is not empty is true.",
            action='Write `optimizer in ("adam", "adamw")`.',
        ),
        Mistake(
            id="frozen-and-uncounted",
            solution=keeping(counts=no_counts, params=nn.Module.parameters),
            told="Two things: frozen parameters are given states, and Adam's step counts are missing, 4 bytes for each "
            "tensor.",
            action="First leave out parameters whose `requires_grad` is False; then add the step counts.",
        ),
        Mistake(
            id="fp32-and-uncounted",
            solution=keeping(counts=no_counts, size=in_fp32),
            told="Two things: states are counted with 4 bytes an element in any dtype, and Adam's step counts are "
            "missing, 4 bytes for each tensor.",
            action="First use `param.element_size()`; then add the step counts.",
        ),
    ],
    hints=[
        "Which of the four optimizers has to remember anything from one step to the next? How many numbers does it "
        "remember for each element of a parameter?",
        "Every state is like the gradients: as many elements, of the same dtype, and none for frozen parameters. SGD "
        "keeps 0 of them, momentum 1, Adam and AdamW 2. Adam's step counts come on top, 4 bytes a tensor.",
        '`model_bytes(model)["gradients"]` has most of it; `param.requires_grad` tells which tensors are counted.',
        '```python\nstates = {"sgd": 0, "momentum": ..., ...}[optimizer]\ncounts = 4 * ...  # Adam and AdamW only\n'
        'return states * model_bytes(model)["gradients"] + counts\n```',
    ],
    explanation="An optimizer's states are made like the gradients: SGD has none, momentum one, Adam and AdamW two. "
    "The step counts are 4 bytes for each tensor, too few to matter; they are in the formula because a formula that is "
    "right to the byte leaves nothing unexplained. AdamW differs from Adam in how it decays weights, not in what it "
    "keeps.",
)
