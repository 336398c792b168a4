"""All-reduce, from reduce-scatter and all-gather."""

import random

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from ...exercises import DTYPES, Case, Exercise, draw_world_size, dtype_name, only_calls, sends_no_more, whole_numbers
from .ring_all_gather import ring_all_gather
from .ring_reduce_scatter import ring_reduce_scatter


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    # In turn: a remainder of 1; of 1 or 2; a matrix; a single rank; on 4 ranks one number, and one for each.
    shape = ((5,), (rng.choice([4, 5, 7]),), (3, rng.choice([3, 5])), (2, 2), (), (2, 2))[number % 6]
    world_size = 4 if number % 6 > 3 else world_size
    dtype, seed = DTYPES[number % 3], rng.getrandbits(32)
    return Case(
        world_size=world_size,
        args=lambda rank: (whole_numbers(*shape, seed=seed, rank=rank, dtype=dtype),),
        what=f"shape {list(shape)}, {dtype_name(dtype)}",
    )


exercise = Exercise("ranks.all_reduce", title="All-reduce, from the two", draw=draw,
    rules=[only_calls("send", "recv"), sends_no_more("a reduce-scatter, then an all-gather of the sums", slack=0.3)],
    task="""
    Return the sum of `tensor` over all ranks, in its shape, on every rank. Build it from your `ring_reduce_scatter` and
    your `ring_all_gather`, so only from messages, and send no more than these two do. The tensor may have any
    shape and any number of elements, even one that the world size does not divide: pad it, and cut the padding off
    again. The caller's `tensor` keeps its values.""", hints="""
    After a reduce-scatter, every chunk of the sum is on one rank. What is missing until all ranks have all chunks?

    Reduce-scatter, then all-gather. Both need sizes that the world size divides: add zeros before, and remove them
    after. Zeros change no sum.

    `-numel % world_size` zeros are missing. `torch.cat` appends them; `total[:numel]` and `.view_as(tensor)` undo it.

    ```python
    flat = tensor.flatten()
    padding = ...
    padded = torch.cat([flat, flat.new_zeros(padding)])
    total = ring_all_gather(ring_reduce_scatter(padded))
    return ...
    ```
    """, explanation="""
    After the reduce-scatter, chunk r of the sum is on rank r. The all-gather brings all chunks to all ranks, in order.
    In each phase, every rank sends (N − 1)/N of the tensor: 2(N − 1)/N together, less than twice the tensor, for any
    number of ranks. ZeRO is built on this split. Between the two phases, each rank holds the finished sum of its own
    chunk and of no other, and this is the moment to update it.""")


@exercise
def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of `tensor` over all ranks, in its shape, on every rank.

    `tensor` has the same shape on every rank, any number of elements, and keeps its values.
    Use only messages (send, recv, isend, irecv), and send no more than your ring reduce-scatter
    and ring all-gather do.
    """
    flat = tensor.flatten()
    padding = -flat.numel() % dist.get_world_size()
    padded = torch.cat([flat, flat.new_zeros(padding)])
    shard = ring_reduce_scatter(padded)
    total = ring_all_gather(shard)
    return total[: flat.numel()].view_as(tensor)


exercise.edit("keeps-the-padding", {"[: flat.numel()].view_as(tensor)": ""}, """
    The sum is right, but the padding is still behind it.
    Next: keep only the tensor's own elements, in the tensor's shape.""")

exercise.edit("unpacks-the-shape", {".view_as(tensor)": ".view(*tensor.shape)"}, """
    `view(*shape)` gets no argument if the tensor is a single number, because its shape is empty.
    Next: pass the shape as one argument.""")

exercise.edit("no-padding", {"ring_reduce_scatter(padded)": "ring_reduce_scatter(flat)"}, """
    You pass the tensor to `ring_reduce_scatter` without padding. It cannot be cut into equal chunks if the world size
    does not divide its number of elements. Next: append zeros up to the next multiple first.""")

exercise.edit("only-reduce-scatter", {
    "total = ring_all_gather(shard)\nreturn total[: flat.numel()].view_as(tensor)": "return shard"}, """
    Each rank returns one chunk of the sum, the result of the reduce-scatter.
    Next: pass the chunk to `ring_all_gather`, so that every rank gets all chunks.""")

exercise.edit("only-all-gather", {"ring_all_gather(shard)": "ring_all_gather(flat)",
    "shard = ring_reduce_scatter(padded)\n": ""}, """
    You summed nothing: every rank returns rank 0's tensor, the first of the gathered ones.
    Next: sum first, with `ring_reduce_scatter`, and gather the sums.""")

exercise.edit("cuts-minus-zero", {"[: flat.numel()]": "[:-padding]"}, """
    If no padding is needed, you cut everything off: `total[:-padding]` is empty when `padding` is 0, because -0 is 0.
    Next: say what to keep instead of what to cut.""")

exercise.edit("always-pads", {"-flat.numel() % dist": "dist.get_world_size() - flat.numel() % dist"}, """
    If the world size divides the number of elements already, you append a whole world size of zeros, and send them.
    Next: count how many elements are missing to the next multiple: in this case none.""")

exercise.edit("pads-the-remainder", {"-flat.numel() %": "flat.numel() %"}, """
    You pad with as many elements as are left over, `numel % world_size`. The padding is what is missing to the next
    multiple. Only in a world of two are both numbers the same. Next: count how many elements are missing to the next
    multiple.""")

exercise.edit("padding-in-front", {"[flat, flat.new_zeros(padding)]": "[flat.new_zeros(padding), flat]"}, """
    Your result begins with the sum of the padding, and lacks the last elements of the sum: the padding is in front of
    the elements, and you keep the front. Next: put the padding behind the last element, or cut it off in front.""")

exercise.variant_edit("any-numbers-behind", {"flat.new_zeros(padding)": "flat.new_empty(padding)"})

exercise.edit("phases-swapped", {"shard = ring_reduce_scatter(padded)": "shard = ring_all_gather(padded)",
    "total = ring_all_gather(shard)": "total = ring_reduce_scatter(shard)"}, """
    You gather first and reduce afterwards. Each rank then ends with one chunk of the gathered tensors, summed: its own
    tensor, world size times. Next: which of the two phases leaves a shard, and which needs one?""")


@exercise.variant
def with_pad(tensor: torch.Tensor) -> torch.Tensor:
    padded = pad(tensor.reshape(-1), (0, -tensor.numel() % dist.get_world_size()))
    return ring_all_gather(ring_reduce_scatter(padded)).narrow(0, 0, tensor.numel()).reshape(tensor.shape)
