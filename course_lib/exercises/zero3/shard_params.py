"""A module's parameters become one shard, and the memory of the whole is freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...meter import mark
from ..checking.rules import lets_go
from ..declare import Exercise, Mistake
from . import stubs, unit
from .data import Holder, Shapes, draw_params

Params = list[nn.Parameter]


def padded_flat(params: Params) -> Tensor:
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    return F.pad(flat, (0, -flat.numel() % dist.get_world_size()))


def empty(params: Params) -> None:
    for param in params:
        param.data = torch.empty(0, dtype=param.dtype)


def view_of_the_whole(params: Params) -> Tensor:
    flat = padded_flat(params)
    empty(params)
    return flat.chunk(dist.get_world_size())[dist.get_rank()]


def parameters_kept(params: Params) -> Tensor:
    return padded_flat(params).chunk(dist.get_world_size())[dist.get_rank()].clone()


def emptied_by_a_view(params: Params) -> Tensor:
    shard = parameters_kept(params)
    for param in params:
        param.data = param.data.reshape(-1)[:0]
    return shard


def new_parameters(params: Params) -> Tensor:
    shard = parameters_kept(params)
    params[:] = [nn.Parameter(torch.empty(0, dtype=param.dtype)) for param in params]
    return shard


def not_detached(params: Params) -> Tensor:
    flat = torch.cat([param.flatten() for param in params])
    empty(params)
    return F.pad(flat, (0, -flat.numel() % dist.get_world_size())).chunk(dist.get_world_size())[dist.get_rank()].clone()


def memory_taken_away(params: Params) -> Tensor:
    shard = parameters_kept(params)
    for param in params:
        param.data.untyped_storage().resize_(0)
    return shard


def padding_in_front(params: Params) -> Tensor:
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    padded = F.pad(flat, (-flat.numel() % dist.get_world_size(), 0))
    empty(params)
    return padded.chunk(dist.get_world_size())[dist.get_rank()].clone()


def remainder_dropped(params: Params) -> Tensor:
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    size = flat.numel() // dist.get_world_size()
    empty(params)
    return flat[dist.get_rank() * size : (dist.get_rank() + 1) * size].clone()


def last_rank_shorter(params: Params) -> Tensor:
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    size = -(-flat.numel() // dist.get_world_size())
    empty(params)
    return flat[dist.get_rank() * size : (dist.get_rank() + 1) * size].clone()


def last_rank_takes_the_rest(params: Params) -> Tensor:
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = flat.numel() // world_size
    empty(params)
    return flat[rank * size : None if rank == world_size - 1 else (rank + 1) * size].clone()


def each_alone(params: Params) -> Tensor:
    shards = [padded_flat([param]).chunk(dist.get_world_size())[dist.get_rank()] for param in params]
    empty(params)
    return torch.cat(shards)


def whole_parameters(params: Params) -> Tensor:
    mine = [param.detach().reshape(-1) for param in params[dist.get_rank() :: dist.get_world_size()]]
    shard = torch.cat([*mine, torch.empty(0, dtype=params[0].dtype)])
    empty(params)
    return shard


def dealt_like_cards(params: Params) -> Tensor:
    shard = padded_flat(params)[dist.get_rank() :: dist.get_world_size()].clone()
    empty(params)
    return shard


def first_shard_everywhere(params: Params) -> Tensor:
    shard = padded_flat(params).chunk(dist.get_world_size())[0].clone()
    empty(params)
    return shard


def next_ranks_shard(params: Params) -> Tensor:
    world_size = dist.get_world_size()
    shard = padded_flat(params).chunk(world_size)[(dist.get_rank() + 1) % world_size].clone()
    empty(params)
    return shard


def in_float32(params: Params) -> Tensor:
    flat = torch.cat([param.detach().reshape(-1) for param in params])
    padded = torch.cat([flat, torch.zeros(-flat.numel() % dist.get_world_size())])
    empty(params)
    return padded.chunk(dist.get_world_size())[dist.get_rank()].clone()


def with_a_slice(params: Params) -> Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    numel = sum(param.numel() for param in params)
    shard_numel = (numel + world_size - 1) // world_size
    flat = params[0].new_zeros(shard_numel * world_size)
    offset = 0
    with torch.no_grad():
        for param in params:
            flat[offset : offset + param.numel()] = param.view(-1)
            offset += param.numel()
            param.data = torch.tensor([], dtype=param.dtype)
        return torch.clone(flat[rank * shard_numel : (rank + 1) * shard_numel])


def piece_by_piece(params: Params) -> Tensor:
    world_size = dist.get_world_size()
    numels = [param.numel() for param in params]
    shard_numel = -(-sum(numels) // world_size)
    begin = dist.get_rank() * shard_numel
    shard = torch.zeros(shard_numel, dtype=params[0].dtype)
    offset = 0
    for param, numel in zip(params, numels, strict=True):
        first, last = max(begin, offset), min(begin + shard_numel, offset + numel)
        if first < last:
            shard[first - begin : last - begin] = param.data.flatten()[first - offset : last - offset]
        offset += numel
        param.data = param.data.new_empty(0)
    return shard


def as_a_parameter(params: Params) -> Tensor:
    flat = torch.nn.utils.parameters_to_vector(params).detach()
    missing = -flat.numel() % dist.get_world_size()
    flat = torch.cat([flat, flat.new_zeros(missing)])
    shard = nn.Parameter(flat.view(dist.get_world_size(), -1)[dist.get_rank()].clone())
    empty(params)
    return shard


AFTER = "once the parameters are sharded"


def shard_and_parameters(solution: Callable[[Params], Any], shapes: Shapes, dtype: torch.dtype, seed: int) -> Any:
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
        "whether the shard is a leaf": shard.is_leaf,
    }


SHARD_PARAMS = Exercise(
    name="zero3.shard_params",
    title="Keep a shard of the parameters",
    task="Put the parameters into one flat tensor, one after the other, with zeros behind the last so that its length "
    "is a multiple of the world size, and return the part of this rank: rank 0 has the first. An optimizer will update "
    "it, so it must be a leaf: autograd does not link it to the parameters. Leave each of the module's parameters "
    "empty, with 0 elements. The memory of the whole has to be freed: it is measured.",
    stub=stubs.shard_params,
    reference=unit.shard_params,
    draw=draw_params,
    trial=shard_and_parameters,
    measured=True,
    inputs_matter=False,
    rules=[lets_go(AFTER)],
    variants={"with-a-slice": with_a_slice, "piece-by-piece": piece_by_piece, "as-a-parameter": as_a_parameter},
    mistakes=[
        Mistake(
            id="view-of-the-whole",
            solution=view_of_the_whole,
            told="The shard is a view of the flat tensor, as a slice or a chunk always is, and a view keeps the whole "
            "in memory.",
            action="Give the shard memory of its own: `.clone()`.",
        ),
        Mistake(
            id="parameters-kept",
            solution=parameters_kept,
            told="The shard is right, and the parameters still hold all of their elements beside it.",
            action="Give each parameter an empty tensor: `param.data = ...`.",
        ),
        Mistake(
            id="emptied-by-a-view",
            solution=emptied_by_a_view,
            told="The parameters have no elements any more, but something still refers to their old memory, and that "
            "keeps it: an empty slice of it, an attribute, or a variable outside the function.",
            action="Assign a new tensor of 0 elements to `param.data`, not a slice of the old one, and keep the flat "
            "tensor nowhere.",
        ),
        Mistake(
            id="new-parameters",
            solution=new_parameters,
            told="You put new parameters into the list. The module still has its own parameters, and they still hold "
            "all of their elements.",
            action="Keep the parameters in the list, and assign an empty tensor to `param.data` of each.",
        ),
        Mistake(
            id="not-detached",
            solution=not_detached,
            told="Autograd recorded how the shard was made from the parameters, so the shard is not a leaf. An "
            "optimizer refuses to update such a tensor, and no gradient arrives in its `.grad`.",
            action="Detach each parameter before you use it: `param.detach()`.",
        ),
        Mistake(
            id="memory-taken-away",
            solution=memory_taken_away,
            told="You take the memory away from under the parameters, as FSDP2 does; they still have their shapes. "
            "Here a parameter is empty when it has no elements: so nobody can read what is not there.",
            action="Assign a new tensor of 0 elements to `param.data`.",
        ),
        Mistake(
            id="padding-in-front",
            solution=padding_in_front,
            told="The padding stands in front of the first parameter, and moves all of them.",
            action="`F.pad(flat, (0, missing))` puts it behind the last one.",
        ),
        Mistake(
            id="remainder-dropped",
            solution=remainder_dropped,
            told="`numel // world_size` elements for each rank leave a remainder that no rank has: those parameters "
            "are lost.",
            action="Round up, and pad.",
        ),
        Mistake(
            id="last-rank-shorter",
            solution=last_rank_shorter,
            told="The shards hold every element, and the last is shorter than the others. Then an all-gather, which "
            "takes the same number from each rank, cannot put them together.",
            action="Pad the flat tensor before you cut it.",
        ),
        Mistake(
            id="last-rank-takes-the-rest",
            solution=last_rank_takes_the_rest,
            told="The last rank takes what is left over, so its shard is longer than the others. An all-gather takes "
            "the same number from each rank.",
            action="Round the shard's length up, and pad the flat tensor.",
        ),
        Mistake(
            id="each-alone",
            solution=each_alone,
            told="Each parameter is padded and cut by itself. That can be done (FSDP2 does it), but here the "
            "parameters are one flat tensor, so that one slice of it is the shard, and little is padded.",
            action="Join the parameters first; pad and cut afterwards.",
        ),
        Mistake(
            id="whole-parameters",
            solution=whole_parameters,
            told="Whole parameters are dealt to the ranks. So shards differ in size, and one large parameter cannot be "
            "shared at all.",
            action="Cut the flat tensor, wherever a parameter may begin or end.",
        ),
        Mistake(
            id="dealt-like-cards",
            solution=dealt_like_cards,
            told="Each rank takes every N-th element. An all-gather puts shards one after the other, and would not "
            "restore this order.",
            action="Take elements that lie together: from rank · shard_numel on.",
        ),
        Mistake(
            id="first-shard-everywhere",
            solution=first_shard_everywhere,
            told="Every rank keeps the first shard, so all others are lost.",
            action="Use the rank where you choose the part.",
        ),
        Mistake(
            id="next-ranks-shard",
            solution=next_ranks_shard,
            told="Each rank keeps the shard of the next one: the index is one too high.",
            action="Rank 0 has the part that begins at element 0.",
        ),
        Mistake(
            id="in-float32",
            solution=in_float32,
            told="The shard is float32, whatever the parameters are: `torch.zeros` makes float32 unless it is told "
            "otherwise, and `torch.cat` takes the wider dtype for all. In 16 bits that is twice the memory.",
            action="Give it the parameters' dtype: `F.pad` and `flat.new_zeros(...)` keep it.",
        ),
    ],
    hints=[
        "Which of the whole's elements must this rank still have when the function returns? And who else refers to the "
        "memory of the rest?",
        "Join, pad, cut, let go. A slice is a view of the whole; a copy is not. A parameter has its values in "
        "`param.data`, to which another tensor can be assigned.",
        "`torch.cat`, `F.pad(flat, (0, missing))`, `.chunk(world_size)`, `.clone()`, `param.data.new_empty(0)`. What "
        "is missing to the next multiple is `-numel % world_size`.",
        "```python\nflat = torch.cat([param.detach().flatten() for ...])\npadded = F.pad(flat, (0, ...))\n"
        "for param in params:\n    param.data = ...\nreturn padded.chunk(...)[...].clone()\n```",
    ],
    explanation="Four lines, in the order join, pad, let go, cut. `chunk` gives views, and `clone` is what makes the "
    "difference between 1/N and all of the memory: when the function returns, `flat` and `padded` go, and with them "
    "the whole. Because shards do not care where a parameter begins, the padding is less than one element for each "
    "rank, however many parameters there are. `detach` keeps autograd out of it.",
)
