"""A forward that gathers and frees its unit; autograd saves a description of each view instead of the view."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ...exercises import Case, Exercise, at_most, dtype_name, lets_go, whole_numbers
from ...meter import mark
from .data import DTYPES, Memory, draw_world_size, mark_when_gone, memory_of
from .start_gather import gather, start_gather
from .unit import Unit, free, poisoned_unit

IN_USE, AFTER = "while the unit is in use", "after forward"

ROWS = 3
"""The number of rows of an embedding."""


class Scaled(nn.Module):
    """A module for x of [2, width] that calls `on_use` while its parameters are in use.

    With `places` it ends with a sum, so a gradient arrives before backward has asked for any parameter. Without, it
    ends with a matrix product, so backward asks for a parameter before any gradient has arrived. With `embeds`, x has
    numbers of rows of an embedding, [2], and no gradient, as in the first unit of a language model.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        places: bool,
        embeds: bool,
        dtype: torch.dtype,
        seed: int,
        on_use: Callable[[], None],
    ) -> None:
        super().__init__()
        shapes = [(inner, width), (inner,), (inner,), (width, inner), *[(2, width)] * places, *[(ROWS, width)] * embeds]
        drawn = (whole_numbers(*shape, seed=seed, rank=place, dtype=dtype) for place, shape in enumerate(shapes))
        self.up, self.gain, self.shift, self.down, *added = (nn.Parameter(values / 500) for values in drawn)
        self.places, self.rows = nn.ParameterList(added[:places]), nn.ParameterList(added[places:])
        self.on_use = on_use

    def forward(self, x: Tensor) -> Tensor:
        for rows in self.rows:
            x = F.embedding(x, rows)
        hidden = torch.tanh(x @ self.up.t()) * self.gain + self.shift
        self.on_use()
        return sum(self.places, start=hidden @ self.down.t())


def draw(rng: random.Random, number: int) -> Case:
    """Draw units as they are in later cells of the lesson: one is gathered ahead, and one begins with an embedding."""
    world_size, dtype, seed = draw_world_size(rng, number), DTYPES[number % 2], rng.getrandbits(32)
    width, inner, places = rng.randint(5, 7), rng.randint(8, 11), number % 3 != 2
    ahead, embeds = number % 4 == 1, number % 4 == 3

    def args(rank: int) -> tuple[int, int, bool, bool, torch.dtype, Tensor, int]:
        x = whole_numbers(2, width, seed=seed, rank=100 * rank, dtype=dtype) / 500
        if embeds:
            x = torch.tensor([rank % ROWS, ROWS - 1])
        return width, inner, places, ahead, dtype, x, seed

    what = f"a unit of {width} × {inner} that ends with a {'sum' if places else 'matrix product'}, {dtype_name(dtype)}"
    what += ", gathered ahead" * ahead + ", and begins with an embedding" * embeds
    return Case(world_size=world_size, args=args, what=what)


def output_and_gradients(
    solution: Callable[[Unit, Tensor], Tensor],
    width: int,
    inner: int,
    places: bool,
    ahead: bool,
    dtype: torch.dtype,
    x: Tensor,
    seed: int,
) -> Any:
    """Return what forward and backward make. With `ahead`, the unit's gather is started before each of them."""
    memory: Memory = []

    def on_use() -> None:
        memory.extend(memory_of(unit.params))
        if dist.get_rank() == 0:  # at later marks, the meter then searches for what holds the parameters; that is slow
            mark(IN_USE)

    embeds = not x.is_floating_point()
    unit = poisoned_unit(Scaled(width, inner, places, embeds, dtype, seed, on_use))
    x.requires_grad_(not embeds)
    if ahead:
        unit.finish = start_gather(unit)
        memory.extend(memory_of([unit.flat]))
    output = solution(unit, x)
    mark_when_gone(AFTER, memory)
    if not isinstance(output, Tensor):
        return output
    freed = [param.numel() for param in unit.params]
    if not any(freed) and output.requires_grad:  # otherwise the finding names the cause, not what follows in backward
        if ahead:
            unit.finish = start_gather(unit)
        output.square().sum().backward()
    return {
        "the output": output.detach().clone(),
        "whether the output requires a gradient": output.requires_grad,
        "elements in each parameter after forward": freed,
        "the gradient of x": x.grad,
        "the gradients": [param.grad for param in unit.params],
        "elements in each parameter after backward": [param.numel() for param in unit.params],
    }


