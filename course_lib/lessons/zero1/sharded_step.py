"""Each rank updates the parameters that it owns, and sends them to all other ranks."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ...exercises import Case, Exercise, Solution, holds_no_more, sends_no_more
from ...meter import mark
from .data import OPTIMIZERS, draw_shapes, give_gradients, gradients, parameters, shuffled_parts

Params = list[nn.Parameter]
Parts = list[list[int]]
MakeOptimizer = Callable[..., Optimizer]


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = (2, 3, 4, 1, 2)[number % 5], rng.getrandbits(32)
    about_optimizer, make_optimizer = OPTIMIZERS[number % 3]
    # In draw 4, one rank owns nothing. (On more ranks, how a solution fails there could depend on which comes first.)
    count = 3 if number == 0 else 1 if number == 4 else rng.randint(max(3, world_size), 6)
    shapes = draw_shapes(rng, count)
    parts = shuffled_parts(rng, shapes, world_size)
    if number == 0:
        parts.sort(key=len)  # so that rank 0 is not the one with most, and shows whose state it holds

    def args(rank: int) -> tuple[Params, Parts, MakeOptimizer, list[list[torch.Tensor]]]:
        return parameters(shapes, seed), parts, make_optimizer, gradients(shapes, 3, seed)

    what = f"{len(shapes)} parameter{'s' * (count > 1)}, {about_optimizer}, owned as {parts}"
    return Case(world_size=world_size, args=args, what=what)


def parameters_afterwards(
    solution: Solution, params: Params, parts: Parts, make_optimizer: MakeOptimizer, grads: list[list[torch.Tensor]]
) -> Any:
    """Make a step for each of `grads`, and return the parameters: those that the model has, not others in the list."""
    before = list(params)
    step = solution(params, parts, make_optimizer)
    for of_step in grads if callable(step) else ():
        give_gradients(before, of_step)
        step()
    mark("after step()")
    if not callable(step):
        return step
    return {"the parameters": before, "the parameters' requires_grad": [param.requires_grad for param in before]}


exercise = Exercise("zero1.sharded_step", title="A sharded step", draw=draw, trial=parameters_afterwards,
    inputs_matter=False, measured=True, case_count=5, rules=[
        holds_no_more("optimizer", "after step()"),
        sends_no_more("one broadcast of each parameter, from its owner", slack=0.01),
    ], task="""
    Make an optimizer for the parameters that this rank owns, and return a function that makes a step: update these
    parameters, then bring every parameter from its owner to all other ranks. A rank holds optimizer state only for its
    own parameters. It may own none, and still takes part. Send no more bytes than one broadcast of each parameter.
    """, hints="""
    After `optimizer.step()` on every rank: which parameters are new on which rank?

    An optimizer keeps state only for the parameters that it is given, so give it this rank's part. After its step, each
    parameter is new on one rank, its owner. A broadcast brings data from one rank to all.

    `make_optimizer([{"params": mine}])`, because a group may be empty; `dist.broadcast(param.detach(), src=owner)`,
    called by every rank for every parameter, in the same order.

    ```python
    mine = [params[number] for number in ...]
    optimizer = make_optimizer([{"params": mine}])

    def step():
        optimizer.step()
        for owner, part in enumerate(parts):
            for number in part:
                ...

    return step
    ```
    """, explanation="""
    The optimizer itself did not change: torch allocates state at the first step, for the parameters that the optimizer
    was given. Every rank goes through the same parameters in the same order, so all ranks take part in every broadcast.
    The rank decides which parameters the optimizer *gets*, never which calls are made. On a real network you would not
    wait for each broadcast before you start the next, and small parameters would share a message:
    `zero.ShardedOptimizer` does both.""")


@exercise
def make_sharded_step(
    params: list[nn.Parameter],
    parts: list[list[int]],
    make_optimizer: Callable[..., Optimizer],
) -> Callable[[], None]:
    """Return a function that makes one step, with gradients that are averaged already.

    Each rank updates the parameters that it owns, and sends them to all other ranks. Send no more
    bytes than one broadcast of each parameter.
    `parts[rank]` lists the numbers of the parameters that `rank` owns, and may be empty.
    Each parameter has one owner. `make_optimizer(params)` makes an optimizer for `params`.
    """
    mine = [params[number] for number in parts[dist.get_rank()]]
    optimizer = make_optimizer([{"params": mine}])  # a group may be empty, a list of parameters may not

    def step() -> None:
        optimizer.step()
        for owner, part in enumerate(parts):
            for number in part:
                dist.broadcast(params[number].detach(), src=owner)

    return step


BROADCASTS = """for owner, part in enumerate(parts):
    for number in part:
        dist.broadcast(params[number].detach(), src=owner)"""

exercise.edit("unsharded", {'[{"params": mine}]': "params", f"\n{BROADCASTS}": ""}, """
    The numbers are right, but every rank holds the state of all parameters, as in plain data parallel: sharding saved
    nothing. Next: give `make_optimizer` only the parameters that this rank owns.""")

exercise.edit("never-broadcasts", {f"\n{BROADCASTS}": ""}, """
    Each rank updates its own parameters, and the other ranks' models keep the old values of these parameters. So from
    the second batch on, each rank trains a different model.
    Next: after the update, broadcast each parameter from its owner, into the memory that it has.""")

exercise.edit("from-rank-0", {BROADCASTS: "for param in params:\n    dist.broadcast(param.detach(), src=0)"}, """
    All parameters come from rank 0, which updated only its own. Its old values overwrite the other owners' new ones.
    Next: broadcast each parameter from its owner.""")

exercise.edit("own-rank-as-src", {
    BROADCASTS: "for param in params:\n    dist.broadcast(param.detach(), src=dist.get_rank())"}, """
    Every rank names itself as the source of a broadcast. All ranks have to name the same source, the owner.
    Next: find the owner of the parameter, and pass it as `src`, on every rank.""")

exercise.edit("only-the-owner-calls", {BROADCASTS:
    "for number in parts[dist.get_rank()]:\n    dist.broadcast(params[number].detach(), src=dist.get_rank())"}, """
    Each rank broadcasts only its own parameters, and does not call the broadcasts of the others. Every rank that
    receives has to call as well. Next: let every rank go through all owners and all their parameters, in the same
    order.""")

exercise.edit("averages", {BROADCASTS: "for param in params:\n"
    "    dist.all_reduce(param.detach())\n    param.data /= dist.get_world_size()"}, """
    You average the parameters. Only the owner updated a parameter, so its step is divided by the number of ranks, and
    an all-reduce sends twice as much as a broadcast. Next: use `dist.broadcast` from the owner.""")

exercise.edit("adds-up-copies", {BROADCASTS: "for param in params:\n    dist.all_reduce(param.detach())"}, """
    You add up the parameters of all ranks: the owner's new values, and the old ones of every rank that does not own the
    parameter. Next: use `dist.broadcast` from the owner, which replaces the old values.""")

exercise.edit("broadcasts-first", {"optimizer.step()\n": "", "return step": "    optimizer.step()\n\nreturn step"}, """
    You broadcast before the step. The old values travel, and each owner keeps its new ones to itself.
    Next: call `optimizer.step()` first.""")

exercise.edit("plain-list", {'[{"params": mine}]': "mine"}, """
    If a rank owns nothing, `make_optimizer` gets an empty list, and torch refuses to make an optimizer for it.
    Next: give `make_optimizer` a group, because a group may be empty; or make no optimizer on such a rank.""")

exercise.edit("made-anew", {"optimizer.step()": 'make_optimizer([{"params": mine}]).step()'}, """
    Each step begins with empty state, as if the optimizer were made inside `step`: no momentum, no second moment, and
    always step 1. Next: make one optimizer outside `step`, and keep its state.""")

exercise.edit("freezes-the-others", {
    "mine = ": "for number, param in enumerate(params):\n"
    "    param.requires_grad_(number in parts[dist.get_rank()])\nmine = "}, """
    You set `requires_grad` to False on parameters that this rank does not own. Backward then makes no gradient for them
    here, and their owner needs this rank's gradient for the average.
    Next: leave `requires_grad` as it is; the optimizer gets only this rank's part.""")

exercise.variant_edit("parameter-by-parameter", {BROADCASTS: "for number, param in enumerate(params):\n"
    "    dist.broadcast(param.data, src=next(rank for rank, part in enumerate(parts) if number in part))"})

exercise.variant_edit("in-the-order-of-the-model", {"[params[number] for number in parts[dist.get_rank()]]":
    "[param for number, param in enumerate(params) if number in parts[dist.get_rank()]]"})


@exercise.variant
def without_waiting(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Callable[[], None]:
    owner_of = {number: owner for owner, part in enumerate(parts) for number in part}
    optimizers = [make_optimizer([params[number]]) for number in parts[dist.get_rank()]]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()
        handles = [
            dist.broadcast(param.data, src=owner_of[number], async_op=True) for number, param in enumerate(params)
        ]
        for handle in handles:
            handle.wait()

    return step
