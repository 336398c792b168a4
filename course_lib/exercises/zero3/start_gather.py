"""An all-gather that is not waited for, and parameters that become views of what it brings."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...meter import mark
from ..checking.findings import Finding
from ..checking.observe import Trial
from ..checking.rules import at_most, lets_go
from ..declare import Case, Exercise, Mistake
from . import stubs
from .data import Holder, Shapes, draw_params, last_rank_comes_later, mark_when_gone, memory_of, poisoned_unit
from .unit import Unit, free, start_gather

Finish = Callable[[], None]


def room(unit: Unit) -> Tensor:
    return torch.zeros(dist.get_world_size() * unit.shard.numel(), dtype=unit.shard.dtype)


def pieces(unit: Unit) -> list[Tensor]:
    """Each parameter's part of `unit.flat`, flat."""
    numels = [shape.numel() for shape in unit.shapes]
    return list(unit.flat[: sum(numels)].split(numels))


def views(unit: Unit) -> list[Tensor]:
    """Each parameter's part of `unit.flat`, in its shape."""
    return [piece.view(shape) for piece, shape in zip(pieces(unit), unit.shapes, strict=True)]


def give(unit: Unit, tensors: list[Tensor]) -> None:
    """Let each parameter be its tensor."""
    for param, tensor in zip(unit.params, tensors, strict=True):
        param.data = tensor


def started(unit: Unit, then: Callable[[Unit], None]) -> Finish:
    """What most of the mistakes have right: the all-gather is under way; to finish is to wait, and `then`."""
    unit.flat = room(unit)
    handle = dist.all_gather_single(unit.flat, unit.shard.detach(), async_op=True)

    def finish() -> None:
        handle.wait()
        then(unit)

    return finish


def waits_at_once(unit: Unit) -> Finish:
    unit.flat = room(unit)
    dist.all_gather_single(unit.flat, unit.shard.detach())
    return lambda: give(unit, views(unit))


def waits_for_a_list(unit: Unit) -> Finish:
    unit.flat = room(unit)
    dist.all_gather(list(unit.flat.chunk(dist.get_world_size())), unit.shard.detach())
    return lambda: give(unit, views(unit))


def starts_in_finish(unit: Unit) -> Finish:
    unit.flat = room(unit)

    def finish() -> None:
        dist.all_gather_single(unit.flat, unit.shard.detach())
        give(unit, views(unit))

    return finish


def all_reduces(unit: Unit) -> Finish:
    unit.flat = room(unit)
    unit.flat.chunk(dist.get_world_size())[dist.get_rank()].copy_(unit.shard.detach())
    handle: Any = dist.all_reduce(unit.flat, async_op=True)

    def finish() -> None:
        handle.wait()
        give(unit, views(unit))

    return finish


def never_waits(unit: Unit) -> Finish:
    unit.flat = room(unit)
    dist.all_gather_single(unit.flat, unit.shard.detach(), async_op=True)
    return lambda: give(unit, views(unit))


def returns_nothing(unit: Unit) -> None:
    started(unit, lambda unit: give(unit, views(unit)))


def keeps_the_views(unit: Unit) -> Finish:
    finish = started(unit, lambda unit: give(unit, unit.__dict__["views"]))
    unit.__dict__["views"] = views(unit)
    return finish


def copies(unit: Unit) -> Finish:
    return started(unit, lambda unit: give(unit, [view.clone() for view in views(unit)]))


def copies_into_the_empty(unit: Unit) -> Finish:
    def copy(unit: Unit) -> None:
        for param, view in zip(unit.params, views(unit), strict=True):
            param.data.copy_(view)

    return started(unit, copy)


def new_parameters(unit: Unit) -> Finish:
    def make(unit: Unit) -> None:
        unit.params = [nn.Parameter(view) for view in views(unit)]

    return started(unit, make)


def not_in_the_unit(unit: Unit) -> Finish:
    gathered = Unit.__new__(Unit)
    gathered.shard, gathered.params, gathered.shapes = unit.shard, unit.params, unit.shapes

    def let_go(gathered: Unit) -> None:
        give(gathered, views(gathered))
        gathered.flat = None

    return started(gathered, let_go)


def padding_not_cut_off(unit: Unit) -> Finish:
    return started(unit, lambda unit: give(unit, list(unit.flat.split([shape.numel() for shape in unit.shapes]))))


def all_from_the_front(unit: Unit) -> Finish:
    return started(unit, lambda unit: give(unit, [unit.flat[: shape.numel()].view(shape) for shape in unit.shapes]))


def flat_parameters(unit: Unit) -> Finish:
    return started(unit, lambda unit: give(unit, pieces(unit)))


