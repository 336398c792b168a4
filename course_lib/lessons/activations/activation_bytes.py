"""The bytes that a layer keeps from forward to backward, measured."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, normal


class Gated(nn.Module):
    """A layer that keeps one storage through two views, a large storage through a small view, and a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.last = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, 1)
        self.register_buffer("mask", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.wide(self.norm(x)).chunk(2, dim=1)
        gated = (value * gate).masked_fill(gate < 0, 0.0)
        first: torch.Tensor = self.last((gated * self.mask)[0])
        return first


class LastToken(nn.Module):
    """A layer that keeps a storage as a whole and as a view of a different size, and uses a part of a parameter.

    Its buffer is in no state dict, and its input is not kept.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.fused = nn.Linear(width, 2 * width), nn.Parameter(torch.ones(3 * width, 2 * width))
        self.register_buffer("scale", torch.full((2 * width,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (self.first(-x) * self.scale).relu()
        return F.linear(hidden[-1:], self.fused.chunk(3)[1])


def make_relu(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


def make_last_token(width: int) -> nn.Module:
    """Return a layer whose child has the buffer."""
    return nn.Sequential(LastToken(width))


def make_gelus(width: int) -> nn.Module:
    """Return a layer in which the memory of a result that nothing keeps is used again."""
    return nn.Sequential(nn.Linear(width, width), *[nn.GELU() for _ in range(30)])


def make_gelu_first(width: int) -> nn.Module:
    """Return a layer that keeps its input only if that requires a gradient, and in training more than in evaluation."""
    return nn.Sequential(nn.GELU(), nn.Linear(width, 2 * width), nn.Dropout(), nn.Linear(2 * width, width))


def draw(rng: random.Random, number: int) -> Case:
    tokens, width = rng.randint(2, 4), rng.randint(2, 5)
    dtype = (torch.float32, torch.bfloat16, torch.float64)[number % 3]
    name, make = (("Linear, ReLU, Linear", make_relu), ("a gated layer with a mask", Gated))[number % 2]
    if number == 4:
        name, make, tokens, width = "Linear, 30 GELUs", make_gelus, 64, 64
    if number == 5:
        name = "Linear of -x, scaled by a buffer, ReLU, then a part of a fused weight for the last token"
        make, tokens = make_last_token, 3  # so that the buffer is smaller than the input
    if number > 5:
        name, make = "GELU, Linear, Dropout, Linear", make_gelu_first

    def args(rank: int) -> tuple[nn.Module, torch.Tensor]:
        x = normal(tokens, width, seed=number, dtype=dtype)
        return make(width).to(dtype).train(number != 7), x.requires_grad_(number == 6)

    what = f"{name}, {tokens} tokens, width {width}, {str(dtype)[6:]}"
    what += ", where memory that is freed during forward is used again" * (number == 4)
    what += ", of an input that requires a gradient" * (number == 6)
    what += ", in evaluation" * (number == 7)
    return Case(world_size=0, args=args, what=what)


exercise = Exercise("activations.activation_bytes", title="What a layer keeps", draw=draw, inputs_matter=False,
    case_count=8, task="""
    Call `layer(x)`, and return the bytes that autograd keeps for backward. Autograd saves tensors, and several of
    them can share one storage: count each storage once, with all of its bytes. Leave out the storages of the layer's
    parameters and buffers, which exist anyway. The input `x` counts if it is saved.""", hints="""
    Which operations need their input to compute a gradient? Which of them need their output?

    `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is a context. In it, autograd calls `pack(tensor)` for each
    tensor that it saves, and `unpack` in backward. What `pack` returns is saved instead of the tensor. If it returns
    nothing, the tensor is freed during forward, and a later one may get its address.

    `tensor.untyped_storage()` is the memory behind a tensor, and `storage.nbytes()` its size. Two storages are the same
    if their `data_ptr()` is.

    ```python
    own = {t.untyped_storage().data_ptr() for t in [*layer.parameters(), ...]}
    saved = {}

    def pack(tensor):
        ...
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    ```
    """, explanation="""
    A view keeps the whole storage alive, so storages are what memory consists of: adding up tensors counts some bytes
    twice and misses others. A linear layer saves its input, to compute the gradient of its weight. A ReLU saves its
    output, which is also the input of the next layer: one storage. A GELU saves its input, so GELU and the next layer
    keep two. An addition saves nothing. The dictionary holds the storages themselves, so that none is freed during
    forward and its address given to a different one.""")


@exercise
def activation_bytes(layer: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes that `layer(x)` keeps for backward, without parameters and buffers."""
    own = {t.untyped_storage().data_ptr() for t in [*layer.parameters(), *layer.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    return sum(storage.nbytes() for storage in kept.values())


KEY = "kept[storage.data_ptr()]"
CALL = "lambda tensor: tensor):\n    layer(x)\n"

exercise.edit("every-saved-tensor", {KEY: "kept[len(kept)]"}, """
    You count a storage each time a tensor of it is saved. A ReLU and the layer after it save the same storage.
    Next: remember each storage by its `data_ptr()`.""")

exercise.edit("parameters-too", {"not in own": "not in ()"}, """
    You count the layer's parameters. Autograd saves them, too, but they are in memory anyway.
    Next: leave out storages of parameters and buffers.""")

exercise.edit("parameters-by-type", {"storage.data_ptr() not in own": "not isinstance(tensor, nn.Parameter)"}, """
    You leave out tensors that are parameters. A linear layer saves its weight transposed: a new tensor with the
    parameter's storage. Next: compare storages, not tensors: two tensors share one if it begins at the same
    address.""")

exercise.edit("parameters-by-address", {"t.untyped_storage().data_ptr() for t in": "t.data_ptr() for t in",
    "storage.data_ptr() not in own": "tensor.data_ptr() not in own"}, """
    You leave out tensors that begin at the address of a parameter or a buffer. A part of a parameter, such as one third
    of a fused weight, begins at a different address of the same storage.
    Next: compare the addresses at which the storages begin.""")

exercise.edit("buffers-too", {"[*layer.parameters(), *layer.buffers()]": "layer.parameters()"}, """
    You count the layer's buffers. They are in memory whether the layer runs or not.
    Next: leave out `layer.buffers()`, as you leave out the parameters.""")

exercise.edit("some-buffers-too", {"layer.buffers()": "layer.buffers(recurse=False)"}, """
    You count a buffer that is in no state dict, or that belongs to a child of the layer. `layer.state_dict()` lacks
    the first kind, and `layer.buffers(recurse=False)` the second.
    Next: leave out all of `layer.buffers()`.""")

exercise.edit("size-of-the-view", {"= storage\n": "= tensor.clone().untyped_storage()\n"}, """
    You count the bytes of the saved tensor. It may be a view of a larger storage, and keeps all of it in memory.
    Next: count the bytes of the storage.""")

exercise.edit("elements", {": dict[int, torch.UntypedStorage]": "", "] = storage\n": "] = tensor.numel()\n",
    "storage.nbytes() for storage in kept.values()": "kept.values()"}, """
    You count the elements of saved tensors, not the bytes of their storages. An element takes 2 bytes in bfloat16, and
    8 in float64. Next: add up the bytes of the storages.""")

exercise.edit("everything-saved", {KEY: "kept[len(kept)]", "= storage\n": "= tensor.clone().untyped_storage()\n",
    "not in own": "not in ()"}, """
    You add up all saved tensors: also the parameters, which exist anyway, and a storage twice if two tensors share it.
    Next: count storages instead of tensors, each storage once, and leave out those of parameters and buffers.""")

exercise.edit("each-view-its-storage", {KEY: "kept[tensor.data_ptr()]"}, """
    You tell tensors apart by the address of their first element. Two views of one storage can begin at different
    addresses, and you then count the storage twice. Next: compare the addresses at which the storages begin.""")

exercise.edit("each-shape-its-storage", {KEY: "kept[storage.data_ptr(), tensor.shape]"}, """
    You count a storage once for each shape or size of the tensors that share it. A view can have a different shape.
    Next: tell storages apart by their address only.""")

exercise.edit("without-the-input", {"*layer.buffers()]": "*layer.buffers(), x]"}, """
    You leave out the input. It is a result of the layer before, and stays in memory because this layer saves it.
    Next: leave out only parameters and buffers.""")

exercise.edit("input-always", {"UntypedStorage] = {}": "UntypedStorage] = {x.untyped_storage().data_ptr(): "
    "x.untyped_storage()}"}, """
    You count the input in every case. A layer that begins with `-x`, for example, does not save it.
    Next: count `x` only if autograd saves it.""")

exercise.edit("a-detached-input", {CALL: CALL.replace("(x)", "(x.detach())")}, """
    You detach the input. If the input requires a gradient, autograd saves what computes it, and you do not count that.
    Next: call `layer(x)` with the input that the function is given.""")

exercise.edit("an-input-that-requires-a-gradient", {CALL:
    CALL.replace("(x)", "(x.detach().requires_grad_())")}, """
    You let the input require a gradient. Autograd then also saves what computes this gradient.
    Next: call `layer(x)` with the input that the function is given.""")

exercise.edit("in-evaluation", {"with torch.autograd": "layer.eval()\nwith torch.autograd"}, """
    You measure the layer in evaluation. Dropout does nothing there; in training it keeps a mask.
    Next: call the layer in the mode in which it is.""")

exercise.edit("in-training", {"with torch.autograd": "layer.train()\nwith torch.autograd"}, """
    You measure the layer in training, where dropout keeps a mask. In evaluation it does nothing.
    Next: call the layer in the mode in which it is.""")

exercise.edit("output-too", {"layer(x)\n": "pack(layer(x))\n"}, """
    You count the layer's output. This layer does not save it; the layer that comes next may.
    Next: count only what autograd saves while `layer(x)` runs.""")

exercise.variant_edit("sizes-only", {": dict[int, torch.UntypedStorage]": "", "] = storage\n": "] = storage.nbytes()\n",
    "storage.nbytes() for storage in kept.values()": "kept.values()"})


@exercise.variant
def by_tensors(layer: nn.Module, x: torch.Tensor) -> int:
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or len(saved), lambda i: saved[i - 1]):  # type: ignore[func-returns-value]
        layer(x).sum().backward()
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in saved}
    for tensor in itertools.chain(layer.parameters(), layer.buffers()):
        storages.pop(tensor.untyped_storage()._cdata, None)
    return sum(map(len, storages.values()))
