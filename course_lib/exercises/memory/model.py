"""Count the bytes of a model and of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ..form.declare import Exercise, Mistake, Solution
from . import stubs
from .data import draw_model


def model_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of the model's "parameters", and of their "gradients" after a backward."""
    held = {"parameters": 0, "gradients": 0}
    for param in model.parameters():
        held["parameters"] += param.numel() * param.element_size()
        if param.requires_grad:
            held["gradients"] += param.numel() * param.element_size()
    return held


def nbytes(param: nn.Parameter) -> int:
    return param.numel() * param.element_size()


def is_trained(param: nn.Parameter) -> bool:
    return param.requires_grad


def weighing(
    params: Callable[[nn.Module], Iterable[nn.Parameter]] = nn.Module.parameters,
    size: Callable[[nn.Parameter], int] = nbytes,
    grad_size: Callable[[nn.Parameter], int] | None = None,
    gets_gradient: Callable[[nn.Parameter], bool] = is_trained,
) -> Solution:
    """The weight, with a part of it otherwise: what is weighed, what one weighs, what gets a gradient of which size."""

    def weigh(model: nn.Module) -> dict[str, int]:
        weighed = list(params(model))
        return {
            "parameters": sum(map(size, weighed)),
            "gradients": sum(map(grad_size or size, filter(gets_gradient, weighed))),
        }

    return weigh


def by_name(model: nn.Module) -> list[nn.Parameter]:
    return [param for _, param in model.named_parameters(remove_duplicate=False)]


def everyone(param: nn.Parameter) -> bool:
    return True


def in_fp32(param: nn.Parameter) -> int:
    return 4 * param.numel()


def buffers_too(model: nn.Module) -> dict[str, int]:
    held = model_bytes(model)
    held["parameters"] += sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return held


def gradients_of_now(model: nn.Module) -> dict[str, int]:
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    return model_bytes(model) | {"gradients": sum(grad.numel() * grad.element_size() for grad in grads)}


def gradients_asked_too_early(model: nn.Module) -> dict[str, int]:
    grads: list[Any] = [param.grad for param in model.parameters() if param.requires_grad]
    return model_bytes(model) | {"gradients": sum(grad.numel() * grad.element_size() for grad in grads)}


def first_only(model: nn.Module) -> dict[str, int]:
    first = next(model.parameters())
    return {"parameters": first.nbytes, "gradients": first.nbytes * first.requires_grad}


def last_only(model: nn.Module) -> dict[str, int]:
    *_, last = model.parameters()
    *_, last_trained = (param for param in model.parameters() if param.requires_grad)
    return {"parameters": last.nbytes, "gradients": last_trained.nbytes}


def by_nbytes(model: nn.Module) -> dict[str, int]:
    params = list(model.parameters())
    trained = [param for param in params if param.requires_grad]
    return {"parameters": sum(p.nbytes for p in params), "gradients": sum(p.nbytes for p in trained)}


def by_storage(model: nn.Module) -> dict[str, int]:
    sizes = {}
    for _, param in model.named_parameters(remove_duplicate=False):
        sizes[param.data_ptr()] = (param.untyped_storage().nbytes(), param.requires_grad)
    return {
        "parameters": sum(nbytes for nbytes, _ in sizes.values()),
        "gradients": sum(nbytes * trained for nbytes, trained in sizes.values()),
    }