def in_float32(unit: Unit) -> Finish:
    unit.flat = room(unit).float()
    handle = dist.all_gather_single(unit.flat, unit.shard.detach().float(), async_op=True)

    def finish() -> None:
        handle.wait()
        give(unit, views(unit))

    return finish


def into_a_list(unit: Unit) -> Finish:
    shard = unit.shard.data
    unit.flat = shard.new_zeros(dist.get_world_size(), shard.numel()).view(-1)
    handle: Any = dist.all_gather(list(unit.flat.chunk(dist.get_world_size())), shard, async_op=True)

    def finish() -> None:
        handle.wait()
        begin = 0
        for param, shape in zip(unit.params, unit.shapes, strict=True):
            param.data = unit.flat[begin : begin + shape.numel()].view(shape)
            begin += shape.numel()

    return finish


def with_a_method(unit: Unit) -> Finish:
    class Gather:
        def __init__(self) -> None:
            unit.flat = torch.zeros(unit.shard.numel() * dist.get_world_size(), dtype=unit.shard.dtype)
            with torch.no_grad():
                self.work: Any = dist.all_gather_single(unit.flat, unit.shard, async_op=True)

        def finish(self) -> None:
            self.work.wait()
            offset = 0
            for place, shape in enumerate(unit.shapes):
                unit.params[place].data = torch.as_strided(
                    unit.flat, shape, torch.empty(shape).stride(), storage_offset=offset
                )
                offset += shape.numel()

    return Gather().finish


def draw(rng: random.Random, number: int) -> Case:
    """Never one rank: nobody would notice that it does not wait."""
    return draw_params(rng, 0 if number == 3 else number)


GATHERED, FREED = "while the unit is gathered", "after the unit is freed"


