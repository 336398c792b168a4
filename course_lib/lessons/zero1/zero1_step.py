"""The whole step of ZeRO-1: reduce-scatter, update one shard, all-gather."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ...exercises import Case, Exercise, Finding, Solution, Trial, draw_world_size, holds_no_more, sends_no_more
from ...meter import mark
from .data import OPTIMIZERS, draw_shapes, give_gradients, gradients, parameters
from .flatten import flatten

Params = list[nn.Parameter]
MakeOptimizer = Callable[..., Optimizer]


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
    about_optimizer, make_optimizer = OPTIMIZERS[number % 3]
    shapes = draw_shapes(rng, rng.randint(3, 5))
    shapes.append((1 + (1 - sum(torch.Size(shape).numel() for shape in shapes)) % world_size,))  # one left over
    lacking = {0: 1, world_size - 1: len(shapes) - 2} if number > 0 and world_size > 1 else {}

    def args(rank: int) -> tuple[Params, MakeOptimizer, Sequence[Sequence[Tensor | None]]]:
        grads: list[list[Tensor | None]] = [list(of_step) for of_step in gradients(shapes, 3, seed + rank)]
        if rank in lacking:
            grads[-1][lacking[rank]] = None
        if number == 2 and rank == world_size - 1 > 0:
            grads[1] = [None] * len(shapes)
        return parameters(shapes, seed), make_optimizer, grads

    what = f"{sum(torch.Size(shape).numel() for shape in shapes)} elements, {about_optimizer}"
    return Case(world_size=world_size, args=args, what=what + ", some gradients None" * bool(lacking))


def parameters_afterwards(
    solution: Solution, params: Params, make_optimizer: MakeOptimizer, grads: Sequence[Sequence[Tensor | None]]
) -> Any:
    """Make a step for each of `grads`, and return the parameters, and `flat_param` without its padding."""
    flat_param = flatten(params, dist.get_world_size())
    step = solution(params, flat_param, make_optimizer)
    for of_step in grads if callable(step) else ():
        give_gradients(params, of_step)
        step()
    mark("after step()")
    if not callable(step):
        return step
    values = flat_param.detach()[: sum(param.numel() for param in params)]
    trainable = [param.requires_grad for param in params]
    return {"the parameters": list(params), "flat_param": values, "the parameters' requires_grad": trainable}


def keeps_two_shards_at_most(trial: Trial) -> Iterator[Finding]:
    """Between steps, allow two tensors of a shard's size besides what the reference keeps, and no more."""
    yours, expected = (
        [memory.marks["after step()"].by_category for memory in run.memory] for run in (trial.yours, trial.expected)
    )
    for rank, (kept, needed) in enumerate(zip(yours, expected, strict=True)):
        shard_bytes = needed["parameters"] // len(expected)
        more = sum(kept[kind] - needed[kind] for kind in ("communication", "other"))
        if more > 2 * shard_bytes:
            yield Finding(
                observed=f"after step(), {trial.who([rank])} still holds {more:,} bytes of buffers. A shard has "
                f"{shard_bytes:,} bytes.",
                action="Make tensors of the model's size inside the step, so that they are freed when it returns.",
            )
            return


exercise = Exercise("zero1.zero1_step", title="The whole step", draw=draw, trial=parameters_afterwards,
    inputs_matter=False, measured=True, case_count=4, rules=[
        holds_no_more("optimizer", "after step()"),
        sends_no_more("one reduce-scatter of the gradients, one all-gather of the parameters"),
        keeps_two_shards_at_most,
    ], task="""
    Make an optimizer for this rank's shard of `flat_param`, and return a function that makes a step. The step averages
    the gradients over ranks with a reduce-scatter, so that this rank gets only the average of its shard; updates the
    shard; and all-gathers the shards of all ranks into `flat_param`. Send no more than these two calls do, and keep
    no buffer of the model's size between steps.
    """, hints="""
    This rank updates one shard. Which gradients does it need for the update, and from which ranks?

    Reduce-scatter gives each rank the sum of its shard. The optimizer gets one parameter, a view of this rank's shard
    in `flat_param`, so its update is already in the right place. An all-gather brings the other shards.

    `nn.Parameter(flat_param.view(world_size, -1)[rank])`; `torch.zeros_like(flat_param)` for the flat gradient;
    `dist.reduce_scatter_single(grad_shard, flat_grad)`; `dist.all_gather_single(flat_param, param_shard.detach())`.

    ```python
    param_shard = nn.Parameter(...)
    optimizer = make_optimizer([param_shard])

    def step():
        flat_grad = ...  # zeros where a gradient is None, and in the padding
        param_shard.grad = torch.empty_like(param_shard)
        dist.reduce_scatter_single(..., ...)
        ...
        optimizer.step()
        dist.all_gather_single(..., ...)

    return step
    ```
    """, explanation="""
    An all-reduce is a reduce-scatter and an all-gather. ZeRO-1 separates the two and puts the optimizer's step between
    them: first each rank gets the averaged gradient of its shard, then it updates its shard, then all ranks get all
    shards. So ZeRO-1 sends no more than data parallel, and each rank holds 1/N of the state. The padding takes part
    with a gradient of zero. The optimizer sees a flat slice. This suits optimizers that update each element by itself,
    such as SGD and Adam. An optimizer that uses whole matrices or the norm of a layer needs whole parameters.""")


