"""All parameters in one flat tensor, padded so that it can be cut into equal shards."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ...meter import mark
from ..checking.rules import holds_no_more
from ..declare import Case, Exercise, Mistake, Solution
from . import stubs

Params = list[nn.Parameter]


def flatten(params: list[nn.Parameter], world_size: int) -> torch.Tensor:
    """Return a flat tensor with the values of all `params` in order, of which they become views."""
    values = torch.cat([param.detach().flatten() for param in params])
    flat_param = torch.cat([values, values.new_zeros(-len(values) % world_size)])
    end = 0
    for param in params:
        begin, end = end, end + param.numel()
        param.data = flat_param[begin:end].view_as(param)
    return flat_param


def laid_out(params: Params, flat_param: torch.Tensor) -> torch.Tensor:
    """Copy the values of `params` into `flat_param`, and let them be views of it."""
    end = 0
    for param in params:
        begin, end = end, end + param.numel()
        flat_param[begin:end] = param.detach().flatten()
        param.data = flat_param[begin:end].view_as(param)
    return flat_param


def room(params: Params, padding: int) -> torch.Tensor:
    return torch.zeros(sum(param.numel() for param in params) + padding, dtype=params[0].dtype)


def no_padding(params: Params, world_size: int) -> torch.Tensor:
    return laid_out(params, room(params, 0))


def always_pads(params: Params, world_size: int) -> torch.Tensor:
    numel = sum(param.numel() for param in params)
    return laid_out(params, room(params, world_size - numel % world_size))


def left_over_for_missing(params: Params, world_size: int) -> torch.Tensor:
    return laid_out(params, room(params, sum(param.numel() for param in params) % world_size))


def a_whole_world_of_padding(params: Params, world_size: int) -> torch.Tensor:
    return laid_out(params, room(params, world_size))


def rounds_down(params: Params, world_size: int) -> torch.Tensor:
    numel = sum(param.numel() for param in params)
    return laid_out(params, torch.zeros(numel // world_size * world_size, dtype=params[0].dtype))


def copies(params: Params, world_size: int) -> torch.Tensor:
    values = torch.cat([param.detach().flatten() for param in params])
    return torch.cat([values, values.new_zeros(-len(values) % world_size)])


def pads_each(params: Params, world_size: int) -> torch.Tensor:
    places = [0, *accumulate(param.numel() + -param.numel() % world_size for param in params)]
    flat_param = torch.zeros(places[-1], dtype=params[0].dtype)
    for param, begin in zip(params, places, strict=False):
        laid_out([param], flat_param[begin:])
    return flat_param


def new_parameters(params: Params, world_size: int) -> torch.Tensor:
    flat_param, end = copies(params, world_size), 0
    for number, param in enumerate(params):
        begin, end = end, end + param.numel()
        params[number] = nn.Parameter(flat_param[begin:end].view_as(param))
    return flat_param


def all_from_the_front(params: Params, world_size: int) -> torch.Tensor:
    flat_param = copies(params, world_size)
    for param in params:
        param.data = flat_param[: param.numel()].view_as(param)
    return flat_param


def values_lost(params: Params, world_size: int) -> torch.Tensor:
    flat_param, end = torch.zeros_like(copies(params, world_size)), 0
    for param in params:
        begin, end = end, end + param.numel()
        param.data = flat_param[begin:end].view_as(param)
    return flat_param


def flat_views(params: Params, world_size: int) -> torch.Tensor:
    flat_param, end = copies(params, world_size), 0
    for param in params:
        begin, end = end, end + param.numel()
        param.data = flat_param[begin:end]
    return flat_param


def always_float32(params: Params, world_size: int) -> torch.Tensor:
    numel = sum(param.numel() for param in params)
    return laid_out(params, torch.zeros(numel + -numel % world_size))


def one_shard(params: Params, world_size: int) -> torch.Tensor:
    return flatten(params, world_size).view(world_size, -1)[0]


def in_rows(params: Params, world_size: int) -> torch.Tensor:
    return flatten(params, world_size).view(world_size, -1)


def the_last_first(params: Params, world_size: int) -> torch.Tensor:
    return flatten(params[::-1], world_size)


def copies_piece_by_piece(params: Params, world_size: int) -> torch.Tensor:
    return laid_out(params, room(params, -sum(param.numel() for param in params) % world_size))


def with_torch_utils(params: Params, world_size: int) -> torch.Tensor:
    with torch.no_grad():
        values = parameters_to_vector(params)
        flat_param = pad(values, (0, -(-values.numel() // world_size) * world_size - values.numel()))
        vector_to_parameters(flat_param, params)
    return flat_param


def draw(rng: random.Random, number: int) -> Case:
    # Elements in all, and shards: with something missing, with nothing, with more missing than left over.
    numel, world_size = ((10, 4), (12, 4), (13, 3), (9, 2), (7, 8), (11, 1))[number % 6]
    dtype, seed = (torch.float32, torch.float64)[number // 3 % 2], rng.getrandbits(32)
    width = rng.randint(1, 2)
    shapes = [(2, width), (1,), (), (numel - 2 * width - 2,)]

    def args(rank: int) -> tuple[Params, int]:
        generator = torch.Generator().manual_seed(seed)
        return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes], world_size

    about = f"parameters of {numel} elements in all, for {world_size} shards, {dtype}"
    return Case(world_size=0, args=args, about=about)


def flat_and_views(solution: Solution, params: Params, world_size: int) -> Any:
    """The flat tensor; and what the parameters are when other numbers are written into it."""
    before = list(params)
    flat_param = solution(params, world_size)
    mark("when it is flat")
    if flat_param is None:
        return None
    if not isinstance(flat_param, torch.Tensor):
        return {"what was returned": f"a {type(flat_param).__name__}"} | dict.fromkeys(_WHAT_IS_COMPARED)
    flat_values, values = flat_param.detach().clone(), [param.detach().clone() for param in before]
    flat_param.detach().copy_(torch.arange(flat_param.numel()).view_as(flat_param))
    written = [param.detach() for param in before]
    same_objects = all(a is b for a, b in zip(params, before, strict=True))
    compared = zip(_WHAT_IS_COMPARED, (flat_values, values, written, same_objects), strict=True)
    return {"what was returned": "a tensor"} | dict(compared)


_WHAT_IS_COMPARED = (
    "the flat tensor",
    "the parameters",
    "the parameters once 0, 1, 2, ... is written into the flat tensor",
    "the list has the same parameters as before",
)


FLATTEN = Exercise(
    name="zero1.flatten",
    title="One flat tensor for all",
    task="Put the values of all parameters into one flat tensor, one after the other, with zeros at the end up to the "
    "next multiple of `world_size`. The parameters become views of it: who writes into the flat tensor writes into "
    "them. Their old memory is free from then on.",
    stub=stubs.flatten,
    reference=flatten,
    draw=draw,
    trial=flat_and_views,
    inputs_matter=False,
    measured=True,
    rules=[holds_no_more("parameters", "when it is flat"), holds_no_more("other", "when it is flat")],
    variants={"copies-piece-by-piece": copies_piece_by_piece, "with-torch-utils": with_torch_utils},
    mistakes=[
        Mistake(
            id="no-padding",
            solution=no_padding,
            told="The flat tensor ends with the last parameter. Where its length does not divide by the world size, it "
            "cannot be cut into equal shards.",
            action="Append zeros: `-numel % world_size` are missing to the next multiple.",
        ),
        Mistake(
            id="always-pads",
            solution=always_pads,
            told="Where the length divides already, you append a whole world size of zeros.",
            action="Use `-numel % world_size`, which is 0 there.",
        ),
        Mistake(
            id="left-over-for-missing",
            solution=left_over_for_missing,
            told="You append as many zeros as are left over. What fills up is what is missing.",
            action="Use `-numel % world_size` for `numel % world_size`.",
        ),
        Mistake(
            id="a-whole-world-of-padding",
            solution=a_whole_world_of_padding,
            told="You always append world size zeros. That makes no length divide that did not before.",
            action="Append what is missing to the next multiple: `-numel % world_size`.",
        ),
        Mistake(
            id="rounds-down",
            solution=rounds_down,
            told="`numel // world_size * world_size` rounds down: there is no room for the last elements.",
            action="Round up: `-(-numel // world_size) * world_size`.",
        ),
        Mistake(
            id="copies",
            solution=copies,
            told="The flat tensor has the right values, and the parameters have memory of their own as before. What an "
            "optimizer writes into the one never reaches the other, and there are two copies of the model.",
            action="Let each parameter be a view of its piece: assign to `param.data`, without a clone.",
        ),
        Mistake(
            id="pads-each",
            solution=pads_each,
            told="You pad every parameter by itself. Then padding stands between them, and there is more of it than "
            "needed.",
            action="Put the parameters one right after the other, and pad once, at the end.",
        ),
        Mistake(
            id="new-parameters",
            solution=new_parameters,
            told="You put new parameters into the list. The model still has the old ones, and it is the model that "
            "trains.",
            action="Keep the parameter and change its memory: `param.data = ...`.",
        ),
        Mistake(
            id="all-from-the-front",
            solution=all_from_the_front,
            told="Every parameter is a view of the front of the flat tensor, so they all share the first elements.",
            action="Begin each view where the one before ends.",
        ),
        Mistake(
            id="values-lost",
            solution=values_lost,
            told="The parameters are views of a tensor of zeros: their values were never copied into it.",
            action="Copy the values into the flat tensor before the parameter becomes a view of it.",
        ),
        Mistake(
            id="flat-views",
            solution=flat_views,
            told="The parameters have become flat themselves, and the model needs their shapes.",
            action="Give each piece the shape of its parameter: `.view_as(param)`.",
        ),
        Mistake(
            id="always-float32",
            solution=always_float32,
            told="The flat tensor is float32 whatever the parameters are: `torch.zeros` makes float32 unless it is "
            "told otherwise.",
            action="Pass the parameters' dtype, or use `torch.cat`, which keeps it.",
        ),
        Mistake(
            id="one-shard",
            solution=one_shard,
            told="You return one shard. Asked for is the whole, of which every rank will take its own.",
            action="Return the flat tensor.",
        ),
        Mistake(
            id="in-rows",
            solution=in_rows,
            told="You return a row for each rank. The values are right; asked for is a flat tensor.",
            action="Return it without `.view(world_size, -1)`.",
        ),
        Mistake(
            id="the-last-first",
            solution=the_last_first,
            told="The parameters lie in the flat tensor from the last to the first.",
            action="Keep the order of `params`.",
        ),
    ],
    hints=[
        "Two names for the same memory: what has to be true of a parameter and of a piece of the flat tensor?",
        "`torch.cat` copies the values into new memory. A slice of a tensor is a view of it, and a parameter can be "
        "given other memory while it stays the same object. When nobody uses the old memory, it is freed.",
        "`torch.cat`, `values.new_zeros(-len(values) % world_size)`, `flat_param[begin:end].view_as(param)`, "
        "`param.data = ...`.",
        "```python\nvalues = torch.cat([...])\nflat_param = torch.cat([values, ...])\nend = 0\nfor param in params:\n"
        "    begin, end = end, ...\n    param.data = ...\nreturn flat_param\n```",
    ],
    explanation="Assigning to `param.data` gives a parameter other memory: model, autograd and hooks keep the object "
    "that they know. Nothing refers to the old memory any more, so it is freed, and the model takes as many bytes as "
    "before, but for the padding. (While `torch.cat` copies, both are there: real engines flatten bucket by bucket.) "
    "Equal shards are what reduce-scatter and all-gather want, and cuts may fall in the middle of a weight: Adam "
    "treats every element by itself and does not mind.",
)
