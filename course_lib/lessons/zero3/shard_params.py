"""Keep one shard of a module's parameters, and free the memory of the whole."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...exercises import Exercise, lets_go
from ...meter import mark
from .data import Holder, Shapes, draw_params

AFTER = "once the parameters are sharded"


def shard_and_parameters(
    solution: Callable[[list[nn.Parameter]], Any], shapes: Shapes, dtype: torch.dtype, seed: int
) -> Any:
    module = Holder(shapes, dtype, seed)
    params = list(module.params)
    shard = solution(params)
    mark(AFTER)
    if not isinstance(shard, Tensor):
        return shard
    return {
        "the shard": shard,
        "elements in each parameter": [param.numel() for param in params],
        "elements in each of the module's parameters": [param.numel() for param in module.params],
        "dtypes of the parameters": [str(param.dtype) for param in params],
        "whether each parameter requires a gradient": [param.requires_grad for param in params],
        "whether the shard is a leaf": shard.is_leaf,
    }


exercise = Exercise("zero3.shard_params", title="Keep a shard of the parameters", draw=draw_params,
    trial=shard_and_parameters, measured=True, inputs_matter=False, tolerance=0, rules=[lets_go(AFTER)], task="""
    Join the parameters into one flat tensor, in their order, with zeros behind the last, so that its length is a
    multiple of the world size. Cut it into world size shards, and return this rank's shard: rank 0 has the first. An
    optimizer will update the shard, so it must be a leaf: autograd does not link it to the parameters. Leave each of
    the module's parameters empty: 0 elements, the same dtype. The memory of the whole must be freed; the check measures
    it.
    """, hints="""
    Which elements does this rank still need when the function returns?

    Join, pad, empty, cut. A slice is a view and keeps the whole memory; a copy does not. A parameter's values are in
    `param.data`, and you can assign a different tensor to it.

    `torch.cat`, `F.pad(flat, (0, missing))`, `.chunk(world_size)`, `.clone()`, `param.data.new_empty(0)`. The number of
    elements missing to the next multiple is `-numel % world_size`.

    ```python
    flat = torch.cat([param.detach().flatten() for ...])
    padded = F.pad(flat, (0, ...))
    for param in params:
        param.data = ...
    return padded.chunk(...)[...].clone()
    ```
    """, explanation="""
    Four steps: join, pad, empty, cut. `chunk` gives views. `clone` gives the shard memory of its own; without it, the
    rank would keep all of the memory instead of 1/N. When the function returns, `flat` and `padded` are freed, and the
    memory of the whole with them. A shard may begin in the middle of a parameter. So there are at most N − 1 elements
    of padding, however many parameters there are. `detach` keeps autograd from recording how the shard was made.""")


@exercise
def shard_params(params: list[nn.Parameter]) -> Tensor:
    """Return this rank's shard of the parameters, and leave each of them empty.

    The parameters are flattened and joined, with zeros behind the last, so that all shards have the
    same size. The shard is [shard_numel], on memory of its own. All params have the same dtype.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([param.detach().flatten() for param in params])
    padded = F.pad(flat, (0, -flat.numel() % world_size))
    for param in params:
        param.data = param.data.new_empty(0)
    return padded.chunk(world_size)[rank].clone()


exercise.edit("view-of-the-whole", {".clone()": ""}, """
    Your shard is a view of the flat tensor, as every slice and every chunk is. A view keeps the whole memory.
    Next: give the shard memory of its own.""")

exercise.edit("parameters-kept", {"for param in params:\nparam.data = param.data.new_empty(0)\n": ""}, """
    The shard is right, but the parameters still have all of their elements: their `numel()` is not 0.
    Next: assign an empty tensor to the `param.data` of each.""")

exercise.edit("emptied-by-a-view", {"param.data.new_empty(0)": "param.data.flatten()[:0]"}, """
    The parameters have no elements any more, but something still refers to the memory of the whole and keeps it. It may
    be an empty slice, an attribute, or a variable outside the function. Next: assign a new tensor of 0 elements to
    `param.data`, not a slice of the old one, and store the flat tensor nowhere.""")

exercise.edit("emptied-as-float32", {"param.data.new_empty(0)": "torch.empty(0)"}, """
    You assign an empty float32 tensor to each `param.data`, and the parameter's dtype becomes float32, too. Code that
    reads the dtype later gets the wrong one. Next: make the empty tensor from `param.data`, with `new_empty`.""")

exercise.edit("new-parameters", {"for param in params:\nparam.data = param.data.new_empty(0)":
    "params[:] = [nn.Parameter(param.data.new_empty(0)) for param in params]"}, """
    You put new parameters into the list. The module still has its own parameters, and these hold all of their elements.
    Next: keep the parameters in the list, and assign an empty tensor to the `param.data` of each.""")

exercise.edit("not-detached", {".detach()": ""}, """
    Autograd recorded how the shard was made from the parameters, so the shard is not a leaf. An optimizer refuses to
    update such a tensor, and its `.grad` stays None.
    Next: take the values without their history.""")

exercise.edit("freezes", {"flat = ": "for param in params:\n    param.requires_grad_(False)\nflat = "}, """
    You set `requires_grad` to False on the parameters, and it stays so. Backward then makes no gradients for them, and
    nothing is trained. Next: take the values without their history, and leave the parameters' `requires_grad` as it is.
    """)

exercise.edit("remainder-dropped", {"F.pad(flat, (0, -flat.numel() % world_size))":
    "flat[: flat.numel() // world_size * world_size]"}, """
    Each of your shards has `numel // world_size` elements. The remainder is on no rank, so these parameters are lost.
    Next: pad the flat tensor to a multiple of the world size before you cut it.""")

exercise.edit("each-alone", {
    "flat = torch.cat([param.detach().flatten() for param in params])\n"
    "padded = F.pad(flat, (0, -flat.numel() % world_size))":
    "padded = [F.pad(param.detach().flatten(), (0, -param.numel() % world_size)) for param in params]",
    "padded.chunk(world_size)[rank].clone()": "torch.cat([each.chunk(world_size)[rank] for each in padded])"}, """
    You pad and cut each parameter separately. FSDP2 does this too, but the task asks for one flat tensor: its shard is
    one slice, and it needs little padding. Next: join the parameters first, then pad and cut.""")

exercise.edit("dealt-like-cards", {"padded.chunk(world_size)[rank]": "padded[rank::world_size]"}, """
    Each of your ranks takes every N-th element. An all-gather joins whole shards, one after the other, so it would not
    restore the order. Next: take neighbouring elements.""")


@exercise.variant
def with_a_slice(params: list[nn.Parameter]) -> Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shard_numel = (sum(param.numel() for param in params) + world_size - 1) // world_size
    flat = params[0].new_zeros(shard_numel * world_size)
    offset = 0
    with torch.no_grad():
        for param in params:
            flat[offset : offset + param.numel()] = param.view(-1)
            offset += param.numel()
            param.data = torch.tensor([], dtype=param.dtype)
        return torch.clone(flat[rank * shard_numel : (rank + 1) * shard_numel])


exercise.variant_edit("as-a-parameter", {"padded.chunk(world_size)[rank].clone()":
    "nn.Parameter(padded.view(world_size, -1)[rank].clone())"})
