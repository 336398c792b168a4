"""Count the bytes of a model and of its gradients."""

import random

from torch import nn

from ...exercises import Case, Exercise
from .data import about_model, make_model


def draw(rng: random.Random, number: int) -> Case:
    seed = rng.getrandbits(32)
    return Case(world_size=0, args=lambda rank: (make_model(seed, number),), what=about_model(number))


exercise = Exercise("memory.model", title="The bytes of a model", draw=draw, task="""
    Return a dict with two numbers of bytes: the bytes of the `"parameters"`, and the bytes that their `"gradients"`
    will take after backward. A tensor that two layers share counts once. A layer may be frozen (`requires_grad` is
    False), and its dtype may differ from float32.""", hints="""
    A tensor may have several names, and takes its memory once. Which tensors does a model hold? For which of them does
    backward make a gradient?

    A tensor takes its number of elements times the bytes of one element. A gradient has the shape and the dtype of its
    parameter, and exists only where the parameter requires one.

    `model.parameters()`, `param.numel()`, `param.element_size()` and `param.requires_grad`.

    ```python
    for param in model.parameters():
        nbytes = param.numel() * ...
        if param.requires_grad:
            ...
    ```
    """, explanation="""
    `model.parameters()` yields each tensor once, however many layers use it, so tied weights count once. A state dict
    has an entry for each name, so it counts them twice. A gradient has the shape and the dtype of its parameter, and
    exists only where `requires_grad` is True. So freezing a layer saves the bytes of its gradients.""")


@exercise
def model_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of the model's "parameters", and of their "gradients" after backward.

    A tensor that several layers share counts once. A frozen parameter gets no gradient.
    """
    held = {"parameters": 0, "gradients": 0}
    for param in model.parameters():
        nbytes = param.numel() * param.element_size()
        held["parameters"] += nbytes
        if param.requires_grad:
            held["gradients"] += nbytes
    return held


exercise.edit("shared-count-twice", {"for param in model.parameters()":
    "for _, param in model.named_parameters(remove_duplicate=False)"}, """
    You count a tensor that two layers share once for each of them. It has two names and one memory.
    Next: loop over `model.parameters()` only, which yields a shared tensor once.""")

exercise.edit("state-dict", {"model.parameters()": "model.state_dict(keep_vars=True).values()"}, """
    You count what a state dict lists. It has an entry for each name, so a shared tensor is in it twice. It also lists
    buffers, such as running averages, and buffers are not parameters. Next: loop over `model.parameters()`.""")

exercise.edit("buffers-too", {"return held":
    'held["parameters"] += sum(buffer.nbytes for buffer in model.buffers())\nreturn held'}, """
    You count buffers, such as running averages, as parameters. They are part of the model, and no optimizer trains
    them. Next: leave `model.buffers()` out.""")

exercise.edit("frozen-get-gradients", {"param.requires_grad": "True"}, """
    You count a gradient for frozen parameters. Backward makes none where `requires_grad` is False.
    Next: count a gradient only where `param.requires_grad` is True.""")

exercise.edit("frozen-left-out", {'held["parameters"] += nbytes\n': "", "held[\"gradients\"] += nbytes":
    'held["parameters"] += nbytes\nheld["gradients"] += nbytes'}, """
    You leave frozen parameters out altogether. They get no gradient, and the model holds them all the same.
    Next: count the bytes of every parameter; let `requires_grad` decide only about the gradient.""")

exercise.edit("always-four-bytes", {"param.element_size()": "4"}, """
    You count the same bytes for every element, such as the 4 of float32. Elements of bfloat16 and float16 take
    2 bytes, of float64 8.
    Next: use `param.element_size()`.""")

exercise.edit("elements", {" * param.element_size()": ""}, """
    You count elements, not bytes. The bytes of one element depend on its dtype.
    Next: multiply each parameter's elements by the bytes of one element.""")

exercise.edit("gradients-of-now", {"param.requires_grad": "param.grad is not None"}, """
    You count the gradients that exist now. No backward has run yet, so there are none. The task asks how much they
    will take. Next: count a gradient as large as its parameter where `param.requires_grad` is True.""")

exercise.edit("state-dict-of-parameters", {"held[\"parameters\"] += nbytes": "pass", "return held":
    'held["parameters"] = sum(tensor.nbytes for tensor in model.state_dict().values())\nreturn held'}, """
    You add up the parameters by their names in a state dict. It lists a shared tensor once for each name, and buffers
    as well, such as running averages. Next: which method of a model returns its parameters, and each only once?""")


@exercise.variant
def by_nbytes(model: nn.Module) -> dict[str, int]:
    params = list(model.parameters())
    trained = [param for param in params if param.requires_grad]
    return {"parameters": sum(p.nbytes for p in params), "gradients": sum(p.nbytes for p in trained)}


@exercise.variant
def by_storage(model: nn.Module) -> dict[str, int]:
    sizes = {}
    for _, param in model.named_parameters(remove_duplicate=False):
        sizes[param.data_ptr()] = (param.untyped_storage().nbytes(), param.requires_grad)
    return {
        "parameters": sum(nbytes for nbytes, _ in sizes.values()),
        "gradients": sum(nbytes * trained for nbytes, trained in sizes.values()),
    }