exercise = Exercise("zero3.sharded_forward", title="Gather, use, free", draw=draw, trial=output_and_gradients,
    measured=True, inputs_matter=False, rules=[lets_go(AFTER, slack=256), at_most("all_gather", 2)],
    case_count=4, task="""
    Gather the unit, call its module, free the unit, and return the output. Two things remain. First: what autograd
    saves for backward must not keep `unit.flat`. Whenever autograd saves a view of `unit.flat`, let it save a
    description instead, from which you can make this view again. Second: backward needs the parameters from its very
    beginning. Gather the unit again as soon as the gradient of the output has arrived. Call your `gather` and `free`;
    there are two all-gathers in all.
    """, hints="""
    From which moment on does backward need the parameters, and what arrives at the output at that moment?

    Autograd accepts two functions, `pack` and `unpack`. It keeps what `pack` returns instead of the saved tensor, and
    `unpack` has to make the tensor from it. A view is a memory, a size, strides and an offset. The last three take
    no memory.

    `saved_tensors_hooks(pack, unpack)` around the call of the module. `tensor.untyped_storage().data_ptr()` identifies
    a memory. `unit.flat.as_strided(size, stride, offset)` takes `tensor.size()`, `tensor.stride()` and
    `tensor.storage_offset()`. `output.register_hook(lambda grad: ...)`.

    ```python
    def pack(tensor):
        if ... == unit.flat.untyped_storage().data_ptr():
            return ...  # size, strides, offset
        return tensor

    def unpack(saved):
        return ... if isinstance(saved, tuple) else saved

    ...  # gather
    with saved_tensors_hooks(pack, unpack):
        ...
    ...  # free, and a hook on the output
    ```
    """, explanation="""
    The gradient of a linear layer's input is computed with its weight, so autograd saves `weight.t()`, a view. This
    view would keep every unit in memory. `pack` keeps only its size, strides and offset. `pack` and `unpack` refer to
    `unit`, never to one `flat`: in backward, `unit.flat` is a new tensor, with the same values in the same places. The
    hook on the output runs before any other part of the unit's backward. If `unpack` gathered instead, that
    could be too late: some gradients, such as an embedding's, need no saved parameter, and would arrive at parameters
    that are still empty. FSDP2 lets autograd save the views: it keeps the tensor and frees only its memory
    (`untyped_storage().resize_(0)`), so that all views are valid again after the next gather. Code that reads such a
    view too early reads memory that does not exist.""")


@exercise
def sharded_forward(unit: Unit, x: Tensor) -> Tensor:
    """Return `unit.module(x)`; gather the unit before the call, and free it afterwards.

    Until backward reaches the output, nothing keeps the whole parameters. Then the unit is gathered
    again, and stays gathered, because backward needs its parameters. Make two all-gathers in all.
    """

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


exercise.edit("autograd-keeps-views", {"return tensor.size(), tensor.stride(), int(tensor.storage_offset())":
    "return tensor"}, """
    You free the parameters, but autograd still keeps them: it saved a view of `unit.flat` for backward (such as
    `weight.t()`), and a view keeps the whole memory. Next: call the module inside `saved_tensors_hooks`, and keep a
    description of each tensor that is in the memory of `unit.flat`, not the tensor.""")

exercise.edit("unpack-closes-over-the-whole", {"gather(unit)\nwith": "gather(unit)\nflat = unit.flat\nwith",
    "unit.flat.as_strided": "flat.as_strided"}, """
    A function that autograd keeps still refers to the tensor. A function keeps every variable that it closes over, and
    autograd keeps `pack` and `unpack` until backward.
    Next: read `unit.flat` inside `unpack`, when backward has gathered the unit again.""")

exercise.edit("never-freed", {"free(unit)\n": ""}, """
    The unit stays gathered, so after forward all parameters of all units are whole on every rank.
    Next: free the unit once you have the output.""")

