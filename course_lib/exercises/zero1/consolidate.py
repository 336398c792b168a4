"""The whole optimizer's state dict, from the parts of all ranks."""

from __future__ import annotations

import random
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size
from . import stubs
from .data import OPTIMIZERS, draw_shapes, give_gradients, gradients, parameters, ranks, shuffled_parts
from .rules import sends_no_more

Parts = list[list[int]]
State = dict[str, Any] | None


def consolidate(optimizer: Optimizer, parts: list[list[int]]) -> dict[str, Any] | None:
    """Return, on rank 0, the state dict of one optimizer for all parameters; elsewhere None."""
    mine = optimizer.state_dict()
    states: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine["state"], states, dst=0)
    if states is None:
        return None
    whole: dict[int, Any] = {}
    for part, state in zip(parts, states, strict=True):
        whole |= {number: state[place] for place, number in enumerate(part) if place in state}
    group = mine["param_groups"][0] | {"params": list(range(sum(map(len, parts))))}
    return {"state": whole, "param_groups": [group]}


def gathered(optimizer: Optimizer) -> list[Any] | None:
    states = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(optimizer.state_dict()["state"], states, dst=0)
    return states


def renumbered(states: list[Any], parts: Parts) -> dict[int, Any]:
    return {
        number: state[place]
        for part, state in zip(parts, states, strict=True)
        for place, number in enumerate(part)
        if place in state
    }


def with_group(state: dict[int, Any], optimizer: Optimizer, parts: Parts) -> dict[str, Any]:
    options = optimizer.state_dict()["param_groups"][0]
    return {"state": state, "param_groups": [options | {"params": list(range(sum(map(len, parts))))}]}


