"""Incident: the loss stands still when the learning rate falls, because the weights are in bf16."""


import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ...exercises import Case, Exercise, Solution


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (2, 4)[number % 2], rng.randint(3, 5), rng.getrandbits(31)
    what = f"{width} weights near 1, 12 steps"
    return Case(world_size=world_size, args=lambda rank: (width, seed), what=what)


def tuned(solution: Solution, width: int, seed: int) -> dict[str, Any]:
    """Train weights near 1 on numbers that bf16 holds exactly, so that every right program gets the same."""
    drawn = torch.randint(1, 3, (4, 1, width), generator=torch.Generator().manual_seed(seed))
    batches = [drawn[dist.get_rank()].bfloat16()] * 12
    model, computed = nn.Linear(width, 1, bias=False).bfloat16(), set[str]()
    nn.init.ones_(model.weight)
    model.register_forward_hook(lambda module, inputs, output: computed.add(str(output.dtype)))
    losses = solution(model, batches)
    weight = model.weight.detach()
    if isinstance(weight, DTensor):  # of FSDP2
        weight = weight.full_tensor()
    return {
        "losses": losses,
        "the weights, as the layer reads them": weight.bfloat16(),
        "the layer computes in": sorted(computed),
    }


exercise = Exercise("incidents.lost_updates", title="Incident: the loss stands still", draw=draw, trial=tuned,
    answers={
        "small": 1,
        "why": "weights in fp32 for the optimizer, rounded to bf16 for the layer",
    },
    inputs_matter=False, case_count=2, task="""
    A model that was loaded in bf16 is trained with data parallel. With a large learning rate it learns; with the small
    one that the schedule ends with, the loss stays where it is, to the last digit, on every rank. The gradients are
    not zero. Repair the program: small updates add up, and the layer still computes in bf16. `model` has the trained
    weights at the end.
    """, hints="""
    Print a weight, its gradient and `lr * gradient`. Then compute `weight - lr * gradient` in bf16. What comes out?

    Numbers of bf16 near 1 are 1/256 to 1/128 apart. An update of less than half of that is rounded away, in each step
    again. In which dtype does the optimizer's tensor have to be?

    Two ways: weights in fp32, and `torch.autocast("cpu", dtype=torch.bfloat16)` around the forward. Or copies in fp32
    that the optimizer updates, and that are rounded into the weights after each step.

    ```python
    model.float()
    ...
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ...
    ```
    """, explanation="""
    The optimizer computed right updates, and the addition lost them: 1 - 0.0005 is 1 in bf16. Every rank lost the same,
    so all ranks agreed. A higher learning rate hides it, until the schedule lowers it. Reports:
    [AReaL issue 1292](https://github.com/areal-project/AReaL/issues/1292), where the final loss was three times that of
    fp32 masters, and [Automodel pull request 3444](https://github.com/NVIDIA-NeMo/Automodel/pull/3444). With FSDP2, a
    `MixedPrecisionPolicy` does what autocast does here. The weights in fp32 cost 2 more bytes each, sharded or not.
    """)


@exercise
def finetune(model: nn.Module, batches: list[Tensor]) -> list[float]:
    """Train `model`, which was loaded in bf16, and return the loss of each batch. The layer computes in bf16."""
    model.float()
    engine = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(engine.parameters(), lr=0.0005)
    losses = []
    for x in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = engine(x).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


FLOAT = "model.float()\n"
AUTOCAST = 'with torch.autocast("cpu", dtype=torch.bfloat16):\n    loss = engine(x).float().mean()\n'
FORWARD = "loss = engine(x).float().mean()\n"
BF16 = {FLOAT: "", AUTOCAST: FORWARD}

exercise.start_edit(BF16)

exercise.edit("updates-still-lost", {FLOAT: ""}, """
    The weights still do not move. Either an update is rounded to bf16 before the next one is added to it, or it never
    reaches the weights that the layer uses. Autocast alone changes neither: it chooses the dtype in which a layer
    computes. Next: let the optimizer update tensors in fp32 that keep their digits from step to step, and print one of
    them next to the layer's weight after each step.""")

exercise.edit("everything-in-fp32", {AUTOCAST: FORWARD.replace("(x)", "(x.float())")}, """
    The loss falls, and the layer computes in fp32 now. That costs the time and the activations that bf16 was to save.
    Next: keep fp32 for the weights, and compute in bf16: `torch.autocast`.""")

exercise.edit("raises-the-learning-rate", BF16 | {"lr=0.0005": "lr=0.005"}, """
    With ten times the learning rate the weights move, in steps of bf16. The updates are rounded to multiples of about
    0.004, some up and some down, and the schedule's small learning rate would still lose them.
    Next: keep the learning rate, and give the optimizer weights in fp32.""")

exercise.edit("sums-the-loss", BF16 | {AUTOCAST: FORWARD, "loss.backward()": "(16 * loss).backward()"}, """
    You scale the loss before backward, and nothing divides the gradients afterwards. It is a higher learning rate by
    another name: the weights move in steps of bf16. Next: leave the loss, and change the dtype of the weights.""")

exercise.edit("adds-momentum", BF16 | {"lr=0.0005": "lr=0.0005, momentum=0.9"}, """
    With momentum the updates grow until bf16 can hold them. The first steps are still lost, and the later ones are not
    those of the program. Next: leave the optimizer as it was, and give it weights in fp32.""")

exercise.edit("steps-every-fourth-batch", BF16 | {"for x in batches:": "for number, x in enumerate(batches):",
    "optimizer.step()\noptimizer.zero_grad()\n":
    "if number % 4 == 3:\n    optimizer.step()\n    optimizer.zero_grad()\n"}, """
    You add up four gradients before each step, so that the update is large enough for bf16. The program makes a step
    after every batch. Next: keep the steps, and give the optimizer weights in fp32.""")

exercise.edit("trains-a-copy", {FLOAT: "", "engine = DistributedDataParallel(model)\n":
    "from copy import deepcopy\nengine = DistributedDataParallel(deepcopy(model).float())\n"}, """
    The losses fall as they should, and `model` has the weights with which it came: the trained ones are in a copy.
    Next: train `model` itself, or write the trained weights into it at the end.""")

exercise.edit("own-gradients", {"engine = DistributedDataParallel(model)\n": "engine = model\n"}, """
    The updates add up, but each rank's update uses its own gradients, not the average over ranks.
    Next: average the gradients before the optimizer takes them, as `DistributedDataParallel` does in backward.""")


@exercise.variant
def with_masters(model: nn.Module, batches: list[Tensor]) -> list[float]:
    engine = DistributedDataParallel(model)
    weights = list(engine.parameters())
    masters = [nn.Parameter(weight.detach().float().clone()) for weight in weights]
    optimizer = torch.optim.SGD(masters, lr=0.0005)
    losses = []
    for x in batches:
        loss = engine(x).float().mean()
        loss.backward()
        for master, weight in zip(masters, weights, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
        losses.append(loss.item())
    return losses


@exercise.variant
def with_fsdp2(model: nn.Module, batches: list[Tensor]) -> list[float]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    engine: Any = fully_shard(model.float(), mp_policy=policy)
    optimizer = torch.optim.SGD(engine.parameters(), lr=0.0005)
    losses = []
    for x in batches:
        loss = engine(x).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


exercise.variant_edit("with-amp", {FLOAT: "model.to(torch.float32)\n", "torch.autocast(": "torch.amp.autocast("})
