"""All-reduce, from reduce-scatter and all-gather."""

from __future__ import annotations

import math
import random

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import DTYPES, draw_world_size, dtype_name, whole_numbers
from .ring_all_gather import ring_all_gather
from .ring_reduce_scatter import ring_reduce_scatter
from .rules import ALL_REDUCE_RULES


def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of `tensor` over all ranks, in its shape, on every rank."""
    flat = tensor.flatten()
    padding = -flat.numel() % dist.get_world_size()
    padded = torch.cat([flat, flat.new_zeros(padding)])
    shard = ring_reduce_scatter(padded)
    total = ring_all_gather(shard)
    return total[: flat.numel()].view_as(tensor)


def padded_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The flat sum, with its padding: what most of the mistakes have right."""
    return ring_all_gather(ring_reduce_scatter(pad(tensor.flatten(), (0, -tensor.numel() % dist.get_world_size()))))


def keeps_the_padding(tensor: torch.Tensor) -> torch.Tensor:
    return padded_sum(tensor)


def unpacks_the_shape(tensor: torch.Tensor) -> torch.Tensor:
    return padded_sum(tensor)[: tensor.numel()].view(*tensor.shape)


def flat_result(tensor: torch.Tensor) -> torch.Tensor:
    return padded_sum(tensor)[: tensor.numel()]


def drops_the_remainder(tensor: torch.Tensor) -> torch.Tensor:
    even = tensor.numel() // dist.get_world_size() * dist.get_world_size()
    return ring_all_gather(ring_reduce_scatter(tensor.flatten()[:even]))


def forgets_the_remainder(tensor: torch.Tensor) -> torch.Tensor:
    even = tensor.numel() // dist.get_world_size() * dist.get_world_size()
    total = tensor.clone().flatten()
    total[:even] = ring_all_gather(ring_reduce_scatter(total[:even]))
    return total.view_as(tensor)


def averages(tensor: torch.Tensor) -> torch.Tensor:
    return all_reduce(tensor) / dist.get_world_size()


def only_reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    return ring_reduce_scatter(pad(tensor.flatten(), (0, -tensor.numel() % dist.get_world_size())))


def only_all_gather(tensor: torch.Tensor) -> torch.Tensor:
    return ring_all_gather(tensor.flatten())[: tensor.numel()].view_as(tensor)


def gathers_first(tensor: torch.Tensor) -> torch.Tensor:
    return ring_reduce_scatter(ring_all_gather(tensor.flatten())).view_as(tensor)


def into_the_input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.copy_(all_reduce(tensor))


def pads_in_front(tensor: torch.Tensor) -> torch.Tensor:
    padded = pad(tensor.flatten(), (-tensor.numel() % dist.get_world_size(), 0))
    return ring_all_gather(ring_reduce_scatter(padded))[: tensor.numel()].view_as(tensor)


def cuts_minus_zero(tensor: torch.Tensor) -> torch.Tensor:
    padding = -tensor.numel() % dist.get_world_size()
    return padded_sum(tensor)[:-padding].view_as(tensor)


def pads_the_remainder(tensor: torch.Tensor) -> torch.Tensor:
    padded = pad(tensor.flatten(), (0, tensor.numel() % dist.get_world_size()))
    return ring_all_gather(ring_reduce_scatter(padded))[: tensor.numel()].view_as(tensor)


def stays_a_matrix(tensor: torch.Tensor) -> torch.Tensor:
    padded = torch.cat([tensor, tensor.new_zeros(-tensor.numel() % dist.get_world_size())])
    return ring_all_gather(ring_reduce_scatter(padded))[: tensor.numel()].view_as(tensor)


def for_four_ranks(tensor: torch.Tensor) -> torch.Tensor:
    padded = pad(tensor.flatten(), (0, -tensor.numel() % 4))
    return ring_all_gather(ring_reduce_scatter(padded))[: tensor.numel()].view_as(tensor)


def no_padding(tensor: torch.Tensor) -> torch.Tensor:
    return ring_all_gather(ring_reduce_scatter(tensor.flatten())).view_as(tensor)


