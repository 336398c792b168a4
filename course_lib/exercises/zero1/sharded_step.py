"""Each rank updates the parameters that it owns, and brings them to the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ...meter import mark
from ..checking.rules import holds_no_more
from ..declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import OPTIMIZERS, draw_shapes, give_gradients, gradients, parameters, ranks, shuffled_parts
from .rules import sends_no_more

Params = list[nn.Parameter]
Parts = list[list[int]]
MakeOptimizer = Callable[..., Optimizer]
Step = Callable[[], None]


def make_sharded_step(
    params: list[nn.Parameter], parts: list[list[int]], make_optimizer: Callable[..., Optimizer]
) -> Callable[[], None]:
    """Return a function that makes one step: each rank updates what it owns, and brings it to the others."""
    mine = [params[number] for number in parts[dist.get_rank()]]
    optimizer = make_optimizer([{"params": mine}])  # a group may be empty, where a list may not

    def step() -> None:
        optimizer.step()
        for owner, part in enumerate(parts):
            for number in part:
                dist.broadcast(params[number].detach(), src=owner)

    return step


def own_part(parts: Parts) -> list[int]:
    return parts[dist.get_rank()]


def broadcast_all(params: Params, parts: Parts) -> None:
    for owner, part in enumerate(parts):
        for number in part:
            dist.broadcast(params[number].detach(), src=owner)


def step_with(
    owned: Callable[[Parts], list[int]] = own_part, bring: Callable[[Params, Parts], object] = broadcast_all
) -> Solution:
    """The step, where a rank updates what `owned` gives, and `bring` brings parameters to the others."""

    def make_step(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
        optimizer = make_optimizer([{"params": [params[number] for number in owned(parts)]}])

        def step() -> None:
            optimizer.step()
            bring(params, parts)

        return step

    return make_step


def broadcast_from(rank_of: Callable[[], int]) -> Callable[[Params, Parts], None]:
    """Broadcasts every parameter from one and the same rank."""

    def bring(params: Params, parts: Parts) -> None:
        for param in params:
            dist.broadcast(param.detach(), src=rank_of())

    return bring


def broadcast_own(params: Params, parts: Parts) -> None:
    for number in own_part(parts):
        dist.broadcast(params[number].detach(), src=dist.get_rank())


def sum_all(params: Params, parts: Parts) -> None:
    for param in params:
        dist.all_reduce(param.detach())


def average_all(params: Params, parts: Parts) -> None:
    sum_all(params, parts)
    for param in params:
        param.data /= dist.get_world_size()


def broadcasts_first(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
    optimizer = make_optimizer([{"params": [params[number] for number in own_part(parts)]}])

    def step() -> None:
        broadcast_all(params, parts)
        optimizer.step()

    return step


def plain_list(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
    optimizer = make_optimizer([params[number] for number in own_part(parts)])

    def step() -> None:
        optimizer.step()
        broadcast_all(params, parts)

    return step


def absent_where_it_owns_nothing(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
    if not own_part(parts):
        return lambda: None
    return make_sharded_step(params, parts, make_optimizer)


def made_anew(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
    return lambda: make_sharded_step(params, parts, make_optimizer)()


def averages_gradients_too(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
    step_and_broadcast = make_sharded_step(params, parts, make_optimizer)

    def step() -> None:
        for param in params:
            assert param.grad is not None
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
        step_and_broadcast()

    return step


def returns_nothing(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> None:
    make_sharded_step(params, parts, make_optimizer)()


def one_message_for_each_owner(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
    mine = [params[number] for number in parts[dist.get_rank()]]
    optimizer = make_optimizer(mine) if mine else None

    def step() -> None:
        if optimizer is not None:
            optimizer.step()
        for owner, part in enumerate(parts):
            if part:
                message = torch.cat([params[number].detach().flatten() for number in part])
                dist.broadcast(message, src=owner)
                pieces = message.split([params[number].numel() for number in part])
                for number, piece in zip(part, pieces, strict=True):
                    params[number].data.copy_(piece.view_as(params[number]))

    return step


def without_waiting(params: Params, parts: Parts, make_optimizer: MakeOptimizer) -> Step:
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


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = (2, 3, 4, 1, 2)[number % 5], rng.getrandbits(32)
    about_optimizer, make_optimizer = OPTIMIZERS[number % 3]
    # In draw 4 one rank owns nothing. (On more ranks, how a solution fails there could depend on who comes first.)
    count = 3 if number == 0 else 1 if number == 4 else rng.randint(max(3, world_size), 6)
    shapes = draw_shapes(rng, count)
    parts = shuffled_parts(rng, shapes, world_size)
    if number == 0:
        parts.sort(key=len)  # so that rank 0 is not the one with most, and shows whose state it holds

    def args(rank: int) -> tuple[Params, Parts, MakeOptimizer, list[list[torch.Tensor]]]:
        return parameters(shapes, seed), parts, make_optimizer, gradients(shapes, 3, seed)

    about = f"{ranks(world_size)}, {len(shapes)} parameters, {about_optimizer}, owned as {parts}"
    return Case(world_size=world_size, args=args, about=about)


def parameters_afterwards(
    solution: Solution, params: Params, parts: Parts, make_optimizer: MakeOptimizer, grads: list[list[torch.Tensor]]
) -> Any:
    step = solution(params, parts, make_optimizer)
    for of_step in grads if callable(step) else ():
        give_gradients(params, of_step)
        step()
    mark("after step()")
    return list(params) if callable(step) else step


SHARDED_STEP = Exercise(
    name="zero1.sharded_step",
    title="A sharded step",
    task="Make an optimizer for the parameters that this rank owns, and return a function that makes a step: update "
    "them, then bring every parameter from its owner to all other ranks. A rank holds optimizer state for its own "
    "parameters alone. It may own none at all, and then still takes part.",
    stub=stubs.make_sharded_step,
    reference=make_sharded_step,
    draw=draw,
    trial=parameters_afterwards,
    inputs_matter=False,
    measured=True,
    rules=[
        holds_no_more("optimizer", "after step()"),
        sends_no_more("one broadcast of each parameter, from its owner", slack=0.01),
    ],
    variants={"one-message-for-each-owner": one_message_for_each_owner, "without-waiting": without_waiting},
    mistakes=[
        Mistake(
            id="unsharded",
            solution=lambda params, parts, make_optimizer: make_optimizer(params).step,
            told="This is plain data parallel: every rank updates every parameter, so the numbers are right and every "
            "rank holds the state of all. Nothing was saved.",
            action="Give `make_optimizer` the parameters of `parts[dist.get_rank()]` only.",
        ),
        Mistake(
            id="unsharded-and-broadcast",
            solution=step_with(owned=lambda parts: sorted(number for part in parts for number in part)),
            told="The optimizer knows all parameters, so each rank updates all and holds the state of all; then the "
            "broadcasts write the same numbers over them. It costs more than data parallel, and saves nothing.",
            action="Give `make_optimizer` the parameters of `parts[dist.get_rank()]` only.",
        ),
        Mistake(
            id="never-broadcasts",
            solution=step_with(bring=lambda params, parts: None),
            told="Each rank updates its own parameters, and nobody learns of it: on every other rank they are still "
            "what they were. From the second batch on each rank trains another model.",
            action="After `optimizer.step()`, broadcast every parameter from its owner.",
        ),
        Mistake(
            id="from-rank-0",
            solution=step_with(bring=broadcast_from(lambda: 0)),
            told="All parameters come from rank 0, which has updated only its own. Its old values overwrite what the "
            "other owners have just computed.",
            action="The source of each broadcast is the owner: `for owner, part in enumerate(parts)`.",
        ),
        Mistake(
            id="own-rank-as-src",
            solution=step_with(bring=broadcast_from(dist.get_rank)),
            told="Every rank names itself as the source, and all have to name the same: the owner.",
            action="Find the owner of the parameter, and pass that as `src`, on every rank.",
        ),
        Mistake(
            id="only-the-owner-calls",
            solution=step_with(bring=broadcast_own),
            told="Each rank broadcasts only its own parameters, so it never takes part in the broadcasts of others: "
            "the ranks meet in different calls. The one who receives has to call as well.",
            action="Let every rank go through all owners and all their parameters, in the same order.",
        ),
        Mistake(
            id="sums",
            solution=step_with(bring=sum_all),
            told="An all-reduce adds up what the ranks have: the updated value of one, and the old values of the "
            "others. What should travel is one rank's value, as it is.",
            action="Use `dist.broadcast` from the owner.",
        ),
        Mistake(
            id="averages",
            solution=step_with(bring=average_all),
            told="You average the parameters. Only the owner has updated, so its step is divided by the number of "
            "ranks, and the send costs twice as much as a broadcast.",
            action="Use `dist.broadcast` from the owner.",
        ),
        Mistake(
            id="broadcasts-first",
            solution=broadcasts_first,
            told="You broadcast before the step, so what travels is the old values, and what each owner computes stays "
            "with it.",
            action="Call `optimizer.step()` first.",
        ),
        Mistake(
            id="plain-list",
            solution=plain_list,
            told="Where a rank owns nothing, `make_optimizer` gets an empty list, and torch refuses to make an "
            "optimizer for that.",
            action='A group may be empty: give `[{"params": mine}]`. Or make no optimizer where there is nothing to '
            "update.",
        ),
        Mistake(
            id="absent-where-it-owns-nothing",
            solution=absent_where_it_owns_nothing,
            told="A rank that owns nothing does nothing, so it is missing from the broadcasts. It still needs the "
            "parameters of the others.",
            action="Leave out its update, and not its part in the broadcasts.",
        ),
        Mistake(
            id="made-anew",
            solution=made_anew,
            told="You make the optimizer inside `step`, so each step begins with empty state: no momentum, no second "
            "moment, step 1 for ever.",
            action="Make the optimizer once, outside `step`.",
        ),
        Mistake(
            id="into-a-copy",
            solution=step_with(
                bring=lambda params, parts: broadcast_all([nn.Parameter(p.detach().clone()) for p in params], parts)
            ),
            told="The broadcasts write into something else than the model's parameters, such as copies of them or the "
            "gradients. So what the others have updated never arrives.",
            action="Broadcast `param.detach()`, which is the parameter's own memory.",
        ),
        Mistake(
            id="part-of-the-next",
            solution=step_with(owned=lambda parts: parts[(dist.get_rank() + 1) % len(parts)]),
            told="Each rank updates the part of its neighbour, and then the owner broadcasts its own values, which "
            "nobody has updated there.",
            action="This rank's part is `parts[dist.get_rank()]`.",
        ),
        Mistake(
            id="averages-gradients-too",
            solution=averages_gradients_too,
            told="You average gradients that are averaged already. The numbers do not change, and each rank sends "
            "three times as much as it needs to.",
            action="Leave the gradients as they are.",
        ),
        Mistake(
            id="returns-nothing",
            solution=returns_nothing,
            told="You make a step at once and return None. Asked for is a function that makes one whenever it is "
            "called.",
            action="Define `step` inside, and end with `return step`, without parentheses.",
        ),
    ],
    hints=[
        "After `optimizer.step()` on every rank: which parameters are new on which rank? Who lacks what?",
        "An optimizer keeps state for what it is given, and for nothing else. So give it this rank's part. After its "
        "step, each parameter is up to date on one rank, its owner, and a broadcast is the way from one rank to all.",
        '`make_optimizer([{"params": mine}])`, since a group may be empty; `dist.broadcast(param.detach(), '
        "src=owner)`, called by every rank for every parameter, in the same order.",
        '```python\nmine = [params[number] for number in ...]\noptimizer = make_optimizer([{"params": mine}])\n\n'
        "def step():\n    optimizer.step()\n    for owner, part in enumerate(parts):\n        for number in part:\n"
        "            ...\n\nreturn step\n```",
    ],
    explanation="Nothing in the optimizer had to change: torch allocates state for the parameters that it is given, "
    "at the first step. Sharding is a question of whom you tell. Every rank goes through the same parameters in the "
    "same order, so every broadcast has all ranks in it; the rank decides which parameters are *given* to the "
    "optimizer, and not which calls are made. On a real network you would not wait for each broadcast before you "
    "start the next, and small parameters would share a message: `zero.ShardedOptimizer` does both.",
)
