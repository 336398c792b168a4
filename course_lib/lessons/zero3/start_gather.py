"""Start an all-gather of a unit's shards, and finish it later."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ...exercises import Case, Exercise, lets_go
from ...meter import mark
from ..data_parallel.data import last_rank_comes_later
from .data import Holder, Shapes, draw_params, mark_when_gone, memory_of, one_call_in_time
from .unit import Unit, free, poisoned_unit

GATHERED, FREED = "while the unit is gathered", "after the unit is freed"


def draw(rng: random.Random, number: int) -> Case:
    """Draw two ranks instead of one: on one rank, a solution that does not wait behaves like one that waits."""
    return draw_params(rng, 0 if number == 3 else number)


def gathered_parameters(
    solution: Callable[[Unit], Callable[[], None]], shapes: Shapes, dtype: torch.dtype, seed: int
) -> dict[str, Any]:
    """Return the parameters and the length of `flat`."""
    unit = poisoned_unit(Holder(shapes, dtype, seed))
    finishes = []
    last_rank_comes_later(lambda: finishes.append(solution(unit)))
    on_its_way = unit.flat is not None
    for finish in finishes * 2:  # `gather` may call it again
        finish()
    if dist.get_rank() == 0:
        mark(GATHERED)
    seen = {
        "whether unit.flat exists once the gather is started": on_its_way,
        "the parameters": [param.detach().clone() for param in unit.module.parameters()],
        "the parameters' requires_grad": [param.requires_grad for param in unit.module.parameters()],
        "elements in unit.flat": None if unit.flat is None else unit.flat.numel(),
    }
    memory = memory_of([*unit.module.parameters(), *filter(torch.is_tensor, [unit.flat])])
    del finish, finishes[:]
    free(unit)
    mark_when_gone(FREED, memory)
    return seen


exercise = Exercise("zero3.start_gather", title="Gather a unit", draw=draw, trial=gathered_parameters, measured=True,
    asynchronous=True, inputs_matter=False, tolerance=0, case_count=4,
    rules=[one_call_in_time("all_gather"), lets_go(GATHERED), lets_go(FREED)], task="""
    Gather the shards of all ranks into a new tensor, `unit.flat`, with one call of an all-gather. Do not wait for it:
    return a function that waits, and that then makes each of `unit.params` a view of its part of `unit.flat`, in its
    shape (`unit.shapes` has the shapes). After `free(unit)`, nothing may keep this memory. The padding is NaN here.
    """, hints="""
    How long is `unit.flat`, and which part of it belongs to the second parameter?

    The shards of all ranks, joined, are the joined parameters and then the padding. A function that is defined inside a
    second function can use that function's variables, also later.

    `dist.all_gather_single(unit.flat, shard, async_op=True)`, `handle.wait()`,
    `unit.flat[:numel].split([numel, ...])`, `piece.view(shape)`, `param.data = ...`.

    ```python
    unit.flat = torch.empty(..., dtype=unit.shard.dtype)
    handle = ...

    def finish():
        handle.wait()
        numels = [...]
        pieces = unit.flat[: sum(numels)].split(numels)
        for param, shape, piece in zip(unit.params, unit.shapes, pieces):
            ...

    return finish
    ```
    """, explanation="""
    There is one tensor, and the parameters are views of it, so nothing is copied after the gather. `param.data = ...`
    changes the memory of a parameter. The parameter stays the same object, which the module and the hooks know. Until
    `finish` has waited, the contents of `unit.flat` are undefined. Afterwards three things refer to its memory:
    `unit.flat`, the parameters, and the handle, which `finish` closes over. `free` drops all three.""")


@exercise
def start_gather(unit: Unit) -> Callable[[], None]:
    """Start to gather the shards of all ranks into `unit.flat`; return a function that finishes it.

    When that function returns, each of `unit.params` is a view of its part of `unit.flat`, in its
    shape. It may be called twice. Only `unit.flat`, the parameters and that function refer to this memory.
    """
    unit.flat = torch.empty(dist.get_world_size() * unit.shard.numel(), dtype=unit.shard.dtype)
    handle = dist.all_gather_single(unit.flat, unit.shard.detach(), async_op=True)

    def finish() -> None:
        handle.wait()
        numels = [shape.numel() for shape in unit.shapes]
        pieces = unit.flat[: sum(numels)].split(numels)
        for param, shape, piece in zip(unit.params, unit.shapes, pieces, strict=True):
            param.data = piece.view(shape)

    return finish


def gather(unit: Unit) -> None:
    """Gather `unit`, or finish its all-gather if that has been started."""
    if unit.flat is None:
        unit.finish = start_gather(unit)
    unit.finish()


STARTS = "dist.all_gather_single(unit.flat, unit.shard.detach(), async_op=True)"

exercise.edit("waits-at-once", {f"handle = {STARTS}": STARTS.replace(", async_op=True", ""), "handle.wait()\n": ""}, """
    Your function waits for the all-gather before it returns, so the rank cannot compute in the meantime. In this check
    it waits forever, because the last rank starts only after all others have returned.
    Next: start the call without waiting, and wait for its handle in the function that you return.""")

exercise.edit("waits-for-a-list", {"handle.wait()\n": "", f"handle = {STARTS}":
    "dist.all_gather(list(unit.flat.chunk(dist.get_world_size())), unit.shard.detach())"}, """
    Without `async_op=True`, `dist.all_gather` returns when all shards have arrived. In this check it waits forever,
    because the last rank starts only after all others have returned.
    Next: start the call without waiting, and wait for its handle in the function that you return.""")

exercise.edit("starts-in-finish", {f"handle = {STARTS}\n": "", "handle.wait()": STARTS.replace(", async_op=True", "")},
    """
    Your all-gather starts only when `finish` is called. So no bytes move while the rank computes.
    Next: start the all-gather before you return, without waiting; only the wait belongs in `finish`.""")

exercise.edit("never-waits", {"handle.wait()\n": ""}, """
    The function that you return does not wait for the all-gather. It may return before the other ranks' shards have
    arrived. Next: keep the all-gather's handle, and call its `wait()` first in that function.""")