exercise.edit("gathered-at-once", {"output.register_hook(lambda grad: gather(unit))": "gather(unit)"}, """
    You free the unit and gather it again before your function returns. So after forward all parameters of all units are
    whole on every rank. Next: let a hook on the output gather it, when backward comes.
    """)

exercise.edit("saves-copies", {"return tensor.size(), tensor.stride(), int(tensor.storage_offset())":
    "return tensor.clone()"}, """
    `pack` gives autograd copies of the tensors. A copy does not keep `unit.flat`, but it takes as much memory itself.
    Next: for a view of `unit.flat`, return its size, its strides and its offset, and no tensor.""")

exercise.edit("copies-every-tensor", {
    "if tensor.untyped_storage().data_ptr() == unit.flat.untyped_storage().data_ptr():\n"
    "return tensor.size(), tensor.stride(), int(tensor.storage_offset())\nreturn tensor": "return tensor.clone()"}, """
    `pack` gives autograd a copy of every tensor. A copy does not keep `unit.flat`, but it takes as much memory itself.
    Next: for a view of `unit.flat`, return its size, its strides and its offset, and no tensor. Return the others as
    they are.""")

GATHER = """
    Next: gather as soon as the gradient of the output has arrived (a tensor can have a hook for that), and let the unit
    stay gathered."""
HOOK = "output.register_hook(lambda grad: gather(unit))\n"

exercise.edit("not-there-when-backward-begins", {HOOK: f"if x.requires_grad:\n    {HOOK}".replace("output", "x")}, """
    A parameter is empty when its gradient arrives, and the gradient does not fit: the unit is not gathered at that
    moment. It was never gathered again, or too late, or it was freed again. A hook on `x` would be too late, because
    most gradients arrive before that of `x`.""" + GATHER)

exercise.edit("gathered-by-a-hook-on-any-x", {"output.register_hook": "x.register_hook"}, """
    A hook on `x` is too late, because most gradients arrive before that of `x`, at parameters that are still empty. And
    the first unit's `x` is integers, which have no gradient and can have no hook.""" + GATHER)

exercise.edit("gathered-by-the-gradient-of-the-module", {HOOK: "", "gather(unit)\nwith":
    "unit.module.register_full_backward_hook(lambda *_: gather(unit))\ngather(unit)\nwith"}, """
    A parameter is empty when its gradient arrives, and the gradient does not fit. If the input of a module has a
    gradient, a full backward hook runs when that has been computed, at the end of the module's backward.""" + GATHER)

exercise.edit("not-there-in-backward", {HOOK: "", "with saved_tensors_hooks(pack, unpack):": "if True:"}, """
    A parameter is empty when its gradient arrives, and the gradient does not fit: the unit is not gathered at that
    moment. It was never gathered again, or too late, or it was freed again. Or its all-gather was only started: the
    parameters stay empty until the function that `start_gather` returns is called. Outside `saved_tensors_hooks`,
    autograd also keeps views of `unit.flat`, and with them its memory.""" + GATHER)

exercise.edit("freed-by-the-gradient-of-x", {
    "return output": "if x.requires_grad:\n    x.register_hook(lambda grad: free(unit))\nreturn output"}, """
    A parameter is empty when its gradient arrives, and the gradient does not fit: a hook on `x` has freed the unit. The
    gradient of `x` can arrive before those of the parameters.
    Next: leave the unit gathered. `start_reduction`, the next exercise, frees it later.""")

exercise.edit("freed-by-a-hook-on-any-x", {
    "return output": "x.register_hook(lambda grad: free(unit))\nreturn output"}, """
    A hook on `x` frees the unit. The gradient of `x` can arrive before those of the parameters. These are then empty,
    and their gradients do not fit. The first unit's `x` is integers, and can have no hook.
    Next: leave the unit gathered. `start_reduction`, the next exercise, frees it later.""")

exercise.edit("gathered-when-asked", {"output.register_hook(lambda grad: gather(unit))\n": "",
    "return unit.flat.as_strided": "if unit.flat is None:\n    gather(unit)\nreturn unit.flat.as_strided"}, """
    A parameter is empty when its gradient arrives, and the gradient does not fit. You gather when autograd asks for a
    saved parameter. That is too late: the gradient of a matrix that was only added, such as positions, needs no saved
    tensor, and arrives first. Next: gather as soon as the gradient of the output has arrived (a tensor can have a hook
    for that), and let the unit stay gathered.""")