def gathered_parameters(
    solution: Callable[[Unit], Finish], shapes: Shapes, dtype: torch.dtype, seed: int
) -> dict[str, Any]:
    """The parameters and the length of `flat`.

    Raises:
        RuntimeError: a rank finished before the last one had started.
    """
    unit = poisoned_unit(Holder(shapes, dtype, seed))
    finishes, started = [], []

    def start() -> None:
        time.sleep(0.02 * (dist.get_rank() == dist.get_world_size() - 1))
        started.append(time.perf_counter())
        finishes.append(solution(unit))

    last_rank_comes_later(start)
    on_its_way = unit.flat is not None
    finishes.pop()()
    finished = time.perf_counter()
    if dist.get_rank() == 0:
        mark(GATHERED)
    seen = {
        "whether unit.flat is there once it is started": on_its_way,
        "the parameters": [param.detach().clone() for param in unit.module.parameters()],
        "elements in unit.flat": None if unit.flat is None else unit.flat.numel(),
    }
    memory = memory_of(unit.module.parameters())
    free(unit)
    mark_when_gone(FREED, memory)
    moments = [torch.zeros(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(moments, torch.tensor([started[0], finished], dtype=torch.float64))
    if min(finished for _, finished in moments) < max(started for started, _ in moments):
        raise RuntimeError("finish() came to its end on one rank before another had started its all-gather")
    return seen


def starts_before_it_returns(trial: Trial) -> Iterator[Finding]:
    """The first call of every rank except the last is not the message that says that the function has returned."""
    late = [rank for rank, calls in enumerate(trial.yours.calls[:-1]) if calls[0].op == "send"]
    if late:
        yield Finding(
            observed=f"{trial.who(late)} had not started an all-gather when the function returned.",
            action="Start the all-gather before you return, with `async_op=True`.",
        )


START_GATHER = Exercise(
    name="zero3.start_gather",
    title="Gather a unit",
    task="All-gather the shards of all ranks into a new tensor, `unit.flat`. Do not wait for it: return a function "
    "that does, and that then lets each of `unit.params` be a view of its part, in its shape (`unit.shapes` has the "
    "shapes). When `free(unit)` is called, all of it has to be freed. Padding is NaN here.",
    stub=stubs.start_gather,
    reference=start_gather,
    draw=draw,
    trial=gathered_parameters,
    measured=True,
    inputs_matter=False,
    rules=[starts_before_it_returns, at_most("all_reduce", 0), lets_go(GATHERED), lets_go(FREED)],
    case_count=4,
    variants={"into-a-list": into_a_list, "with-a-method": with_a_method},
    mistakes=[
        Mistake(
            id="waits-at-once",
            solution=waits_at_once,
            told="Your function waits for the all-gather before it returns, so nothing can be computed meanwhile. "
            "Here a rank even waits for ever, since the last one starts only when all others have returned.",
            action="Pass `async_op=True`, and call the handle's `wait()` in the function that you return.",
        ),
        Mistake(
            id="waits-for-a-list",
            solution=waits_for_a_list,
            told="`dist.all_gather` returns when everything is there, so your function waits for it, and nothing can "
            "be computed meanwhile. Here a rank even waits for ever, since the last one starts only when all others "
            "have returned.",
            action="Pass `async_op=True`, and call the handle's `wait()` in the function that you return.",
        ),
        Mistake(
            id="starts-in-finish",
            solution=starts_in_finish,
            told="The all-gather starts only when `finish` is called. So no bytes move while the rank computes.",
            action="Start the all-gather before you return, with `async_op=True`; only `wait()` belongs in `finish`.",
        ),
        Mistake(
            id="all-reduces",
            solution=all_reduces,
            told="The values are right. But an all-reduce of a shard and zeros sends twice the bytes of an all-gather.",
            action="Use `dist.all_gather_single(unit.flat, shard, async_op=True)`.",
        ),
        Mistake(
            id="never-waits",
            solution=never_waits,
            told="The function that finishes does not wait for an all-gather: the parameters are used before the other "
            "ranks' shards can be there.",
            action="Keep the all-gather's handle, and call its `wait()` first of all when you finish.",
        ),
        Mistake(
            id="returns-nothing",
            solution=returns_nothing,
            told="Your function returns None, and what it returns is to be called later: a function that finishes.",
            action="Write `return finish` at the end, without parentheses.",
        ),
        Mistake(
            id="keeps-the-views",
            solution=keeps_the_views,
            told="You keep the parameters' views somewhere else as well. Each of them keeps all of `unit.flat` in "
            "memory, so `free(unit)` frees nothing.",
            action="Make the views when you finish, and give them to the parameters alone.",
        ),
        Mistake(
            id="copies",
            solution=copies,
            told="Each parameter is a copy of its part of `unit.flat`, so everything is there twice.",
            action="Assign the view itself to `param.data`.",
        ),
        Mistake(
            id="copies-into-the-empty",
            solution=copies_into_the_empty,
            told="`param.data.copy_(...)` writes into the memory that the parameter has, and a freed one has none.",
            action="Assign to `param.data` instead: then the parameter gets other memory.",
        ),
        Mistake(
            id="new-parameters",
            solution=new_parameters,
            told="You make new parameters. Those of the module, which its layers compute with, are still empty.",
            action="Keep the parameters that there are, and assign to their `param.data`.",
        ),
        Mistake(
            id="not-in-the-unit",
            solution=not_in_the_unit,
            told="The gathered tensor is not in `unit.flat`, so nobody can see that the unit is gathered.",
            action="Gather into `unit.flat`.",
        ),
        Mistake(
            id="padding-not-cut-off",
            solution=padding_not_cut_off,
            told="`unit.flat` is longer than its parameters together: behind the last there is padding, and `split` "
            "wants to know where everything goes.",
            action="Split `unit.flat[:numel]`.",
        ),
        Mistake(
            id="all-from-the-front",
            solution=all_from_the_front,
            told="Every parameter is a view of the front of `unit.flat`, where the first one lies.",
            action="Go on behind the piece before: `split` gives all pieces in order.",
        ),
        Mistake(
            id="flat-parameters",
            solution=flat_parameters,
            told="Each parameter got its elements, but flat.",
            action="Give the piece its shape: `piece.view(shape)`.",
        ),
        Mistake(
            id="in-float32",
            solution=in_float32,
            told="`unit.flat` is float32, whatever the shard is.",
            action="Use `unit.shard.dtype`, or `unit.shard.new_empty(...)`.",
        ),
    ],
    hints=[
        "How long is `unit.flat`? Which part of it belongs to the second parameter? When may they be read?",
        "All shards, one after the other, are the parameters, one after the other, and then the padding. A function "
        "that is defined inside another sees the other's variables, also later.",
        "`dist.all_gather_single(unit.flat, shard, async_op=True)`, `handle.wait()`, "
        "`unit.flat[:numel].split([numel, ...])`, `piece.view(shape)`, `param.data = ...`.",
        "```python\nunit.flat = torch.empty(..., dtype=unit.shard.dtype)\nhandle = ...\n\ndef finish():\n"
        "    handle.wait()\n    numels = [...]\n    pieces = unit.flat[: sum(numels)].split(numels)\n"
        "    for param, shape, piece in zip(unit.params, unit.shapes, pieces):\n        ...\n\nreturn finish\n```",
    ],
    explanation="The tensor is one, and the parameters are windows onto it: gathering copies nothing a second time. "
    "`param.data = ...` changes which memory a parameter is, and the parameter itself, which the module and the hooks "
    "know, stays the same object. Between the two "
    "halves `unit.flat` belongs to the all-gather, and holds anything. Afterwards three kinds of references keep its "
    "memory: `unit.flat`, the parameters, and the handle, which `finish` closes over. `free` lets go of all three.",
)