@exercise
def make_zero1_step(
    params: list[nn.Parameter],
    flat_param: torch.Tensor,
    make_optimizer: Callable[..., Optimizer],
) -> Callable[[], None]:
    """Return a function that makes one step of ZeRO-1 with the gradients of all ranks.

    `params` are views of `flat_param`, as `flatten` leaves them. Each rank owns one of
    `world_size` equal shards, and makes an optimizer for its shard: `make_optimizer([shard])`.
    Gradients differ from rank to rank, and a gradient that is None counts as zeros. A step
    averages them, updates the rank's shard, and brings all shards into `flat_param`.
    Send no more than one reduce-scatter and one all-gather do, and keep no buffer of the model's size
    between steps.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    param_shard = nn.Parameter(flat_param.view(world_size, -1)[rank])  # a view: it has no memory of its own
    optimizer = make_optimizer([param_shard])

    def step() -> None:
        grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
        values = torch.cat([grad.flatten() for grad in grads])
        flat_grad = torch.zeros_like(flat_param)
        flat_grad[: len(values)] = values
        param_shard.grad = torch.empty_like(param_shard)
        dist.reduce_scatter_single(param_shard.grad, flat_grad)
        param_shard.grad /= world_size
        optimizer.step()
        param_shard.grad = None
        dist.all_gather_single(flat_param, param_shard.detach())

    return step


GATHER = "dist.all_gather_single(flat_param, param_shard.detach())"

exercise.edit("sum-for-mean", {"param_shard.grad /= world_size\n": ""}, """
    You update with the sum of the gradients; a reduce-scatter adds, and the task asks for the average. With SGD, the
    step is world size times too large. Adam cancels the size of a gradient, so the mistake hardly shows there.
    Next: divide by `dist.get_world_size()`, before or after the reduce-scatter.""")

exercise.edit("divides-twice", {"param_shard.grad /= world_size": "param_shard.grad /= world_size**2"}, """
    You divide by the number of ranks twice, so each gradient is world size times too small.
    Next: divide once, before or after the reduce-scatter.""")

OWN = """
    You update with this rank's own gradients. The gradients of the other ranks never arrive.
    Next: which call gives each rank the sum of its own shard over all ranks?"""
REDUCE = "param_shard.grad = torch.empty_like(param_shard)\ndist.reduce_scatter_single(param_shard.grad, flat_grad)"

exercise.edit("never-reduces", {REDUCE: "param_shard.grad = flat_grad.view(world_size, -1)[rank]"}, OWN)

exercise.edit("never-reduces-nor-divides", {f"{REDUCE}\nparam_shard.grad /= world_size":
    "param_shard.grad = flat_grad.view(world_size, -1)[rank]"}, OWN)

exercise.edit("gathers-first", {
    "param_shard.grad = None\n": "", GATHER: "optimizer.step()", "optimizer.step()": GATHER}, """
    You gather before the optimizer's step. The old shards travel, and each rank keeps its new shard to itself.
    Next: call `optimizer.step()` first, and gather afterwards.""")

exercise.edit("all-reduce-and-cut", {
    "param_shard.grad = torch.empty_like(param_shard)\ndist.reduce_scatter_single(param_shard.grad, flat_grad)":
    "dist.all_reduce(flat_grad)\nparam_shard.grad = flat_grad.view(world_size, -1)[rank]"}, """
    The numbers are right. But an all-reduce brings the whole summed gradient to every rank, and a rank uses one shard
    of it. A reduce-scatter sends half as much.
    Next: use `dist.reduce_scatter_single`, which gives each rank only its shard.""")

exercise.edit("whole-state", {"flat_param.view(world_size, -1)[rank])": "flat_param)",
    "torch.empty_like(param_shard)": "torch.zeros_like(param_shard)",
    "(param_shard.grad, flat_grad)": "(param_shard.grad.view(world_size, -1)[rank], flat_grad)",
    "param_shard.detach()": "param_shard.detach().view(world_size, -1)[rank].clone()"}, """
    You made the optimizer for all parameters, so every rank holds the state of all of them.
    Next: make the optimizer for a parameter that is only this rank's shard.""")

