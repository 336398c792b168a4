"""Repair: a module that only some ranks use."""


import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ...exercises import Case, Exercise, Solution


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = 2 + number % 3, rng.getrandbits(32)
    users = [{world_size - 1}, {0}, set(), {0, 1}][number % 4]
    what = f"ranks that use the expert: {', '.join(map(str, sorted(users))) or 'none'}"
    return Case(world_size=world_size, args=lambda rank: (rank in users, seed), what=what)


def output_and_gradients(solution: Solution, use: bool, seed: int) -> dict[str, Any]:
    """Return the output, and this rank's shards of the averaged gradients."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("first", "expert", "last")})
    for unit in model.values():
        fully_shard(unit)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    output = solution(model, x, use)
    output.square().mean().backward()
    seen = {f"the gradient of {name}": shard(param.grad) for name, param in model.named_parameters()}
    return {"the output": output.detach()} | seen


def shard(grad: Tensor | None) -> Tensor | None:
    """Return this rank's shard; zeros are as good as no gradient."""
    local = grad.to_local() if isinstance(grad, DTensor) else grad
    return local.clone() if local is not None and local.any() else None


exercise = Exercise("cluster.optional_module", title="Repair: a module for some ranks", draw=draw,
    trial=output_and_gradients, inputs_matter=False, case_count=4, task="""
    `model` has three units of FSDP2: `first`, `expert` and `last`. Some ranks need `expert` for their part of the
    batch, others do not. The program stops as soon as ranks differ. Repair it: each rank's output and gradients are
    those of the program as it is written.""", hints="""
    Which collectives does a rank call that skips the expert, in forward and in backward?

    A unit is gathered before its forward, and its gradients are reduced after its backward. Both need every rank. So
    every rank must call the expert, and its output must take part in the loss, even where it does not count.

    A number times 0 adds nothing to the output, and its gradient is 0. Autograd still goes back through it.

    ```python
    extra = model["expert"](x)
    x = x + ... * extra
    ```
    """, explanation="""
    A module that is a unit is a collective: either all ranks call it, or none. On a rank that does not need the expert,
    its output times 0 changes nothing and still belongs to the graph, so backward reaches the unit and reduces zeros.
    That costs a useless computation. The ranks may also agree first, by one small all-reduce, and skip the expert where
    nobody needs it. The same happens to a layer that is dropped at random, to a branch that depends on the data, and
    to ranks with different numbers of batches. If you choose the units, do not make an optional module one: leave it in
    the unit around it, which every rank calls, and call `model.set_reduce_scatter_unused_params(True)`. FSDP2 then
    reduces zeros for parameters without a gradient, as DDP does with `find_unused_parameters`.""")


@exercise
def optional_forward(model: nn.ModuleDict, x: Tensor, use: bool) -> Tensor:
    """Return the model's output for this rank's `x` of [2, 4].

    If `use`, the expert's output is added to the output of `first`. Ranks may differ in `use`.
    """
    x = model["first"](x)
    extra = model["expert"](x)
    x = x + (extra if use else 0 * extra)
    return model["last"](x)


@exercise.start
def as_written(model, x, use):
    x = model["first"](x)
    if use:
        x = x + model["expert"](x)
    return model["last"](x)


CALL, ADD = 'extra = model["expert"](x)\n', "x = x + (extra if use else 0 * extra)"

exercise.edit("some-ranks-alone", {CALL: "", ADD: 'x = x + model["expert"](x) if use else x'}, """
    Only some ranks call the expert. Its all-gather pairs with a different unit's call on the other ranks, and from
    there on the ranks are one call apart.
    Next: call the expert on every rank, and count its output only where `use` is true.""")

exercise.edit("everyone-uses-it", {"(extra if use else 0 * extra)": "extra"}, """
    Every rank adds the expert's output, even where `use` is false. Next: multiply the output by 0 on those ranks.""")

exercise.edit("never-used", {CALL: "", ADD: "pass"}, """
    No rank uses the expert. Next: call it on every rank, and add its output where `use` is true.""")

exercise.edit("in-forward-alone", {"extra if use else 0 * extra": "extra if use else 0"}, """
    Every rank gathers the expert, but where `use` is false its output is not in the graph. So backward does not come to
    the unit there, and the other ranks wait in its reduce-scatter.
    Next: keep the output in the graph: add it times 0.""")

exercise.edit("zero-for-the-expert", {'model["expert"](x)': 'model["expert"](x * use)',
    "extra if use else 0 * extra": "extra"}, """
    Where `use` is false, the expert gets zeros. Its bias is still added, and still gets a gradient.
    Next: multiply the expert's output, not its input.""")

exercise.edit("if-one-uses-it", {CALL: "flag = torch.tensor(float(use))\ndist.all_reduce(flag)\n" + CALL,
    "if use": "if flag > 0"}, """
    As soon as one rank uses the expert, every rank adds its output.
    Next: let the flag of all ranks decide who calls, and this rank's `use` what is added.""")

exercise.edit("only-if-all-use-it", {CALL: "flag = torch.tensor(float(use))\ndist.all_reduce(flag)\n" + CALL,
    "if use": "if flag == dist.get_world_size()"}, """
    A rank adds the expert's output only if all ranks use it. Next: let this rank's `use` decide what is added.""")


@exercise.variant
def by_a_weight(model: Any, x: Tensor, use: bool) -> Tensor:
    x = model["first"](x)
    return model["last"](x + float(use) * model["expert"](x))


@exercise.variant
def agreed_first(model: Any, x: Tensor, use: bool) -> Tensor:
    x = model["first"](x)
    users = torch.tensor(int(use))
    dist.all_reduce(users)
    if users > 0:
        extra = model["expert"](x)
        x = x + (extra if use else 0 * extra)
    return model["last"](x)