exercise.edit("returns-nothing", {"\nreturn finish": ""}, """
    Your function returns None. The caller needs a function that finishes the all-gather.
    Next: return the function itself, without calling it.""")

exercise.edit("keeps-the-views", {"pieces = unit": "unit.views = pieces = unit"}, """
    Something besides the parameters still refers to the gathered memory after `free(unit)`, such as a list of their
    views. Each view keeps all of `unit.flat`. Next: give the views only to the parameters, and store them nowhere else.
    """)

exercise.edit("copies", {"piece.view(shape)": "piece.view(shape).clone()"}, """
    The rank holds every element twice. A parameter may be a copy of its part of `unit.flat`, or `unit.flat` a copy of
    what was gathered. Next: gather into `unit.flat`, and assign the view itself to `param.data`.""")

exercise.edit("copies-into-nothing", {"param.data = piece.view(shape)": "param.data.copy_(piece.view(shape))"}, """
    You write into the parameters' own memory, and they have none: between two uses they are empty.
    Next: assign a view of `unit.flat` to `param.data`.""")

exercise.edit("new-parameters", {
    "for param, shape, piece in zip(unit.params, unit.shapes, pieces, strict=True):\nparam.data = piece.view(shape)":
    "unit.params = [torch.nn.Parameter(piece.view(shape)) for shape, piece in zip(unit.shapes, pieces)]"}, """
    The module's own parameters, with which its layers compute, are still empty.
    Next: keep the parameters that exist, and assign to the `param.data` of each its part of `unit.flat`. Its shape is
    in `unit.shapes`; an empty parameter does not have it.""")

exercise.edit("not-in-the-unit", {"unit.flat =": "flat =", "unit.flat,": "flat,", "unit.flat[": "flat["}, """
    The gathered tensor is not in `unit.flat`. Other functions look there to find out whether a unit is gathered.
    Next: store it in `unit.flat` before you start the all-gather.""")

exercise.edit("padding-not-cut-off", {"unit.flat[: sum(numels)]": "unit.flat"}, """
    `unit.flat` is longer than its parameters together, because padding follows the last one. `split` raises an error
    unless the sizes add up to the whole length. Next: split only as much of `unit.flat` as belongs to parameters.""")

exercise.edit("cut-off-in-front", {"unit.flat[: sum(numels)]": "unit.flat[len(unit.flat) - sum(numels) :]"}, """
    You cut off the front of `unit.flat`, and the padding follows the last parameter. So each parameter begins too late.
    Next: begin at element 0, and leave out the end.""")

exercise.variant_edit("into-a-list", {STARTS:
    "dist.all_gather(list(unit.flat.chunk(dist.get_world_size())), unit.shard.detach(), async_op=True)"})

exercise.variant_edit("with-an-offset", {"pieces = unit.flat[: sum(numels)].split(numels)": "offset = 0",
    "for param, shape, piece in zip(unit.params, unit.shapes, pieces, strict=True):\nparam.data = piece.view(shape)":
    "for param, shape, numel in zip(unit.params, unit.shapes, numels):\n"
    "    param.data = unit.flat[offset : offset + numel].view(shape)\n    offset += numel"})
