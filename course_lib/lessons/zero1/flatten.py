"""All parameters in one flat tensor, padded so that it can be cut into equal shards."""

import random
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ...exercises import Case, Exercise, Solution, holds_no_more
from ...meter import mark

Params = list[nn.Parameter]


def draw(rng: random.Random, number: int) -> Case:
    # All elements, and shards: some elements missing; none missing; more missing than left over.
    numel, world_size = ((10, 4), (12, 4), (13, 3), (9, 2), (7, 8), (11, 1))[number % 6]
    dtype, seed = (torch.float32, torch.float64)[number // 3 % 2], rng.getrandbits(32)
    width, frozen = rng.randint(1, 2), number % 6 in (2, 5)
    shapes = [(2, width), (1,), (), (numel - 2 * width - 2,)]

    def args(rank: int) -> tuple[Params, int]:
        generator = torch.Generator().manual_seed(seed)
        params = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
        params[0].requires_grad_(not frozen)
        return params, world_size

    what = f"parameters of {numel} elements in all, for {world_size} shards, {dtype}" + ", one frozen" * frozen
    return Case(world_size=0, args=args, what=what)


COMPARED = (
    "the flat tensor",
    "the parameters",
    "the parameters once 0, 1, 2, ... is written into the flat tensor",
    "the list has the same parameters as before",
    "the parameters' requires_grad",
)


def flat_and_views(solution: Solution, params: Params, world_size: int) -> Any:
    """Return the flat tensor, and the parameters before and after different numbers are written into it."""
    before = list(params)
    flat_param = solution(params, world_size)
    mark("when it is flat")
    if flat_param is None:
        return None
    if not isinstance(flat_param, torch.Tensor):
        return {"what was returned": f"a {type(flat_param).__name__}"} | dict.fromkeys(COMPARED)
    kind = "a tensor" if flat_param.grad_fn is None else "a tensor with a grad_fn"
    flat_values, values = flat_param.detach().clone(), [param.detach().clone() for param in before]
    flat_param.detach().copy_(torch.arange(flat_param.numel()).view_as(flat_param))
    written = [param.detach() for param in before]
    same_objects = all(a is b for a, b in zip(params, before, strict=True))
    trainable = [param.requires_grad for param in before]
    compared = zip(COMPARED, (flat_values, values, written, same_objects, trainable), strict=True)
    return {"what was returned": kind} | dict(compared)


exercise = Exercise("zero1.flatten", title="One flat tensor for all", draw=draw, trial=flat_and_views,
    inputs_matter=False, measured=True, tolerance=0,
    rules=[holds_no_more("parameters", "when it is flat"), holds_no_more("other", "when it is flat")], task="""
    Put the values of all parameters into one flat tensor, one after the other, with zeros at the end up to the next
    multiple of `world_size`. The parameters become views of this tensor: a write into the flat tensor changes them.
    Their old memory becomes free. The flat tensor itself is no part of autograd's graph.""", hints="""
    A parameter and a piece of the flat tensor share their memory. What has to be true of the two?

    `torch.cat` copies the values into new memory. A slice of a tensor is a view of it. A parameter can get different
    memory and stay the same object. When nothing refers to the old memory, it is freed.

    `torch.cat`, `values.new_zeros(-len(values) % world_size)`, `flat_param[begin:end].view_as(param)`,
    `param.data = ...`.

    ```python
    values = torch.cat([...])
    flat_param = torch.cat([values, ...])
    end = 0
    for param in params:
        begin, end = end, ...
        param.data = ...
    return flat_param
    ```
    """, explanation="""
    An assignment to `param.data` gives a parameter different memory: model, autograd and hooks keep the same object.
    Nothing refers to the old memory any more, so it is freed, and the model takes as many bytes as before, plus the
    padding. But while `torch.cat` copies, both exist, so real engines flatten bucket by bucket. Reduce-scatter and
    all-gather need equal shards. A cut may be in the middle of a weight, because Adam updates every element by itself,
    so the cut changes no result.""")


@exercise
def flatten(params: list[nn.Parameter], world_size: int) -> torch.Tensor:
    """Return a flat tensor with the values of all `params`, in order, and make them views of it.

    Zeros at the end fill it up to the next multiple of `world_size`.
    """
    values = torch.cat([param.detach().flatten() for param in params])
    flat_param = torch.cat([values, values.new_zeros(-len(values) % world_size)])
    end = 0
    for param in params:
        begin, end = end, end + param.numel()
        param.data = flat_param[begin:end].view_as(param)
    return flat_param


exercise.edit("no-padding", {"-len(values) % world_size": "0"}, """
    The flat tensor ends with the last parameter. If the world size does not divide its length, it cannot be cut into
    equal shards. Next: append as many zeros as are missing to the next multiple.""")

ALWAYS = """
    If the world size divides the length already, you append a whole world size of zeros.
    Next: count how many elements are missing to the next multiple: in this case none."""

exercise.edit("always-pads", {"-len(values) % world_size": "world_size - len(values) % world_size"}, ALWAYS)

exercise.edit("always-pads-in-float32", {"values.new_zeros(-len(values) % world_size)])":
    "values.new_zeros(world_size - len(values) % world_size)]).float()"}, ALWAYS)

exercise.edit("always-float32", {"values.new_zeros(-len(values) % world_size)])":
    "values.new_zeros(-len(values) % world_size)]).float()"}, """
    Your flat tensor is always in float32, torch's default. Parameters can have a different dtype.
    Next: give the flat tensor the dtype of the parameters.""")

exercise.edit("left-over-for-missing", {"-len(values) %": "len(values) %"}, """
    You append as many zeros as elements are left over, `numel % world_size`. The padding is what is missing to the next
    multiple. Next: count how many elements are missing to the next multiple, and append so many zeros.""")

exercise.edit("copies", {"end = 0\nfor param in params:\nbegin, end = end, end + param.numel()\n"
    "param.data = flat_param[begin:end].view_as(param)\n": ""}, """
    The flat tensor has the right values, but the parameters share no memory with it. An update of the flat tensor does
    not reach them, and there are two copies of the model.
    Next: make each parameter a view of its piece of the tensor that you return: assign to `param.data`, without a copy
    before or after.""")

exercise.edit("pads-each", {
    "[param.detach().flatten() for": "[pad(param.detach().flatten(), (0, -param.numel() % world_size)) for",
    "end + param.numel()": "end + param.numel() + -param.numel() % world_size",
    "flat_param[begin:end]": "flat_param[begin : begin + param.numel()]"}, """
    You pad every parameter by itself, so there is padding between them, and more of it than needed.
    Next: put each parameter right after the one before, and pad once, at the end.""")

exercise.edit("new-parameters", {"for param in params:": "for number, param in enumerate(params):",
    "param.data = flat_param[begin:end].view_as(param)":
    "params[number] = nn.Parameter(flat_param[begin:end].view_as(param))"}, """
    You put new parameters into the list. The model still has the old ones, and the model is what trains.
    Next: keep each parameter and change its memory, by an assignment to `param.data`.""")

exercise.edit("all-from-the-front", {"begin, end = end, end + param.numel()": "begin, end = 0, param.numel()"}, """
    Every parameter is a view of the front of the flat tensor, so all of them share the first elements.
    Next: begin each view where the view before it ends.""")

exercise.edit("inside-autograd", {".detach()": ""}, """
    Autograd was recording while you made the flat tensor from the parameters. The tensor has a `grad_fn`, so autograd
    records every later write into it, too. Next: take the values without their history.""")

exercise.edit("freezes", {"param.detach().flatten()": "param.requires_grad_(False).flatten()"}, """
    You set `requires_grad` to False, and the parameters get no gradients from then on, so the model does not train.
    Next: leave `requires_grad` as it is; take the values without their history in a different way.""")


@exercise.variant
def copies_piece_by_piece(params: Params, world_size: int) -> torch.Tensor:
    numel, end = sum(param.numel() for param in params), 0
    flat_param = torch.zeros(numel + -numel % world_size, dtype=params[0].dtype)
    for param in params:
        begin, end = end, end + param.numel()
        flat_param[begin:end] = param.detach().flatten()
        param.data = flat_param[begin:end].view_as(param)
    return flat_param


@exercise.variant
def with_torch_utils(params: Params, world_size: int) -> torch.Tensor:
    with torch.no_grad():
        values = parameters_to_vector(params)
        flat_param = pad(values, (0, -(-values.numel() // world_size) * world_size - values.numel()))
        vector_to_parameters(flat_param, params)
    return flat_param
