"""The whole optimizer's state dict, from the parts of all ranks."""

import random
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from ...exercises import Case, Exercise, Solution, draw_world_size, sends_no_more
from .data import OPTIMIZERS, draw_shapes, give_gradients, gradients, parameters, shuffled_parts

Parts = list[list[int]]
State = dict[str, Any] | None


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

    what = f"{count} parameters, {about_optimizer}, owned as {parts}"
    return Case(world_size=world_size, args=args, what=what + ", one never used" * (unused is not None))


def consolidated(
    solution: Solution, shapes: list[tuple[int, ...]], parts: Parts, kind: int, unused: int | None, seed: int
) -> Any:
    """Return the whole state dict after two steps, with its keys in order, and whether the optimizer is as it was."""
    params = parameters(shapes, seed)
    mine = [params[number] for number in parts[dist.get_rank()]]
    optimizer = OPTIMIZERS[kind][1]([{"params": mine}])
    for grads in gradients(shapes, 2, seed):
        give_gradients(params, [None if number == unused else grad for number, grad in enumerate(grads)])
        optimizer.step()
    whole = solution(optimizer, parts)
    kept = list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, mine))
    return {"the state dict": _in_order(whole), "the optimizer still has its own parameters": kept}


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value, key=str)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


exercise = Exercise("zero1.consolidate", title="One state dict from all parts", draw=draw, trial=consolidated,
    inputs_matter=False, case_count=5,
    rules=[sends_no_more("one `dist.gather_object` of each rank's state, to rank 0", slack=0.4)], task="""
    Gather the optimizer state of all ranks on rank 0, and send it nowhere else. Return there what one optimizer for all
    parameters would return from `state_dict()`: `{"state": {number: ...}, "param_groups": [...]}`, with the model's
    numbers 0, 1, 2, ... in its one group. Other ranks return None, and never hold the state of other ranks. A parameter
    that was never used has no state.""", hints="""
    Rank 1 sends you the state of its parameter 0. Which parameter of the model is that?

    A state dict knows parameters by number, and each rank counts its own from 0. `parts[rank][place]` is the
    number in the model. Rank 0 needs every rank's states; the other ranks need nothing.

    `optimizer.state_dict()`; `dist.gather_object(object, list_on_rank_0, dst=0)`, where the other ranks pass None for
    the list; `enumerate(part)` returns place and number.

    ```python
    mine = optimizer.state_dict()
    states = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine["state"], ..., dst=0)
    if states is None:
        return None
    whole = {}
    for part, state in zip(parts, states):
        ...
    group = mine["param_groups"][0] | {"params": ...}
    return ...
    ```
    """, explanation="""
    Nothing in this state dict shows that it was ever sharded, so it fits a plain optimizer, or a different number of
    ranks. The cluster may change between two runs, so a checkpoint has to fit both. The price: rank 0 holds all of the
    state for a moment, in the memory of the host if you move it there first, as `zero.ShardedOptimizer` does. If even
    this is too much, each rank writes its own part: see `zero.save_checkpoint`.""")


@exercise
def consolidate(optimizer: Optimizer, parts: list[list[int]]) -> dict[str, Any] | None:
    """Return, on rank 0, the state dict of one optimizer for all parameters; elsewhere None.

    On each rank, `optimizer` has one group: the parameters that `parts[rank]` lists, in that order. A
    rank sends its state once, to rank 0 only.
    """
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


RENUMBERED = "{number: state[place] for place, number in enumerate(part) if place in state}"
GATHER = 'dist.gather_object(mine["state"], states, dst=0)'
LISTED = "list(range(sum(map(len, parts))))"
GROUP = 'mine["param_groups"][0] | {"params": list(range(sum(map(len, parts))))}'
EVERYWHERE = {" if dist.get_rank() == 0 else None": "", GATHER: 'dist.all_gather_object(states, mine["state"])'}


@exercise.mistake
def its_own_alone(optimizer: Optimizer, parts: Parts) -> State:
    """Rank 0 returns only its own part. A checkpoint with this part has a fraction of the state, and you find out when
    you load it. Next: gather the states of all ranks first: `dist.gather_object`."""
    return optimizer.state_dict() if dist.get_rank() == 0 else None


