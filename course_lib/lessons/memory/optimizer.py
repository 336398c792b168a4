"""How much memory an optimizer keeps."""

import copy
import random

import torch
from torch import nn

from ...exercises import Case, Exercise
from .data import about_model, make_model
from .model import model_bytes

OPTIMIZERS = ("adam", "momentum", "sgd", "adamw")


def draw(rng: random.Random, number: int) -> Case:
    seed, optimizer = rng.getrandbits(32), OPTIMIZERS[number % 4]
    what = f"{optimizer}, {about_model(number // 2)}"
    return Case(world_size=0, args=lambda rank: (make_model(seed, number // 2), optimizer), what=what)


exercise = Exercise("memory.optimizer", title="What an optimizer keeps", draw=draw, case_count=12, task="""
    Return how many bytes an optimizer keeps for a model, once it has made a step: `"sgd"`, `"momentum"` (SGD with
    momentum), `"adam"` or `"adamw"`. Adam and AdamW keep their moments, and for each tensor the number of its steps, in
    a tensor of one float32.""", hints="""
    Which of the four optimizers has to remember anything from one step to the next? How many numbers does it remember
    for each element of a parameter?

    Every state is like the gradients: as many elements, of the same dtype, and none for frozen parameters. SGD keeps
    none, momentum keeps one, Adam and AdamW keep two. Adam's and AdamW's step counts take 4 more bytes for each tensor.

    `model_bytes(model)["gradients"]` is most of it; `param.requires_grad` is True for the tensors that are trained.

    ```python
    states = {"sgd": 0, "momentum": ..., ...}[optimizer]
    counts = 4 * ...  # only for Adam and AdamW
    return states * model_bytes(model)["gradients"] + counts
    ```
    """, explanation="""
    An optimizer makes its states like the gradients: SGD has none, momentum one, Adam and AdamW two. The step counts
    are 4 bytes for each tensor, too few to matter; they are in the formula because a formula that is right to the byte
    leaves nothing unexplained. AdamW decays weights differently from Adam, and keeps the same.""")


@exercise
def state_bytes(model: nn.Module, optimizer: str) -> int:
    """Return the bytes that an optimizer keeps for the model, once it has made a step.

    `optimizer` is "sgd", "momentum", "adam" or "adamw". Every parameter has a gradient, unless it
    is frozen. Adam and AdamW also count the steps, for each tensor, in a float32 of its own.
    """
    states = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[optimizer]  # each like the gradients
    counts = 0
    if optimizer in ("adam", "adamw"):
        counts = 4 * sum(param.requires_grad for param in model.parameters())
    return states * model_bytes(model)["gradients"] + counts


GRADIENTS = 'model_bytes(model)["gradients"]'
TRAINED = "sum(param.requires_grad for param in model.parameters())"

exercise.edit("four-times", {"[optimizer]": "[optimizer] + 2"}, """
    You count two more than the optimizer keeps: for Adam four times the model. The total of parameters, gradients and
    states is that large. Parameters and gradients exist with any optimizer. Next: count only what the optimizer adds.
    """)

exercise.edit("one-moment", {"2, ": "1, ", "2}": "1}"}, """
    You count one moment for Adam. It keeps two for each element: a running mean of the gradients, and one of their
    squares. Next: count 2 for Adam and AdamW.""")

exercise.edit("decay-is-kept", {"2}": "3}"}, """
    You count a third state for AdamW, as if its weight decay needed one. Decay multiplies the weights by a number, and
    remembers nothing. Next: count for AdamW what you count for Adam.""")

exercise.edit("sgd-keeps-gradients", {'"sgd": 0': '"sgd": 1'}, """
    You count a state for plain SGD. It uses the gradient and keeps nothing; only with momentum does it keep one.
    Next: return 0 for "sgd".""")

exercise.edit("momentum-is-a-number", {'"momentum": 1': '"momentum": 0'}, """
    You count no state for momentum. The factor 0.9 is one number. The running sum of gradients, to which it is
    applied, is as large as the gradients. Next: count 1 for "momentum".""")

exercise.edit("no-step-counts", {"+ counts": ""}, """
    The moments are right, but Adam's step counts are missing: 4 bytes for each tensor.
    Next: add 4 bytes for each tensor that Adam or AdamW updates.""")

exercise.edit("momentum-counts-steps", {'optimizer in ("adam", "adamw")': 'optimizer != "sgd"'}, """
    You add step counts for momentum, too. Only Adam and AdamW count steps: they correct their moments by this number.
    Next: add 4 bytes for each tensor only where the optimizer is "adam" or "adamw".""")

exercise.edit("one-step-count", {TRAINED: "1"}, """
    You add one step count for the whole model. Adam counts the steps of each tensor, because a step may leave a tensor
    out. Next: add 4 bytes for each tensor that is trained.""")

exercise.edit("a-count-for-each-name", {"model.parameters()":
    "dict(model.named_parameters(remove_duplicate=False)).values()"}, """
    You add a step count for each name. A weight that two layers share has two names, and is one tensor.
    Next: add 4 bytes for each tensor that is trained, once.""")

exercise.edit("frozen-keep-states", {TRAINED: "len(list(model.parameters()))", '"gradients"': '"parameters"'}, """
    You count states for frozen parameters. The optimizer makes a state when it sees a first gradient, and a frozen
    parameter never gets one. Next: leave out parameters whose `requires_grad` is False.""")

exercise.edit("always-fp32", {GRADIENTS: "sum(4 * p.numel() for p in model.parameters() if p.requires_grad)"}, """
    You count 4 bytes for each element of a moment. torch makes moments in the dtype of the parameter. (In mixed
    precision they are in float32 because the optimizer gets parameters in float32.)
    Next: use `param.element_size()`, or the gradients of `model_bytes`.""")

exercise.edit("or-is-always-true", {"states = {": 'optimizer = "momentum" if optimizer == "momentum" else "adam"\n'
    "states = {"}, """
    You count the same for SGD as for Adam. If a condition reads `optimizer == "adam" or "adamw"`, it is always true:
    Python takes the text after `or` as a condition of its own, and a text that is not empty is true.
    Next: compare `optimizer` with each of the two names.""")

exercise.edit("one-more-for-sgd", {'"sgd": 0': '"sgd": 1', '"momentum": 1': '"momentum": 2'}, """
    For both kinds of SGD you count the bytes of the parameters once too often. The gradients exist with any optimizer,
    and are no part of its state. Next: what stays between two steps, without momentum and with it?""")

exercise.edit("gradients-too", {"[optimizer]": "[optimizer] + 1"}, """
    You count the bytes of the parameters once more than the optimizer keeps them: the gradients, perhaps. They exist
    with any optimizer, and are no part of its state. Next: count only what stays when gradients are freed.""")

exercise.edit("adamw-left-out", {'"adamw": 2': '"adamw": 0', ', "adamw")': ",)"}, """
    For "adamw" you count nothing. AdamW keeps what Adam keeps; only its decay of weights is different.
    Next: give both names the same bytes.""")

exercise.edit("nothing-kept", {"states * model_bytes(model)[\"gradients\"] + counts": "0"}, """
    You return 0 for every optimizer. If you measure one after a step: it makes state only for parameters that have a
    gradient, and without a backward there is none. Next: compute the bytes from the parameters, or give each parameter
    a gradient before the step.""")


@exercise.variant
def asks_torch(model: nn.Module, optimizer: str) -> int:
    model = copy.deepcopy(model)
    made: torch.optim.Optimizer
    if optimizer.startswith("adam"):
        made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer](model.parameters())
    else:
        made = torch.optim.SGD(model.parameters(), momentum=0.9 if optimizer == "momentum" else 0)
    for param in model.parameters():
        param.grad = torch.zeros_like(param) if param.requires_grad else None
    made.step()
    states = [value for state in made.state.values() for value in state.values()]
    return sum(state.nbytes for state in states if isinstance(state, torch.Tensor))


exercise.variant_edit("without-model-bytes", {
    GRADIENTS: "sum(p.nbytes for p in model.parameters() if p.requires_grad)"})