def sums_what_was_gathered(tensor: torch.Tensor) -> torch.Tensor:
    return ring_all_gather(tensor.flatten()).view(dist.get_world_size(), -1).sum(dim=0).view_as(tensor)


def library_all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def with_a_larger_buffer(tensor: torch.Tensor) -> torch.Tensor:
    world_size = dist.get_world_size()
    chunk = math.ceil(tensor.numel() / world_size)
    buffer = torch.empty(world_size * chunk, dtype=tensor.dtype)  # what is behind the data is cut off again
    buffer[: tensor.numel()] = tensor.flatten()
    buffer[:] = ring_all_gather(ring_reduce_scatter(buffer))
    return buffer[: tensor.numel()].reshape(tensor.shape)


def with_pad(tensor: torch.Tensor) -> torch.Tensor:
    padded = pad(tensor.reshape(-1), (0, -tensor.numel() % dist.get_world_size()))
    return ring_all_gather(ring_reduce_scatter(padded)).narrow(0, 0, tensor.numel()).reshape(tensor.shape)


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    # In turn: a remainder of 1; of 1 or 2; a matrix; a rank that is alone; one number on 4 ranks; even sizes.
    shape = ((5,), (rng.choice([4, 5, 7]),), (3, rng.choice([3, 5])), (2, 2), (), (2, 12))[number % 6]
    world_size = 4 if number % 6 == 4 else world_size
    dtype, seed = DTYPES[number % 3], rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(*shape, seed=seed, rank=rank, dtype=dtype),),
        about=f"{world_size} rank{'s' * (world_size > 1)}, shape {list(shape)}, {dtype_name(dtype)}",
    )