exercise.edit("not-renumbered", {RENUMBERED: "state"}, """
    Your states have numbers that are not the model's. Every rank numbers its own parameters from 0, in the order of its
    part; if these are kept, states of several ranks have the same number.
    Next: give each state the model's number of its parameter, which `parts` has.""")

ARRIVAL = "{len(whole) + place: one for place, one in enumerate(state.values())}"
ARRIVED = """
    You number the states 0, 1, 2, ... in the order in which the ranks deliver them. That is the order of the owners,
    and the model has a different one. Next: give each state the model's number of its parameter, which `parts` has."""

exercise.edit("numbered-as-they-arrive", {RENUMBERED: ARRIVAL}, ARRIVED)

exercise.edit("numbered-and-listed-as-they-arrive", {RENUMBERED: ARRIVAL, LISTED: "sorted(whole)"}, ARRIVED)

exercise.edit("zipped", {RENUMBERED: "dict(zip(part, state.values(), strict=False))"}, """
    You pair a rank's parameters with its states one by one. A parameter that was never used has no state, so every
    state after it goes to the wrong parameter.
    Next: use the keys of the state, which are places in the part of that rank; some may be missing.""")

exercise.edit("on-every-rank", EVERYWHERE, """
    Every rank returns the whole state, so for a moment each rank holds what you sharded. A job that has no memory for
    it ends at its first checkpoint. Next: use the collective that gathers objects on one rank, and return None on the
    others.""")

exercise.edit("gathered-by-all", EVERYWHERE | {"states is None": "dist.get_rank() != 0"}, """
    The result is right, but every rank received the state of all ranks: `all_gather_object` brings every object to
    every rank. Next: use the collective that gathers objects on one rank.""")

exercise.edit("only-rank-0-calls", {"states: list": "if dist.get_rank() != 0:\n    return None\nstates: list"}, """
    The other ranks return before the gather, so rank 0 waits for states that never arrive.
    Next: let every rank call `dist.gather_object`; return None afterwards.""")

exercise.edit("own-group", {' | {"params": list(range(sum(map(len, parts))))}': ""}, """
    The states are complete, and the group lists only rank 0's parameters. An optimizer for all parameters refuses such
    a state dict. Next: put the numbers of all parameters into the group.""")

exercise.edit("lists-only-states", {LISTED: "sorted(whole)"}, """
    The states are right, and the group lists only parameters that have a state. A parameter that was never used has no
    state, and belongs to the group. Next: count the parameters in `parts`.""")

exercise.edit("changes-the-optimizer", {GROUP: GROUP.replace('mine["param_groups"][0] | {"params": ',
    'optimizer.param_groups[0]\ngroup["params"] = ')[:-1]}, """
    You put the numbers into the optimizer's own group, where its parameters were, so rank 0 can make no further step.
    Next: put them into the group of `optimizer.state_dict()`, which is a copy.""")

exercise.edit("a-group-for-each-rank", {'"param_groups": [group]':
    '"param_groups": [group | {"params": part} for part in parts]'}, """
    The states are right, but you return a group for each rank. One optimizer for all parameters has one group here.
    Next: put the numbers of all parameters into one group.""")

exercise.edit("groups-of-the-ranks", {'"param_groups": [group]':
    '"param_groups": [group | {"params": list(range(len(part)))} for part in parts]'}, """
    The states are right, but you return the ranks' own groups, with numbers that each rank counts from 0. One optimizer
    for all parameters has one group here. Next: make one group, with the model's numbers of all parameters.""")

exercise.edit("expects-state-for-all", {" if place in state": ""}, """
    You look up a state for every parameter. A parameter that never had a gradient has no state.
    Next: take only states that exist.""")

exercise.edit("listed-by-owner", {"list(range(sum(map(len, parts))))": "[number for part in parts for number in part]"},
    """
    The states are right, and the group lists the parameters in the order of their owners. An optimizer for all
    parameters lists them in the order of the model, and pairs the lists by place when it loads.
    Next: in which order does the model have its parameters?""")


@exercise.variant
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


exercise.variant_edit("renumbered-beforehand", {GATHER: "part = parts[dist.get_rank()]\nnumbered = {part[place]: state "
    'for place, state in mine["state"].items()}\ndist.gather_object(numbered, states, dst=0)', RENUMBERED: "state"})
