"""Incident: fine-tuning with adapters takes twice the memory, because the frozen base is cast to fp32."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution, lets_go
from ...meter import mark

BETWEEN = "between two steps"


class Adapted(nn.Module):
    """A frozen layer in bf16, and next to it an adapter of rank 2 in fp32: two thin matrices that are trained."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (2, 4)[number % 2], 64, rng.getrandbits(31)
    what = f"2 layers of width {width}, 3 steps"
    return Case(world_size=world_size, args=lambda rank: (width, seed), what=what)


def tuned(solution: Solution, width: int, seed: int) -> dict[str, Any]:
    """Train on three batches; between two steps, note what is held. Return the losses and the adapters."""
    torch.manual_seed(seed)
    layers = [nn.Sequential(Adapted(width), Adapted(width))]
    kept: list[nn.Module] = []
    inputs = torch.randn(3, 4, width, generator=torch.Generator().manual_seed(seed + dist.get_rank()))

    def batches() -> Iterator[Tensor]:
        for number, x in enumerate(inputs):
            if number == 2:
                mark(BETWEEN)
            yield x

    kept.append(layers.pop())
    losses = solution(kept[0], batches())
    adapters = {name: whole(param) for name, param in kept[0].named_parameters() if "base" not in name}
    return {"losses": losses, "adapters": adapters}


def whole(param: Tensor) -> Tensor:
    return (param.full_tensor() if isinstance(param, DTensor) else param).detach()


exercise = Exercise("incidents.wide_base", title="Incident: FSDP2 takes more than FSDP1", draw=draw, trial=tuned,
    answers={
        "held": 8192,
        "where": "line 9: model.float()",
    },
    measured=True, inputs_matter=False, rules=[lets_go(BETWEEN, slack=1000)], case_count=2, tolerance=1e-3, task="""
    Only adapters are trained, and since the move to FSDP2 a rank holds far more bytes than it should. Repair the
    program. The losses and the adapters stay exactly what they are: adapters in fp32, computed with in bf16.
    """, hints="""
    Add up what a rank should hold, in bytes: its shard of the base, of the adapters, and two moments for each number
    that is trained. Which of these is twice as large as it should be?

    Weights in fp32 are there for the optimizer: small updates would be lost in bf16. Which weights does the optimizer
    change?

    `param.requires_grad` tells the two kinds apart. The adapters are in fp32 already when the program begins: print the
    dtype of each parameter before and after each of its first lines.

    If your model comes in bf16 altogether, cast what is trained:

    ```python
    for param in model.parameters():
        if ...:
            param.data = param.data.float()
    ```
    """, explanation="""
    Mixed precision keeps weights in fp32, because an optimizer in bf16 loses small updates. A frozen weight gets no
    update, so its fp32 copy holds nothing that bf16 did not hold: it is cast to bf16 before each use. In
    [accelerate, issue 3844](https://github.com/huggingface/accelerate/issues/3844) FSDP1's path cast only what is
    trained, and FSDP2's path cast everything; the
    [repair](https://github.com/huggingface/accelerate/pull/3848) asks for `requires_grad`. FSDP1 had one flat parameter
    for a unit, while FSDP2 shards each parameter by itself, so base and adapters can have
    different dtypes in one unit, as long as all that is trained has one.
    """)