exercise.edit("gathered-by-a-gradient", {"output.register_hook(lambda grad: gather(unit))":
    "for param in unit.params:\n    param.register_hook(lambda grad: gather(unit))"}, """
    In backward, a saved parameter is needed before the unit is gathered again. That is so if the gather waits for the
    gradient of a parameter: at a matrix product, autograd asks for the saved matrix first.
    Next: gather as soon as the gradient of the output has arrived. A tensor can have a hook for that.""")

exercise.edit("starts-it-again", {"gather(unit)\nwith": "start_gather(unit)()\nwith",
    "lambda grad: gather(unit)": "lambda grad: start_gather(unit)()"}, """
    You gather a unit whose all-gather has already been started, so its bytes are sent twice, in forward and in
    backward. Section 8 starts all-gathers ahead.
    Next: call `gather`, which starts an all-gather only if there is none.""")

exercise.edit("starts-it-again-once", {"gather(unit)\nwith": "start_gather(unit)()\nwith"}, """
    At one of the two places, you gather a unit whose all-gather has already been started, so its bytes are sent twice.
    Section 8 starts all-gathers ahead.
    Next: call `gather` at both places; it starts an all-gather only if there is none.""")

exercise.edit("started-is-not-finished", {"gather(unit)\nwith": "if unit.flat is None:\n    gather(unit)\nwith",
    "lambda grad: gather(unit)": "lambda grad: gather(unit) if unit.flat is None else None"}, """
    You do not gather if `unit.flat` is there. It is there as soon as an all-gather has been started, which section 8
    does ahead. The parameters are then still empty, and the bytes may not have arrived.
    Next: call `gather` in any case; if an all-gather has been started, it waits for it.""")

exercise.edit("autograd-sees-only-x", {"gather(unit)\nwith saved_tensors_hooks(pack, unpack):\n"
    "output: Tensor = unit.module(x)\nfree(unit)\noutput.register_hook(lambda grad: gather(unit))\nreturn output": """\
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        gather(unit)
        output = unit.module(x)
        free(unit)
        return output

    @staticmethod
    def backward(ctx, grad):
        gather(unit)
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            unit.module(x).backward(grad)
        return x.grad

return Function.apply(x)"""}, """
    Autograd does not reach the parameters: a `torch.autograd.Function` and a reentrant checkpoint look only at their
    arguments, and if `x` has no gradient, neither has the output. The first unit gets `x` as integers, for its
    embedding. Next: call the module itself, with hooks on what autograd saves.""")

exercise.edit("without-the-offset", {"*saved)": "*saved[:2], 0)"}, """
    Your description does not say where in `unit.flat` a view begins, so every saved parameter is read from the front.
    Next: save `tensor.storage_offset()` too.""")

exercise.edit("without-the-strides", {"as_strided(*saved)": "narrow(0, saved[2], saved[0].numel()).view(saved[0])"}, """
    Your description has size and offset, but no strides. Autograd saved `weight.t()`: the same elements in a different
    order. Next: save `tensor.stride()` too, and make the view with `as_strided`.""")

exercise.edit("describes-every-tensor", {
    "if tensor.untyped_storage().data_ptr() == unit.flat.untyped_storage().data_ptr():\nreturn tensor.size()":
    "return tensor.size()"}, """
    You describe every tensor that autograd saves, also those that are not in the memory of `unit.flat`, such as the
    input. In backward they are then read from the parameters. Next: which tensors may `pack` return as they are, and
    how can it tell them apart?""")


@exercise.variant
def computes_again(unit: Unit, x: Tensor) -> Tensor:
    def run(x: Tensor) -> Tensor:
        gather(unit)
        output: Tensor = unit.module(x)
        return output

    output: Tensor = checkpoint(run, x, use_reentrant=False)
    free(unit)
    output.register_hook(lambda grad: gather(unit))
    return output


exercise.variant_edit("by-address", {"tensor.untyped_storage().data_ptr() == unit.flat.untyped_storage().data_ptr()":
    "0 <= tensor.data_ptr() - unit.flat.data_ptr() < unit.flat.nbytes"})