ALL_REDUCE = Exercise(
    name="ranks.all_reduce",
    title="All-reduce, from the two",
    task="Return the sum of `tensor` over all ranks, in its shape, on every rank. Build it from your "
    "`ring_reduce_scatter` and your `ring_all_gather`. The tensor may have any shape and any number of elements, also "
    "one that the world size does not divide: pad it, and cut the padding off again. The caller's `tensor` keeps its "
    "values.",
    stub=stubs.all_reduce,
    reference=all_reduce,
    draw=draw,
    rules=ALL_REDUCE_RULES,
    variants={"larger-buffer": with_a_larger_buffer, "pad": with_pad},
    mistakes=[
        Mistake(
            id="keeps-the-padding",
            solution=keeps_the_padding,
            told="The sum is right, with the padding still behind it.",
            action="Cut it off: keep the first `tensor.numel()` elements, then give them the tensor's shape.",
        ),
        Mistake(
            id="unpacks-the-shape",
            solution=unpacks_the_shape,
            told="`view(*shape)` gets no argument where the tensor is a single number: its shape is empty.",
            action="Give the shape as one argument, `view(shape)`, or use `view_as(tensor)`.",
        ),
        Mistake(
            id="flat-result",
            solution=flat_result,
            told="The sum is right and flat; it should have the shape of the tensor.",
            action="End with `.view_as(tensor)`.",
        ),
        Mistake(
            id="drops-the-remainder",
            solution=drops_the_remainder,
            told="The result is shorter than the tensor: what is left over when the world size does not divide the "
            "number of elements is lost. `numel // world_size` rounds down.",
            action="Do not cut the tensor to an even size, pad it to one.",
        ),
        Mistake(
            id="forgets-the-remainder",
            solution=forgets_the_remainder,
            told="The last elements are not summed: what is left over when the world size does not divide the number "
            "of elements stays as it is on each rank.",
            action="Do not cut the tensor to an even size, pad it to one.",
        ),
        Mistake(
            id="no-padding",
            solution=no_padding,
            told="The tensor goes into `ring_reduce_scatter` as it is, and cannot be cut into equal chunks when the "
            "world size does not divide its number of elements.",
            action="Append `-tensor.numel() % world_size` zeros first.",
        ),
        Mistake(
            id="averages",
            solution=averages,
            told="You return the mean over ranks. An all-reduce sums; who wants the mean divides afterwards.",
            action="Leave out the division by the world size.",
        ),
        Mistake(
            id="only-reduce-scatter",
            solution=only_reduce_scatter,
            told="Each rank returns one chunk of the sum: that is where the reduce-scatter ends.",
            action="Give the chunk to `ring_all_gather`, so that every rank gets all chunks.",
        ),
        Mistake(
            id="only-all-gather",
            solution=only_all_gather,
            told="Nothing was summed: every rank returns the tensor of rank 0, the first that was gathered.",
            action="Sum first, with `ring_reduce_scatter`, and gather the sums.",
        ),
        Mistake(
            id="gathers-first",
            solution=gathers_first,
            told="You gather first, so every rank has the same data, and then sum it over ranks: each rank gets its "
            "own tensor, times the world size.",
            action="The other way round: `ring_reduce_scatter` first, then `ring_all_gather`.",
        ),
        Mistake(
            id="into-the-input",
            solution=into_the_input,
            told="The sum is right, and it is also written into the caller's tensor, as torch's own all-reduce does. "
            "Here the tensor was to keep its values.",
            action="Return a new tensor; do not copy into the given one.",
        ),
        Mistake(
            id="pads-in-front",
            solution=pads_in_front,
            told="The padding stands before the data and is cut off behind it, so the result is shifted, and its end "
            "is lost.",
            action="Pad at the end.",
        ),
        Mistake(
            id="cuts-minus-zero",
            solution=cuts_minus_zero,
            told="Where no padding is needed, you cut everything off: `total[:-padding]` is empty when `padding` is 0, "
            "since -0 is 0.",
            action="Say what to keep instead: `total[: tensor.numel()]`.",
        ),
        Mistake(
            id="pads-the-remainder",
            solution=pads_the_remainder,
            told="You pad with as many elements as are left over, `numel % world_size`. Needed are those that are "
            "missing (in a world of two it is the same number).",
            action="Pad with `-numel % world_size` elements.",
        ),
        Mistake(
            id="stays-a-matrix",
            solution=stays_a_matrix,
            told="The padding is flat, and the tensor may be a matrix: `torch.cat` joins only tensors with the same "
            "number of dimensions.",
            action="Flatten the tensor first, and give the result its shape with `.view_as(tensor)`.",
        ),
        Mistake(
            id="for-four-ranks",
            solution=for_four_ranks,
            told="The padding fits a world of 4, and this one has another size.",
            action="Pad to a multiple of `dist.get_world_size()`.",
        ),
        Mistake(
            id="sums-what-was-gathered",
            solution=sums_what_was_gathered,
            told="Right sums, but every rank gets everyone's whole tensor and adds them up alone. With N ranks that "
            "is N/2 times the data of a reduce-scatter and an all-gather.",
            action="Reduce-scatter first, so that only sums are gathered, one chunk from each rank.",
        ),
        Mistake(
            id="library-all-reduce",
            solution=library_all_reduce,
            told="`dist.all_reduce` is what you are to build here, so it cannot be a part of it.",
            action="Build it from your `ring_reduce_scatter` and your `ring_all_gather`.",
        ),
    ],
    hints=[
        "After a reduce-scatter every chunk of the sum is on one rank. What is missing until all ranks have all of it?",
        "Reduce-scatter, then all-gather. Both want sizes that the world size divides: add zeros before, and take them "
        "away after. Zeros change no sum.",
        "`-numel % world_size` is how many zeros are missing. `torch.cat` appends them; `total[:numel]` and "
        "`.view_as(tensor)` undo it.",
        "```python\n"
        "flat = tensor.flatten()\n"
        "padding = ...\n"
        "padded = torch.cat([flat, flat.new_zeros(padding)])\n"
        "total = ring_all_gather(ring_reduce_scatter(padded))\n"
        "return ...\n"
        "```",
    ],
    explanation="After the reduce-scatter chunk r of the sum is on rank r; the all-gather brings all chunks to all "
    "ranks, in order. Both phases send (N − 1)/N of the tensor from every rank: 2(N − 1)/N together, less than twice "
    "the tensor, however many ranks there are. ZeRO is built on this split: between the two phases each rank holds "
    "the finished sum of its own chunk and nothing else, and that is the moment to update it.",
)
