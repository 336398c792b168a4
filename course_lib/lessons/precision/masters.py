"""Repair: a model that is loaded in bf16 and then sharded has no masters."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ...exercises import Case, Exercise, Solution

LR = 8e-4  # below half of the distance between numbers of bf16 near 1, and no default of torch


class Tiny(nn.Module):
    """A model with an embedding, blocks and a head, as TinyGPT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(4, 2), nn.ModuleList([nn.Linear(2, 2)])
        self.head = nn.Linear(2, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        y: torch.Tensor = self.head(x)
        return y


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = 2 + number % 2, rng.getrandbits(32)
    what = f"2 steps with learning rate {LR}"
    return Case(world_size=world_size, args=lambda rank: (seed,), what=what)


def two_steps(solution: Solution, seed: int) -> dict[str, Any]:
    """Make two steps, with different tokens on each rank; make none if parameters are not sharded."""
    torch.manual_seed(seed)
    model = Tiny().bfloat16()
    computed: set[str] = set()
    for layer in (model.embedding, model.blocks[0], model.head):
        layer.register_forward_hook(lambda module, inputs, output: computed.add(str(output.dtype)))
    optimizer = solution(model, LR)
    unsharded = [name for name, param in model.named_parameters() if not isinstance(param, DTensor)]
    for step in range(0 if unsharded else 2):  # the finding then names the cause, not an error in forward
        optimizer.zero_grad()
        model(torch.tensor([dist.get_rank(), step])).float().square().sum().backward()
        optimizer.step()
    params = list(model.parameters())
    return {
        "parameters that are not sharded": unsharded,
        "the dtype of the shards": str(params[0].dtype),
        "the dtype of a layer's output": sorted(computed),
        "the gradients": [whole(param.grad) for param in params],
        "the parameters": [whole(param) for param in params],
    }


def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


exercise = Exercise("precision.masters", title="Repair: no masters", draw=draw, trial=two_steps, inputs_matter=False,
    case_count=2, task="""
    The program trains, and hardly learns: small updates are lost, because the optimizer updates shards in bf16. Repair
    it: the optimizer updates shards in fp32, layers compute in bf16, as before, and gradients are averaged over ranks
    in fp32.""", hints="""
    In which dtype are the parameters when `fully_shard` cuts them? In which dtype are the shards then?

    The shards are the masters. FSDP2 keeps them in the dtype that the model has when it is sharded, and gathers them in
    the dtype that a policy names. The averages of gradients can have a dtype of their own.

    `model.float()` before sharding; `MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)` as `mp_policy`.

    ```python
    model.float()
    policy = MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)
    fully_shard(...)
    ```
    """, explanation="""
    `fully_shard` keeps the dtype of what it shards. A model that was loaded in bf16 therefore has shards in bf16, and
    nothing holds the digits that an update needs. With fp32 shards, 4 bytes of parameters, 4 of gradients and 8 of
    moments are divided by the number of ranks. `param_dtype` rounds each shard before the all-gather, so layers and
    all-gathers have 16 bits; gradients still travel in 32. Converting to fp32 restores no digits that the checkpoint
    lost; it makes room for the updates that follow.""")


@exercise
def shard_in_16_bits(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Shard `model`, which was loaded in bf16, over all ranks, and return an `Adam` for it.

    The optimizer updates shards in fp32, layers compute in bf16, and gradients are averaged in fp32.
    """
    model.float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy)
    return torch.optim.Adam(model.parameters(), lr=lr)


FLOAT = "model.float()\n"
POLICY = "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)\n"
SHARD = "fully_shard(model, mp_policy=policy)\n"
ADAM = "torch.optim.Adam(model.parameters(), lr=lr)"

exercise.start_edit({FLOAT: "", POLICY: "", SHARD: "fully_shard(model)\n"})

exercise.edit("learning-rate-lost", {", lr=lr": ""}, """
    Your optimizer does not get `lr`, so it works with its default, which is 0.001.
    Next: pass the learning rate to the optimizer.""")

exercise.edit("policy-only", {FLOAT: ""}, """
    You pass a policy, and the shards are still in bf16. `param_dtype` is the dtype of gathered parameters; shards
    keep the dtype that the model has. Next: convert the model to fp32 before you shard it.""")

exercise.edit("float-only", {POLICY: "", SHARD: "fully_shard(model)\n"}, """
    Everything is in fp32 now: shards, messages and layers. That saves neither time nor activations.
    Next: pass a `MixedPrecisionPolicy` that gathers parameters in bf16.""")

exercise.edit("policy-in-fp32", {FLOAT: "", "torch.bfloat16": "torch.float32"}, """
    Your policy gathers parameters in fp32, from shards in bf16. The task asks for the reverse: shards in fp32,
    which keep small updates, and layers in bf16. Next: convert the model to fp32, and gather in bf16.""")

exercise.edit("dtypes-swapped", {"param_dtype=torch.bfloat16, reduce_dtype=torch.float32":
    "param_dtype=torch.float32, reduce_dtype=torch.bfloat16"}, """
    Your policy gathers parameters in fp32, so layers compute in fp32, and it averages gradients in bf16, which loses
    digits. Next: exchange the two dtypes.""")

exercise.edit("averages-in-bf16", {", reduce_dtype=torch.float32": ""}, """
    Gradients are averaged in bf16. Without `reduce_dtype`, the policy uses `param_dtype` for them as well.
    Next: choose a `reduce_dtype` with more digits.""")

exercise.edit("optimizer-first", {FLOAT: f"{FLOAT}optimizer = {ADAM}\n", f"return {ADAM}": "return optimizer"}, """
    The model's parameters do not change: your optimizer holds tensors that the model does not train with. If it is made
    before `fully_shard`, these are the parameters that sharding replaces.
    Next: make the optimizer last, for `model.parameters()`.""")

exercise.edit("copies-in-fp32", {FLOAT: "", "model.parameters()":
    "[nn.Parameter(param.detach().float()) for param in model.parameters()]"}, """
    Your optimizer updates copies in fp32. Backward gives the copies no gradients, and nothing copies them back, so the
    model never changes. Next: let the shards themselves be in fp32.""")

exercise.edit("decays-the-weights", {"torch.optim.Adam(": "torch.optim.AdamW("}, """
    You return an AdamW. By default it also makes every weight a little smaller in each step, and the program to repair
    does not. Next: which optimizer did the program use?""")

BLOCKS = "for block in model.blocks:\n    fully_shard(block, mp_policy=policy)\n"

exercise.edit("blocks-only", {SHARD: BLOCKS}, """
    You shard only the blocks. The layers outside the blocks belong to no unit: they are not sharded, and their
    gradients are not averaged over ranks.
    Next: after the blocks, call `fully_shard` for the model as well, with the policy.""")

exercise.edit("root-without-a-policy", {SHARD: f"{BLOCKS}fully_shard(model)\n"}, """
    The blocks compute in bf16, and the layers outside the blocks, such as the embedding and the head, keep fp32.
    `fully_shard` for the whole model shards these layers, and inherits no policy from the blocks.
    Next: pass the policy to this call, too.""")

exercise.edit("blocks-return-fp32", {
    "reduce_dtype=torch.float32": "reduce_dtype=torch.float32, output_dtype=torch.float32",
    SHARD: "for unit in [*model.blocks, model]:\n    fully_shard(unit, mp_policy=policy)\n"},
    """
    A unit returns fp32, and the layer after it computes with parameters in bf16. A unit returns fp32 with
    `output_dtype=torch.float32`, or if it has no policy.
    Next: give every unit the policy, and leave out the `output_dtype`.""")


@exercise.variant
def unit_by_unit(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    for block in model.to(torch.float32).blocks:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32))
    return torch.optim.Adam(params=list(model.parameters()), lr=lr)

exercise.variant_edit("float-after-sharding", {FLOAT: "", SHARD: SHARD + FLOAT})