def zipped(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    whole: dict[int, Any] = {}
    for part, state in zip(parts, states, strict=True):
        whole |= zip(part, state.values(), strict=False)
    return with_group(whole, optimizer, parts)


def its_own_alone(optimizer: Optimizer, parts: Parts) -> State:
    return optimizer.state_dict() if dist.get_rank() == 0 else None


def own_renumbered(optimizer: Optimizer, parts: Parts) -> State:
    if dist.get_rank() != 0:
        return None
    mine = optimizer.state_dict()["state"]
    return with_group({number: mine[p] for p, number in enumerate(parts[0]) if p in mine}, optimizer, parts)


def not_renumbered(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    return with_group({number: state[number] for state in states for number in state}, optimizer, parts)


def one_after_the_other(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    return with_group(dict(enumerate(of_one for state in states for of_one in state.values())), optimizer, parts)


def on_every_rank(optimizer: Optimizer, parts: Parts) -> State:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, optimizer.state_dict()["state"])
    return with_group(renumbered(states, parts), optimizer, parts)


def gathered_by_all(optimizer: Optimizer, parts: Parts) -> State:
    whole = on_every_rank(optimizer, parts)
    return whole if dist.get_rank() == 0 else None


def only_rank_0_calls(optimizer: Optimizer, parts: Parts) -> State:
    if dist.get_rank() != 0:
        return None
    return consolidate(optimizer, parts)


def each_its_own_dst(optimizer: Optimizer, parts: Parts) -> State:
    states: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(optimizer.state_dict()["state"], states, dst=dist.get_rank())
    return with_group(renumbered(states, parts), optimizer, parts) if dist.get_rank() == 0 else None


def list_everywhere(optimizer: Optimizer, parts: Parts) -> State:
    states: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(optimizer.state_dict()["state"], states, dst=0)
    return with_group(renumbered(states, parts), optimizer, parts) if dist.get_rank() == 0 else None


def own_group(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    return {"state": renumbered(states, parts), "param_groups": optimizer.state_dict()["param_groups"]}


def numbers_by_owner(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    whole = with_group(renumbered(states, parts), optimizer, parts)
    whole["param_groups"][0]["params"] = [number for part in parts for number in part]
    return whole


def expects_state_for_all(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    pairs = [(number, state[p]) for part, state in zip(parts, states, strict=True) for p, number in enumerate(part)]
    return with_group(dict(pairs), optimizer, parts)


def state_alone(optimizer: Optimizer, parts: Parts) -> State:
    whole = consolidate(optimizer, parts)
    return None if whole is None else whole["state"]


def a_group_for_each_rank(optimizer: Optimizer, parts: Parts) -> State:
    states = gathered(optimizer)
    if states is None:
        return None
    options = optimizer.state_dict()["param_groups"][0]
    return {"state": renumbered(states, parts), "param_groups": [options | {"params": list(part)} for part in parts]}


def whole_dicts(optimizer: Optimizer, parts: Parts) -> State:
    dicts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(optimizer.state_dict(), dicts, dst=0)
    if dicts is None:
        return None
    whole: dict[str, Any] = {"state": {}, "param_groups": dicts[0]["param_groups"]}
    for part, of_rank in zip(parts, dicts, strict=True):
        for place, state in of_rank["state"].items():
            whole["state"][part[place]] = state
    whole["param_groups"][0]["params"] = sorted(number for part in parts for number in part)
    return whole


def renumbered_beforehand(optimizer: Optimizer, parts: Parts) -> State:
    rank, mine = dist.get_rank(), optimizer.state_dict()
    numbered = {parts[rank][place]: state for place, state in mine["state"].items()}
    states: list[Any] | None = [{} for _ in parts] if rank == 0 else None
    dist.gather_object(numbered, states, dst=0)
    if states is None:
        return None
    merged = {number: state for of_rank in states for number, state in of_rank.items()}
    group = dict(mine["param_groups"][0], params=[*range(sum(len(part) for part in parts))])
    return {"state": merged, "param_groups": [group]}


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
    about_optimizer, _ = OPTIMIZERS[(number + 1) % 3]
    count = 3 if number in (0, 2) else rng.randint(4, 6)  # on 4 ranks, one owns nothing
    shapes = draw_shapes(rng, count)
    parts = shuffled_parts(rng, shapes, world_size)
    while world_size > 1 and [n for part in parts for n in part] == sorted(range(count)):
        parts = shuffled_parts(rng, shapes, world_size)
    unused = max(parts, key=len)[0] if number in (1, 4) else None  # others of its owner come after it

    def args(rank: int) -> tuple[Any, ...]:
        return shapes, parts, (number + 1) % 3, unused, seed

    about = f"{ranks(world_size)}, {count} parameters, {about_optimizer}, owned as {parts}"
    return Case(world_size=world_size, args=args, about=about + ", one never used" * (unused is not None))


def consolidated(
    solution: Solution, shapes: list[tuple[int, ...]], parts: Parts, kind: int, unused: int | None, seed: int
) -> Any:
    """The whole state dict after two steps, with its keys in order."""
    params = parameters(shapes, seed)
    mine = [params[number] for number in parts[dist.get_rank()]]
    optimizer = OPTIMIZERS[kind][1]([{"params": mine}])
    for grads in gradients(shapes, 2, seed):
        give_gradients(params, [None if number == unused else grad for number, grad in enumerate(grads)])
        optimizer.step()
    return _in_order(solution(optimizer, parts))


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value, key=str)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


CONSOLIDATE = Exercise(
    name="zero1.consolidate",
    title="One state dict from all parts",
    task="Gather the optimizer state of all ranks on rank 0, and put it together as one optimizer for all parameters "
    'would give it in `state_dict()`: `{"state": {number: ...}, "param_groups": [...]}` with the model\'s numbers, '
    "0, 1, 2, ..., in its one group. Other ranks return None, and never hold the state of others. A parameter that "
    "was never used has no state.",
    stub=stubs.consolidate,
    reference=consolidate,
    draw=draw,
    trial=consolidated,
    inputs_matter=False,
    rules=[sends_no_more("each rank's state once, to rank 0", slack=0.4)],
    variants={"whole-dicts": whole_dicts, "renumbered-beforehand": renumbered_beforehand},
    mistakes=[
        Mistake(
            id="its-own-alone",
            solution=its_own_alone,
            told="Rank 0 returns its own part. Who saves that, saves a fraction of the state and finds out when it is "
            "loaded.",
            action="Gather the states of all ranks first: `dist.gather_object`.",
        ),
        Mistake(
            id="own-renumbered",
            solution=own_renumbered,
            told="The numbers are right, and there is rank 0's state alone under them.",
            action="Gather the states of all ranks first: `dist.gather_object`.",
        ),
        Mistake(
            id="not-renumbered",
            solution=not_renumbered,
            told="Every rank numbers its own parameters from 0, so the states of different ranks have the same "
            "numbers, and the later ones overwrite the earlier.",
            action="Place `place` on rank r is parameter `parts[r][place]`.",
        ),
        Mistake(
            id="zipped",
            solution=zipped,
            told="You pair a rank's parameters with its states one by one. A parameter that was never used has no "
            "state, so every state behind it goes to the wrong parameter.",
            action="Go by the keys: the state of `parts[r][place]` is at `place`, if there is one.",
        ),
        Mistake(
            id="one-after-the-other",
            solution=one_after_the_other,
            told="You number the states in the order in which ranks have them. Each would be loaded for another "
            "parameter: often of another shape, and where shapes agree nobody would notice.",
            action="Place `place` on rank r is parameter `parts[r][place]`.",
        ),
        Mistake(
            id="on-every-rank",
            solution=on_every_rank,
            told="Every rank returns the whole state, so for a moment each holds what was to be sharded. That is when "
            "a job dies: at the first checkpoint.",
            action="Use `dist.gather_object(..., dst=0)`, and return None on the other ranks.",
        ),
        Mistake(
            id="gathered-by-all",
            solution=gathered_by_all,
            told="The result is right, but every rank has received the state of all the others on the way: "
            "`all_gather_object` brings everything to everyone.",
            action="Use `dist.gather_object(..., dst=0)`, which brings it to rank 0 alone.",
        ),
        Mistake(
            id="only-rank-0-calls",
            solution=only_rank_0_calls,
            told="The other ranks return before the gather, so rank 0 waits for states that nobody brings.",
            action="Let every rank call `dist.gather_object`; return None afterwards.",
        ),
        Mistake(
            id="each-its-own-dst",
            solution=each_its_own_dst,
            told="Every rank names itself as the destination, and all have to name the same.",
            action="Pass `dst=0` on every rank.",
        ),
        Mistake(
            id="list-everywhere",
            solution=list_everywhere,
            told="Every rank passes a list for the states. Only the destination receives; torch wants None elsewhere.",
            action="Make the list on rank 0, and pass None on the others.",
        ),
        Mistake(
            id="own-group",
            solution=own_group,
            told="The states are complete, and the group lists rank 0's parameters only, so an optimizer for all "
            "parameters refuses the state dict.",
            action="Give the group all numbers: `list(range(count))`.",
        ),
        Mistake(
            id="numbers-by-owner",
            solution=numbers_by_owner,
            told="The group lists the numbers owner by owner. When it is loaded, the numbers of a group are matched "
            "with its parameters in order, so each would get another's state.",
            action="List them in the model's order: `list(range(count))`.",
        ),
        Mistake(
            id="expects-state-for-all",
            solution=expects_state_for_all,
            told="You look up a state for every parameter, and one that never had a gradient has none.",
            action="Take the states that there are: `if place in state`.",
        ),
        Mistake(
            id="state-alone",
            solution=state_alone,
            told="You return the states without the groups. `load_state_dict` wants both, and the learning rate is in "
            "the groups.",
            action='Return `{"state": ..., "param_groups": [...]}`.',
        ),
        Mistake(
            id="a-group-for-each-rank",
            solution=a_group_for_each_rank,
            told="There is a group for each rank. The optimizer for all parameters has one, and the ranks of tomorrow "
            "may be others.",
            action="Make one group with all numbers.",
        ),
    ],
    hints=[
        "Rank 1 tells you the state of its parameter 0. Which parameter of the model is that?",
        "A state dict knows parameters by number only, and each rank counts its own from 0. `parts[rank][place]` "
        "translates. Rank 0 needs every rank's states; the others need nothing.",
        "`optimizer.state_dict()`; `dist.gather_object(object, list_on_rank_0, dst=0)` with None for the list "
        "elsewhere; `enumerate(part)` gives place and number.",
        "```python\nmine = optimizer.state_dict()\nstates = [None] * dist.get_world_size() if dist.get_rank() == 0 "
        'else None\ndist.gather_object(mine["state"], ..., dst=0)\nif states is None:\n    return None\nwhole = '
        '{}\nfor part, state in zip(parts, states):\n    ...\ngroup = mine["param_groups"][0] | {"params": '
        "...}\nreturn ...\n```",
    ],
    explanation="Nothing in this state dict tells that it was ever sharded, so it fits a plain optimizer, or any "
    "other number of ranks. That is the point: clusters change between two runs. The price is that rank 0 holds all "
    "of it for a moment, in memory of the host if you move it there first, as `zero.ShardedOptimizer` does. Where "
    "even that is too much, each rank writes its own part: see `zero.save_checkpoint`.",
)