MODEL = Exercise(
    name="memory.model",
    title="Weigh a model",
    task='Return a dict with two numbers of bytes: those of the `"parameters"`, and those that their `"gradients"` '
    "will take after a backward. A tensor that two layers share is there once. Layers may be frozen "
    "(`requires_grad` is False), and in another dtype than float32.",
    stub=stubs.model_bytes,
    reference=model_bytes,
    draw=draw_model,
    variants={"nbytes": by_nbytes, "storages": by_storage},
    mistakes=[
        Mistake(
            id="shared-count-twice",
            solution=weighing(params=by_name),
            told="A tensor that two layers share is counted once for each of them. It has two names, and one memory.",
            action="Go through `model.parameters()` and nothing else: it gives a shared tensor once.",
        ),
        Mistake(
            id="state-dict",
            solution=weighing(params=lambda model: model.state_dict(keep_vars=True).values()),
            told="A state dict has an entry for each name: a shared tensor stands in it twice, and buffers, such as "
            "running averages, stand in it too, which are no parameters.",
            action="Go through `model.parameters()`.",
        ),
        Mistake(
            id="state-dict-as-gradients",
            solution=weighing(params=lambda model: model.state_dict().values(), gets_gradient=everyone),
            told="You weigh the state dict, twice. It names a shared tensor twice and holds buffers; and of frozen "
            "parameters there are no gradients.",
            action="Go through `model.parameters()`, and ask each whether it requires a gradient.",
        ),
        Mistake(
            id="buffers-too",
            solution=buffers_too,
            told="Buffers, such as running averages, are counted as parameters. They are part of the model, but no "
            "optimizer trains them.",
            action="Leave `model.buffers()` out.",
        ),
        Mistake(
            id="frozen-get-gradients",
            solution=weighing(gets_gradient=everyone),
            told="Frozen parameters are given gradients. Backward makes none where `requires_grad` is False.",
            action="Count a gradient only where `param.requires_grad`.",
        ),
        Mistake(
            id="frozen-left-out",
            solution=weighing(params=lambda model: filter(is_trained, model.parameters())),
            told="Frozen parameters are left out altogether. They get no gradient, but are held like the others.",
            action="Count all parameters; let `requires_grad` decide about the gradient alone.",
        ),
        Mistake(
            id="always-four-bytes",
            solution=weighing(size=in_fp32),
            told="Every element is counted with 4 bytes, as in float32. Elements of bfloat16 and float16 take 2, of "
            "float64 8.",
            action="Ask each parameter: `param.element_size()`.",
        ),
        Mistake(
            id="four-bytes-and-frozen",
            solution=weighing(size=in_fp32, gets_gradient=everyone),
            told="Every element is counted with 4 bytes, and every parameter with a gradient. A layer may have another "
            "dtype; and a frozen one gets no gradient.",
            action="Use `param.element_size()`, and count a gradient only where `param.requires_grad` is True.",
        ),
        Mistake(
            id="gradients-in-fp32",
            solution=weighing(grad_size=in_fp32),
            told="Gradients are counted with 4 bytes an element. Backward makes them in the dtype of their parameter.",
            action="Use `param.element_size()` for the gradients too.",
        ),
        Mistake(
            id="elements",
            solution=weighing(size=torch.numel),
            told="These are numbers of elements. Each takes some bytes, how many depends on its dtype.",
            action="Multiply each parameter's `numel()` by its `element_size()`.",
        ),
        Mistake(
            id="rows",
            solution=weighing(size=lambda param: len(param) * param.element_size()),
            told="`len` of a matrix is the number of its rows, and not of its elements.",
            action="Use `param.numel()` in place of `len(param)`.",
        ),
        Mistake(
            id="gradients-of-now",
            solution=gradients_of_now,
            told="You weigh the gradients that are there now. No backward has run yet, so there are none; asked is "
            "what they will take.",
            action="Tell from the parameter: its gradient will have its shape and its dtype.",
        ),
        Mistake(
            id="gradients-asked-too-early",
            solution=gradients_asked_too_early,
            told="You ask `param.grad` for its size, and it is None: no backward has run yet.",
            action="Tell from the parameter: its gradient will have its shape and its dtype.",
        ),
        Mistake(
            id="first-only",
            solution=first_only,
            told="Only the first parameter is counted: the function returns while it is in the loop.",
            action="Set the `return` back, so that it stands after the loop.",
        ),
        Mistake(
            id="last-only",
            solution=last_only,
            told="Only the last parameter is counted: each replaces the one before.",
            action="Write `+=` in place of `=`.",
        ),
    ],
    hints=[
        "What would a kitchen scale show? It weighs things, however many names they have. Which things does a model "
        "hold, and which of them does backward make a second one of?",
        "A tensor takes its number of elements times the bytes of one element. A gradient is a tensor like its "
        "parameter, made only where one is required.",
        "`model.parameters()`, `param.numel()`, `param.element_size()` and `param.requires_grad`.",
        "```python\nfor param in model.parameters():\n    nbytes = param.numel() * ...\n    if param.requires_grad:\n"
        "        ...\n```",
    ],
    explanation="`model.parameters()` gives each tensor once, however many layers use it, so tied weights count once. "
    "Names do not: a state dict has an entry for each. A gradient has the shape and the dtype of its parameter, and "
    "exists only where `requires_grad` is True. That is what fine-tuning with frozen layers saves first.",
)