@exercise
def train(model: nn.Module, batches: Iterable[Tensor]) -> list[float]:
    """Train the adapters of `model` with FSDP2, and return the loss of each batch.

    The base is frozen, in bf16. The adapters are trained in fp32, and all computation is in bf16. Between
    two steps a rank holds only its shards: two bytes for a number that is frozen, twelve for one that is trained.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW((param for param in model.parameters() if param.requires_grad), lr=0.01)
    losses = []
    for x in batches:
        loss = F.mse_loss(model(x).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


POLICY = "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)\n"
LAYER = "fully_shard(layer, mp_policy=policy)"
MODEL = "fully_shard(model, mp_policy=policy)\n"
STEP = "optimizer.step()\n"
WIDE = "model.float()\n"

exercise.start_edit({POLICY: POLICY + WIDE})

exercise.edit("everything-in-fp32", {POLICY: WIDE + "dist.barrier()\n" + POLICY}, """
    The whole model is in fp32, though most of it is never updated. A frozen number takes four bytes where two hold all
    of it. Next: find the line that changes the dtype of the base.""")

exercise.edit("adapters-in-bf16", {POLICY: "model.bfloat16()\n" + POLICY}, """
    Now everything is in bf16, the adapters too. Their moments are as coarse as they are, and small updates are rounded
    away. Next: keep in fp32 what the optimizer changes.""")

exercise.edit("trains-the-base", {POLICY: "model.requires_grad_(True)\n" + POLICY}, """
    In one unit you train numbers in bf16 and in fp32, such as the base and the adapters. FSDP2 reduces the gradients of
    a unit together, so all that is trained in it has to have one dtype. Next: train the adapters only, in fp32.""")

exercise.edit("base-collects-gradients", {POLICY: "model.float().requires_grad_(True)\n" + POLICY,
    "(param for param in model.parameters() if param.requires_grad)":
    '(param for name, param in model.named_parameters() if "base" not in name)'}, """
    Your optimizer changes the adapters only, and the base asks for gradients all the same. Backward makes them in every
    step, and nobody uses or removes them. Next: a parameter that is not trained must not ask for a gradient.""")

exercise.edit("base-not-sharded", {MODEL: "", LAYER: "fully_shard(layer.down, mp_policy=policy)\n"
    "fully_shard(layer.up, mp_policy=policy)", "model(x)": "model(x.bfloat16())"}, """
    The base stays in bf16, and every rank keeps all of it. With two ranks that is as much as a shard in fp32, and with
    more ranks it is worse. Next: shard the base, too.""")

exercise.edit("adapters-not-sharded", {"for layer in model:\n    " + LAYER + "\n": "", MODEL:
    "for layer in model:\n    fully_shard(layer.base)\n", "model(x)": "model(x.bfloat16())",
    "optimizer = torch": "for layer in model:\n    layer.down.bfloat16(), layer.up.bfloat16()\noptimizer = torch"}, """
    Only the base is a unit now. Nobody averages the gradients of the adapters, so each rank trains its own, and they
    are in bf16. Next: shard the whole layer.""")

exercise.edit("computes-in-fp32", {POLICY: "model.float()\npolicy = MixedPrecisionPolicy()\n"}, """
    Without bf16 for the computation, the program fits together again in fp32. It is slower, the trained adapters
    differ, and the base still has four bytes a number. Next: keep the policy.""")

exercise.edit("reduces-in-fp32", {"(param_dtype=torch.bfloat16)":
    "(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"}, """
    You sum the gradients over ranks in fp32. That is more exact than the sum in bf16 that the program makes, so the
    adapters differ. Next: leave out `reduce_dtype`.""")

exercise.edit("fewer-moments", {POLICY: WIDE + POLICY, "torch.optim.AdamW(": "torch.optim.SGD("}, """
    You save Adam's moments, and the adapters are trained differently. The moments belong to the adapters only, so they
    are small. Next: keep the optimizer, and look at the largest part of what a rank holds.""")

exercise.variant_edit("casts-what-is-trained", {POLICY:
    "for param in model.parameters():\n    if param.requires_grad:\n        param.data = param.data.float()\n"
    + POLICY})

exercise.variant_edit("base-in-units-of-its-own", {LAYER: "fully_shard(layer.base)\nfully_shard(layer, "
    "mp_policy=policy)"})

exercise.variant_edit("base-cast-back", {POLICY: WIDE + "for layer in model:\n    layer.base.bfloat16()\n" + POLICY})