exercise.edit("never-gathers", {f"\n{GATHER}": ""}, """
    Each rank updates its own shard, and the new shards of the other ranks do not arrive in its `flat_param`.
    Next: after `optimizer.step()`, all-gather the shards into `flat_param`.""")

exercise.edit("updates-a-copy", {"[rank])": "[rank].clone())",
    "param_shard.detach()": "flat_param.view(world_size, -1)[rank].clone()"}, """
    `flat_param` keeps its old values: the optimizer updates a copy that does not get into it, or updates nothing.
    Next: follow one element through a step. Where is its gradient, which tensor does the optimizer change, and which
    call writes into `flat_param`?""")

exercise.edit("into-other-memory", {GATHER: "whole = torch.empty_like(flat_param)\n"
    "dist.all_gather_single(whole, param_shard.detach())\nbegin = 0\nfor param in params:\n"
    "    param.data = whole[begin : begin + param.numel()].view_as(param)\n    begin += param.numel()"}, """
    The parameters are right, but `flat_param` is not: the shards of the other ranks do not arrive in it.
    Next: gather into `flat_param`, which the parameters are views of.""")

exercise.edit("keeps-adding", {"flat_grad = torch.zeros_like(flat_param)\n": "", "def step() -> None:":
    "flat_grad = torch.zeros_like(flat_param)\n\ndef step() -> None:", "[: len(values)] =": "[: len(values)] +="}, """
    You add to the gradient of the step before, so each step uses the gradients of all earlier steps, too.
    Next: begin each step with zeros.""")

exercise.edit("keeps-the-flat-gradient", {"flat_grad = torch.zeros_like(flat_param)\n": "", "def step() -> None:":
    "flat_grad = torch.zeros_like(flat_param)\n\ndef step() -> None:"}, """
    The numbers are right. But between steps each rank keeps a flat gradient, which is as large as the model.
    Next: make it inside `step`, so that it is freed when `step` returns.""")

GAPS = """
    A parameter without a gradient leaves no gap in your flat gradient. Everything after it moves up, and is added to
    other parameters' gradients on the other ranks. Next: put zeros where a gradient is None."""

exercise.edit("closes-gaps", {"torch.zeros_like(param) if param.grad is None else param.grad for param in params":
    "param.grad for param in params if param.grad is not None"}, GAPS)

exercise.edit("closes-gaps-in-a-buffer", {
    "grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]\n": "",
    "values = torch.cat([grad.flatten() for grad in grads])\n": "",
    "flat_grad[: len(values)] = values": "end = 0\nfor param in params:\n    if param.grad is not None:\n"
    "        begin, end = end, end + param.numel()\n        flat_grad[begin:end] = param.grad.flatten()"}, GAPS)

exercise.edit("made-anew", {"optimizer = make_optimizer([param_shard])\n": "", "optimizer.step()":
    "optimizer = make_optimizer([param_shard])\noptimizer.step()"}, """
    You make the optimizer inside `step`, so each step begins with empty state.
    Next: make the optimizer once, outside `step`.""")

exercise.edit("no-padding", {"flat_grad = torch.zeros_like(flat_param)\n": "", "flat_grad[: len(values)] =":
    "flat_grad ="}, """
    The flat gradient ends with the last parameter, and a reduce-scatter needs world size equal shards.
    Next: make it as long as `flat_param`, with zeros at the end.""")

exercise.edit("padding-in-front", {"flat_grad[: len(values)]": "flat_grad[len(flat_grad) - len(values) :]"}, """
    Your flat gradient begins with the padding, and `flat_param` ends with it. So each gradient updates a later element
    than its own. Next: put the gradients at the front, and the zeros behind the last one.""")

exercise.variant_edit("into-a-new-tensor", {"[param_shard]": '[{"params": [param_shard]}]',
    "flat_param.view(world_size, -1)[rank])": "flat_param.chunk(world_size)[rank])",
    "dist.reduce_scatter_single(param_shard.grad, flat_grad)":
    "dist.reduce_scatter_single(param_shard.grad, flat_grad, async_op=True).wait()",
    GATHER: "whole = torch.empty_like(flat_param)\ndist.all_gather_single(whole, param_shard.data)\n"
    "flat_param.copy_(whole)"})

exercise.variant_edit("with-lists", {
    "reduce_scatter_single(param_shard.grad, flat_grad)": "reduce_scatter(param_shard.grad, list((flat_grad / "
    "world_size).chunk(world_size)))", "param_shard.grad /= world_size\n": "",
    GATHER: "dist.all_gather(list(flat_param.chunk(world_size)), param_shard.data.clone())"})
