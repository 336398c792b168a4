"""DistributedDataParallel and ZeroRedundancyOptimizer, set up."""

import random
from typing import Any

import torch
import torch.distributed as dist  # noqa: F401  used by an edit
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, AdamW, Optimizer  # noqa: F401  Adam: used by an edit

from ...exercises import Case, Exercise, Solution, holds_no_more
from ...meter import mark
from .data import Net, Sizes, a_step, draw_world, shards


class NetWithConvolution(Net):
    """The same with a weight of three dimensions."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        super().__init__(sizes, seed)
        self.last = nn.Conv1d(sizes[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x) + self.last(self.embed(x).t()).t()
        return scores


def draw(rng: random.Random, number: int) -> Case:
    (world_size, sizes), seed = draw_world(rng, number), rng.getrandbits(32)
    lr, decay = rng.uniform(0.02, 0.05), rng.uniform(0.2, 0.5)
    what = f"{sizes[1]} blocks of width {sizes[0]} and a convolution, lr {lr:.3f}, weight_decay {decay:.2f}"
    return Case(world_size=world_size, args=lambda rank: (sizes, lr, decay, seed), what=what)


def trained(solution: Solution, sizes: Sizes, lr: float, decay: float, seed: int) -> dict[str, Any]:
    """Make two steps, and return their losses and the parameters afterwards. The first one does not show the betas."""
    model = NetWithConvolution(sizes, seed)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1)  # biases far from zero, so that their decay is seen
    made, optimizer = solution(model, lr, decay)
    losses = []
    for number in range(2):
        optimizer.zero_grad()
        losses.append(a_step(made, optimizer.step, seed + 10 * number))
    mark("after two steps")
    return {"losses": losses, "parameters": shards(model)}


exercise = Exercise("production.make_zero1", title="ZeRO-1 as torch ships it", draw=draw, trial=trained, measured=True,
    inputs_matter=False, case_count=2, rules=[holds_no_more("optimizer", "after two steps", slack=256)], task="""
    Wrap the model in `DistributedDataParallel`, which averages gradients. Make a `ZeroRedundancyOptimizer`, which
    shards the state of an `AdamW` with learning rate `lr` and its default betas. Weights decay, and biases and
    norms do not: parameters of two or more dimensions decay by `weight_decay`, all others by 0. Return
    both.""", hints="""
    Two things happen after the loss is known: the ranks average the gradients, and the parameters are updated. Which
    class does which?

    An optimizer takes groups: dicts with the parameters, and with the options in which the groups differ. A
    ZeroRedundancyOptimizer takes the same groups, the class to shard, and the options that all groups share.

    `DistributedDataParallel(model)`; `param.dim()`; `ZeroRedundancyOptimizer(groups, optimizer_class=..., lr=...)`.

    ```python
    matrices = [... if param.dim() >= 2]
    vectors = [...]
    groups = [{"params": matrices, "weight_decay": ...}, ...]
    return ..., ZeroRedundancyOptimizer(...)
    ```
    """, explanation="""
    DDP and ZeroRedundancyOptimizer do not know of each other. DDP all-reduces all gradients, which sends 2Ψ. Then each
    rank updates the parameters that it owns, and broadcasts them, which sends Ψ. Together they send 3Ψ, and ZeRO-1
    needs only 2Ψ: an owner needs no averaged gradients of parameters that other ranks own. ZeroRedundancyOptimizer
    assigns whole parameters to ranks, group by group.""")


@exercise
def make_zero1(
    model: nn.Module, lr: float, weight_decay: float
) -> tuple[DistributedDataParallel, ZeroRedundancyOptimizer]:
    """Return the model with gradients averaged over the ranks, and an AdamW with sharded state.

    Parameters of two or more dimensions decay by `weight_decay`, all others not at all.
    """
    averaged = DistributedDataParallel(model)
    matrices = [param for param in model.parameters() if param.dim() >= 2]
    vectors = [param for param in model.parameters() if param.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return averaged, ZeroRedundancyOptimizer(groups, optimizer_class=AdamW, lr=lr)


GROUPS = '[{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]'

exercise.edit("not-sharded", {"ZeroRedundancyOptimizer(groups, optimizer_class=AdamW, lr=lr)": "AdamW(groups, lr=lr)"},
    """
    Your losses are right, but every rank keeps the optimizer state of all parameters, as with a plain AdamW.
    Next: make a `ZeroRedundancyOptimizer` over all ranks, without `process_group`, and pass AdamW as `optimizer_class`.
    """)

exercise.edit("not-averaged", {"DistributedDataParallel(model)": "model"}, """
    The ranks never average their gradients. ZeroRedundancyOptimizer shards only the update: each owner updates its
    parameters with the gradients of its own batch. Next: wrap the model in `DistributedDataParallel`, and return that.
    """)

exercise.edit("by-name", {
    "param for param in model.parameters() if param.dim() >= 2": 'param for name, param in model.named_parameters() '
    'if "bias" not in name',
    "param for param in model.parameters() if param.dim() < 2": 'param for name, param in model.named_parameters() '
    'if "bias" in name'}, """
    Norms decay in your version, and only biases do not. A norm has a `weight` too, of one dimension, so names do not
    show which parameters are matrices. Next: select by `param.dim()`: parameters with two or more dimensions decay.""")

exercise.edit("two-dimensions-only", {"param.dim() >= 2": "param.dim() == 2", "param.dim() < 2": "param.dim() != 2"},
    """
    Parameters of three dimensions do not decay in your version. The weight of a convolution has at least three.
    Next: read "two or more" in the task again.""")

exercise.edit("all-decay", {GROUPS: '[{"params": [*model.parameters()], "weight_decay": weight_decay}]'}, """
    All parameters decay by `weight_decay`, biases and norms too. Next: make two groups, each with its own
    `weight_decay`.""")

exercise.edit("default-for-vectors", {', "weight_decay": 0.0': ""}, """
    Your group of vectors has no `weight_decay` of its own, so it gets AdamW's default, which is 0.01.
    Next: set `weight_decay` to 0 in this group.""")

exercise.edit("decay-swapped", {">= 2": "< 2", "< 2": ">= 2"}, """
    Your vectors decay, and your matrices do not. Next: swap the two groups: a matrix has two dimensions or more.""")

exercise.edit("learning-rate-lost", {", lr=lr": ""}, """
    The learning rate is AdamW's default, 0.001. ZeroRedundancyOptimizer passes the options that it does not know on to
    the optimizer that it makes. Next: pass the learning rate on as well.""")

exercise.edit("own-betas", {", lr=lr": ", lr=lr, betas=(0.9, 0.95)"}, """
    Your betas are not AdamW's defaults, so its averages cover fewer steps. The first step hides this, because Adam
    corrects its averages there. Next: leave `betas` out.""")

exercise.edit("adam", {"=AdamW": "=Adam"}, """
    You use Adam, which adds the decay to the gradient, so the decay is divided like the gradient. AdamW decays the
    parameter itself. Next: pass `AdamW` as `optimizer_class`.""")

exercise.edit("own-part-only", {GROUPS: "[*model.parameters()][dist.get_rank() :: dist.get_world_size()]"}, """
    You pass a different part of the parameters on each rank. ZeroRedundancyOptimizer assigns parameters to ranks
    itself, and needs the same list on every rank. Next: pass all parameters.""")

exercise.variant_edit("vectors-first", {GROUPS:
    '[{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "weight_decay": weight_decay}]'})

exercise.variant_edit("bucket-views", {"lr=lr": "lr=lr, parameters_as_bucket_view=True"})


@exercise.variant
def group_by_group(model: nn.Module, lr: float, weight_decay: float) -> tuple[nn.Module, Optimizer]:
    matrices = {"params": [param for param in model.parameters() if param.ndim > 1], "weight_decay": weight_decay}
    optimizer = ZeroRedundancyOptimizer([matrices], AdamW, lr=lr)
    optimizer.add_param_group({"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0})
    return DistributedDataParallel(model, bucket_cap_mb=1), optimizer
