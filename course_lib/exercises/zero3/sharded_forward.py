"""A forward that gathers and frees, and leaves autograd a note in the place of each parameter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ...meter import mark
from ..checking.rules import at_most, lets_go
from ..data_parallel.data import ranks
from ..declare import Case, Exercise, Mistake
from ..ranks.data import dtype_name, whole_numbers
from . import stubs
from .data import DTYPES, Memory, draw_world_size, mark_when_gone, memory_of, poisoned_unit
from .unit import Unit, free, gather


def sharded_forward(unit: Unit, x: Tensor) -> Tensor:
    """Return `unit.module(x)`; the unit is gathered before it and free after it."""

    def pack(tensor: Tensor) -> Tensor | tuple[torch.Size, tuple[int, ...], int]:
        if tensor.untyped_storage().data_ptr() == unit.flat.untyped_storage().data_ptr():
            return tensor.size(), tensor.stride(), int(tensor.storage_offset())
        return tensor

    def unpack(saved: Tensor | tuple[torch.Size, tuple[int, ...], int]) -> Tensor:
        return unit.flat.as_strided(*saved) if isinstance(saved, tuple) else saved

    gather(unit)
    with saved_tensors_hooks(pack, unpack):
        output: Tensor = unit.module(x)
    free(unit)
    output.register_hook(lambda grad: gather(unit))
    return output


Note = tuple[torch.Size, tuple[int, ...], int]


def noted(unit: Unit, tensor: Tensor) -> Any:
    """A note in the place of a view of `unit.flat`; any other tensor itself."""
    whole: Tensor = unit.flat
    if tensor.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
        return tensor
    return tensor.size(), tensor.stride(), tensor.storage_offset()


def viewed(unit: Unit, note: Note) -> Tensor:
    view: Tensor = unit.flat.as_strided(*note)
    return view


def forward(
    unit: Unit,
    x: Tensor,
    *,
    pack: Callable[[Unit, Tensor], Any] = noted,
    unpack: Callable[[Unit, Any], Tensor] = viewed,
    again: Callable[[Unit], None] = gather,
) -> Tensor:
    """A right solution, but for the parts that are given.

    Args:
        pack: what autograd saves of a tensor.
        unpack: the tensor that a note stands for.
        again: called when the gradient of the output is there.
    """
    gather(unit)
    with saved_tensors_hooks(
        lambda tensor: pack(unit, tensor),
        lambda saved: unpack(unit, saved) if isinstance(saved, tuple) else saved,
    ):
        output: Tensor = unit.module(x)
    free(unit)
    output.register_hook(lambda grad: again(unit))
    return output


def autograd_keeps_views(unit: Unit, x: Tensor) -> Tensor:
    return forward(unit, x, pack=lambda unit, tensor: tensor)


def never_freed(unit: Unit, x: Tensor) -> Tensor:
    gather(unit)
    output: Tensor = unit.module(x)
    return output


def gathered_at_once(unit: Unit, x: Tensor) -> Tensor:
    output = forward(unit, x)
    gather(unit)
    return output


def saves_copies(unit: Unit, x: Tensor) -> Tensor:
    return forward(unit, x, pack=lambda unit, tensor: tensor.clone())


def gathers_when_asked(unit: Unit, x: Tensor) -> Tensor:
    def unpack(unit: Unit, note: Note) -> Tensor:
        gather(unit)
        return viewed(unit, note)

    return forward(unit, x, unpack=unpack, again=lambda unit: None)


def unpack_closes_over_the_whole(unit: Unit, x: Tensor) -> Tensor:
    gather(unit)
    flat = unit.flat
    return forward(unit, x, unpack=lambda unit, note: flat.as_strided(*note))


def without_the_offset(unit: Unit, x: Tensor) -> Tensor:
    return forward(unit, x, unpack=lambda unit, note: viewed(unit, (*note[:2], 0)))


def without_the_strides(unit: Unit, x: Tensor) -> Tensor:
    def unpack(unit: Unit, note: Note) -> Tensor:
        size, _, offset = note
        view: Tensor = unit.flat[offset : offset + size.numel()].view(size)
        return view

    return forward(unit, x, unpack=unpack)


def notes_for_all(unit: Unit, x: Tensor) -> Tensor:
    return forward(unit, x, pack=lambda unit, tensor: (tensor.size(), tensor.stride(), tensor.storage_offset()))


def without_autograd(unit: Unit, x: Tensor) -> Tensor:
    with torch.no_grad():
        return forward(unit, x)


def computes_again(unit: Unit, x: Tensor) -> Tensor:
    def run(x: Tensor) -> Tensor:
        gather(unit)
        output: Tensor = unit.module(x)
        return output

    output: Tensor = checkpoint(run, x, use_reentrant=False)
    free(unit)
    output.register_hook(lambda grad: gather(unit))
    return output


def with_objects(unit: Unit, x: Tensor) -> Tensor:
    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            self.view = tensor.shape, tensor.stride(), tensor.storage_offset()

    def again(*_: Any) -> None:
        gather(unit)

    gather(unit)
    begin = unit.flat.data_ptr()
    end = begin + unit.flat.nbytes
    with saved_tensors_hooks(
        lambda tensor: Saved(tensor) if begin <= tensor.data_ptr() < end else tensor.detach(),
        lambda saved: torch.as_strided(unit.flat, *saved.view) if isinstance(saved, Saved) else saved,
    ):
        output: Tensor = unit.module(x)
    if output.requires_grad:
        torch.autograd.graph.register_multi_grad_hook([output], again, mode="any")
    free(unit)
    return output


class Scaled(nn.Module):
    """For x of [2, width]. Ends with a sum, so that a gradient is there before backward has asked for any parameter.

    Calls `on_use` while its parameters are in use.
    """

    def __init__(self, width: int, inner: int, dtype: torch.dtype, seed: int, on_use: Callable[[], None]) -> None:
        super().__init__()
        shapes = [(inner, width), (inner,), (inner,), (width, inner), (2, width)]
        drawn = (whole_numbers(*shape, seed=seed, rank=place, dtype=dtype) for place, shape in enumerate(shapes))
        self.up, self.gain, self.shift, self.down, self.places = (nn.Parameter(values / 500) for values in drawn)
        self.on_use = on_use

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.up.t()) * self.gain + self.shift
        self.on_use()
        return hidden @ self.down.t() + self.places


IN_USE, AFTER = "while the unit is in use", "after forward"


def draw(rng: random.Random, number: int) -> Case:
    world_size, dtype, seed = draw_world_size(rng, number), DTYPES[number % 2], rng.getrandbits(32)
    width, inner = rng.randint(5, 7), rng.randint(8, 11)

    def args(rank: int) -> tuple[int, int, Tensor, int]:
        return width, inner, whole_numbers(2, width, seed=seed, rank=100 * rank, dtype=dtype) / 500, seed

    about = f"{ranks(world_size)}, a unit of {width} × {inner}, {dtype_name(dtype)}"
    return Case(world_size=world_size, args=args, about=about)


def output_and_gradients(
    solution: Callable[[Unit, Tensor], Tensor], width: int, inner: int, x: Tensor, seed: int
) -> Any:
    memory: Memory = []

    def on_use() -> None:
        memory.extend(memory_of(unit.params))
        if dist.get_rank() == 0:  # there the meter then looks for who holds what was a parameter's; that takes long
            mark(IN_USE)

    unit = poisoned_unit(Scaled(width, inner, x.dtype, seed, on_use))
    x.requires_grad_()
    output = solution(unit, x)
    mark_when_gone(AFTER, memory)
    if not isinstance(output, Tensor):
        return output
    freed = [param.numel() for param in unit.params]
    if not any(freed):  # else that is told, and not what follows from it
        output.square().sum().backward()
    return {
        "the output": output.detach().clone(),
        "elements in each parameter after forward": freed,
        "the gradient of x": x.grad,
        "the gradients": [param.grad for param in unit.params],
        "elements in each parameter after backward": [param.numel() for param in unit.params],
    }


SHARDED_FORWARD = Exercise(
    name="zero3.sharded_forward",
    title="Gather, use, free",
    task="Gather the unit, call its module, free the unit, return the output. Two things are left to care for. What "
    "autograd saves for backward must not keep `unit.flat`: wherever it saves a view of it, let it save a note "
    "instead, of how to make this view again. And backward needs the parameters, from its very beginning on: gather "
    "the unit again as soon as the gradient of the output is there. Call your `gather` and `free`.",
    stub=stubs.sharded_forward,
    reference=sharded_forward,
    draw=draw,
    trial=output_and_gradients,
    measured=True,
    inputs_matter=False,
    rules=[lets_go(AFTER, slack=256), at_most("all_gather_single", 2)],
    case_count=4,
    variants={"computes-again": computes_again, "with-objects": with_objects},
    mistakes=[
        Mistake(
            id="autograd-keeps-views",
            solution=autograd_keeps_views,
            told="You let go of the parameters, and autograd did not: it saved a view of `unit.flat` for backward "
            "(such as `weight.t()`), and a view keeps the whole.",
            action="Call the module inside `with saved_tensors_hooks(pack, unpack):`, where `pack` gives a note for "
            "whatever lies in the memory of `unit.flat`.",
        ),
        Mistake(
            id="unpack-closes-over-the-whole",
            solution=unpack_closes_over_the_whole,
            told="Autograd has notes, and `unpack` has the tensor: a function keeps whatever variable it closes over, "
            "and autograd keeps `unpack`.",
            action="Read `unit.flat` in `unpack`, when backward has gathered it again.",
        ),
        Mistake(
            id="never-freed",
            solution=never_freed,
            told="The unit stays gathered, so after forward every unit's parameters are whole on every rank.",
            action="Call `free(unit)` once you have the output.",
        ),
        Mistake(
            id="gathered-at-once",
            solution=gathered_at_once,
            told="You free the unit and gather it again right away, before your function returns. So after forward "
            "every unit's parameters are whole on every rank.",
            action="Give `output.register_hook` a function, which backward calls: `lambda grad: gather(unit)`.",
        ),
        Mistake(
            id="saves-copies",
            solution=saves_copies,
            told="`pack` gives autograd a copy of each tensor. Copies do not keep `unit.flat`, and take as much memory "
            "themselves.",
            action="For a view of `unit.flat`, return a note: its size, its strides and its offset, and no tensor.",
        ),
        Mistake(
            id="not-there-when-backward-begins",
            solution=gathers_when_asked,
            told="When backward begins, the parameters are not there. It does not do to wait until autograd asks for "
            "one, either: the gradient of what was merely added needs no parameter (nor does that of an embedding). It "
            "arrives first, and does not fit to an empty one.",
            action="Gather as soon as the gradient of the output is there: `output.register_hook(...)`.",
        ),
        Mistake(
            id="without-the-offset",
            solution=without_the_offset,
            told="The note does not say where in `unit.flat` the view begins, so every saved parameter is taken from "
            "the front.",
            action="Note `tensor.storage_offset()` as well.",
        ),
        Mistake(
            id="without-the-strides",
            solution=without_the_strides,
            told="The note has offset and size, and no strides. Autograd saved `weight.t()`: the same elements in "
            "another order.",
            action="Note `tensor.stride()` as well, and make the view by `as_strided`.",
        ),
        Mistake(
            id="notes-for-all",
            solution=notes_for_all,
            told="Every saved tensor is taken for a view of `unit.flat`, activations as well.",
            action="In `pack`, compare the memory of the tensor with that of `unit.flat`, and return all others as "
            "they are.",
        ),
        Mistake(
            id="without-autograd",
            solution=without_autograd,
            told="Under `torch.no_grad()` nothing is saved, and nothing can be trained.",
            action="Let autograd record, and have it save notes.",
        ),
    ],
    hints=[
        "Two moments need the parameters: when the module is called, and from when on in backward? What do you know of "
        "the output at that second moment?",
        "Autograd offers two functions of yours, `pack` and `unpack`: whatever the first returns is kept in the place "
        "of a saved tensor, and the second has to make the tensor of it. A view is its memory, a size, strides and an "
        "offset; without the memory it weighs nothing.",
        "`saved_tensors_hooks(pack, unpack)` around the module's call; `tensor.untyped_storage().data_ptr()` tells "
        "whose memory it is; `tensor.size()`, `tensor.stride()` and `tensor.storage_offset()` are what "
        "`unit.flat.as_strided(size, stride, offset)` takes; `output.register_hook(lambda grad: ...)`.",
        "```python\ndef pack(tensor):\n    if ... == unit.flat.untyped_storage().data_ptr():\n"
        "        return ...  # size, strides, offset\n    return tensor\n\ndef unpack(saved):\n"
        "    return ... if isinstance(saved, tuple) else saved\n\n...  # gather\n"
        "with saved_tensors_hooks(pack, unpack):\n    ...\n...  # free, and a hook on the output\n```",
    ],
    explanation="The gradient of a linear layer's input is computed with its weight, so autograd saves `weight.t()`, a "
    "view: that alone would keep every unit from being freed. The note keeps three facts in its place: size, strides "
    "and offset. `pack` and `unpack` refer to `unit`, never to `flat`, which is another tensor by the time backward "
    "comes, with the same values in the same places. And the hook on the output runs before any other part of the "
    "unit's backward. FSDP2 goes another way: it keeps the tensor and takes its memory away "
    "(`untyped_storage().resize_(0)`), so that all views come back to life with it; who reads one too early reads "
    "memory that is not there.",
)
