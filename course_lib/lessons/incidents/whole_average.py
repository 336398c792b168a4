"""Incident: memory does not fall with the number of ranks, because something holds whole parameters."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ...exercises import Case, Exercise, Solution, lets_go
from ...meter import mark

BETWEEN = "between two steps"


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (2, 4)[number % 2], 8 * rng.randint(3, 4), rng.getrandbits(31)
    what = f"2 layers of width {width}, 3 steps"
    return Case(world_size=world_size, args=lambda rank: (width, seed), what=what)


def averaged(solution: Solution, width: int, seed: int) -> dict[str, Any]:
    """Train on three batches; between two steps, note what is held. Return the average model, by name."""
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, 1, bias=False))]
    inputs = torch.randn(3, 4, width, generator=torch.Generator().manual_seed(seed + dist.get_rank()))

    def batches() -> Iterator[Tensor]:
        for number, x in enumerate(inputs):
            if number == 2:
                mark(BETWEEN)
            yield x

    average = solution(layers.pop(), batches())
    return {name: value.detach() for name, value in average.items()}


exercise = Exercise("incidents.whole_average", title="Incident: twice the ranks, the same memory", draw=draw,
    answers={
        "held": 2400,
        "where": "the average, filled before fully_shard",
    },
    trial=averaged, measured=True, inputs_matter=False, rules=[lets_go(BETWEEN, slack=400)], case_count=2, task="""
    The model is sharded with FSDP2, and with twice the ranks a rank holds nearly as much as before. Find what still
    has the size of the whole model between two steps, and repair it. The program returns the same as before: on every
    rank the whole average of the parameters over the steps.
    """, hints="""
    Divide what a rank holds between two steps by the size of the model, with 2 ranks and with 4. Which part does not
    shrink?

    Memory is held by whatever refers to a tensor: a list, a dict, a closure, a hook. FSDP2 shards the module's
    parameters, and knows nothing of copies.

    The average works on each element by itself, so each rank can average its own shards: `param.to_local()`, or the
    DTensor itself. Gather only what leaves the program.

    ```python
    average = {name: param.detach().clone() for name, param in model.named_parameters()}   # after fully_shard
    ...
    return {name: value.full_tensor() for name, value in ...}
    ```
    """, explanation="""
    The dict was filled before the model was sharded, so it held a whole copy on every rank, and each step gathered
    every parameter to update it. Sharding a model shards no copy that was made before. Reports of the same fault:
    [fairscale issue 1093](https://github.com/facebookresearch/fairscale/issues/1093), and
    [a repair like yours](https://github.com/NCAR/miles-credit/issues/414). The test is a division: what a rank holds,
    by the number of ranks.
    """)


@exercise
def train(model: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Train `model` with FSDP2 and return, on every rank, the running average of its parameters: whole, by name.

    Between two steps a rank holds only its shards: of the parameters, of their average, and of nothing else.
    """
    fully_shard(model)
    average = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, param in model.named_parameters():
            average[name].lerp_(param.detach(), 0.1)
    return {name: value.full_tensor() for name, value in average.items()}


SHARD = "fully_shard(model)\n"
COPY = "average = {name: param.detach().clone() for name, param in model.named_parameters()}\n"
UPDATE = "average[name].lerp_(param.detach(), 0.1)"
RETURN = "return {name: value.full_tensor() for name, value in average.items()}"
WHOLE = {SHARD: "", COPY: COPY + SHARD, UPDATE: "average[name].lerp_(param.full_tensor().detach(), 0.1)",
    RETURN: "return average"}

exercise.start_edit(WHOLE)

exercise.edit("whole-copies", WHOLE | {SHARD: "dist.barrier()\n"}, """
    Between two steps a rank holds a whole copy of every parameter: the dict was filled with whole tensors, and FSDP2
    does not shard it. Next: fill it with shards.""")

exercise.edit("gathered-into-the-dict", {COPY: COPY.replace("param.detach().clone()", "param.full_tensor().detach()"),
    UPDATE: WHOLE[UPDATE], RETURN: WHOLE[RETURN]}, """
    You fill the dict after sharding, and gather each parameter for it. The copies are whole again.
    Next: keep the average as shards, and gather when the program returns.""")

exercise.edit("keeps-the-model-that-was", {SHARD: "first = [*model.parameters()]\n" + SHARD,
    RETURN: "first.clear()\n" + RETURN}, """
    Something still refers to whole tensors, such as the parameters from before the sharding, so their memory is not
    freed. Next: find every copy, list and closure that holds one.""")

exercise.edit("average-of-the-shard-only", {
    RETURN: "return {name: value.to_local() for name, value in average.items()}"}, """
    You return this rank's shard of the average. The memory is right, but the task asks for the whole average.
    Next: gather it when the program returns.""")

exercise.edit("average-of-the-last-step", {COPY: "", UPDATE: "pass", RETURN:
    "return {name: param.full_tensor().detach() for name, param in model.named_parameters()}"}, """
    What you return are the parameters after the last step: the average was dropped, or it is the memory of the
    parameters themselves. Next: keep the average, as shards with memory of their own.""")

exercise.edit("weights-swapped", {UPDATE: "average[name].lerp_(param.detach(), 0.9)"}, """
    In your average, the parameters of a step have the weight 0.9, and the average before it has 0.1. In the program it
    was the other way round. Next: which of the two does the weight of `lerp_` belong to?""")

exercise.edit("only-on-rank-zero", WHOLE | {COPY: COPY + SHARD, SHARD: "", UPDATE:
    "whole = param.full_tensor().detach()\nif dist.get_rank() == 0:\n    average[name].lerp_(whole, 0.1)",
    "optimizer = torch": "if dist.get_rank() > 0:\n    average.clear()\noptimizer = torch"}, """
    Only rank 0 has the average now, and it still holds the whole: the model can be no larger than what fits there. The
    other ranks return nothing. Next: let each rank average its own shards.""")

exercise.edit("gradients-stay", {"optimizer.zero_grad()\n": ""}, """
    The gradients are never removed, so they stay between two steps and add up over the batches.
    Next: keep `optimizer.zero_grad()` after each step.""")


@exercise.variant
def plain_shards(model: Any, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    fully_shard(model)
    params = dict(model.named_parameters())
    average = [param.to_local().detach().clone() for param in params.values()]
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for mine, param in zip(average, params.values(), strict=True):
            mine.mul_(0.9).add_(param.to_local().detach(), alpha=0.1)
    return {
        name: DTensor.from_local(mine, param.device_mesh, param.placements, shape=param.shape, stride=param.stride())
        .full_tensor()
        for mine, (name, param) in zip(average, params.items(), strict=True)
    }


exercise.variant_edit("new-tensors", {UPDATE: "average[name] = 0.9 * average[name] + 0.1 * param.detach()"})
