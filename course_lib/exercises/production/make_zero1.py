"""DistributedDataParallel and ZeroRedundancyOptimizer, set up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, AdamW, Optimizer

from ...meter import mark
from ..checking.rules import holds_no_more
from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import Net, Sizes, draw_sizes, draw_world_size, shards, train

Setup = tuple[nn.Module, Optimizer]
Groups = list[dict[str, Any]]


def make_zero1(
    model: nn.Module, lr: float, weight_decay: float
) -> tuple[DistributedDataParallel, ZeroRedundancyOptimizer]:
    """Return the model with gradients averaged over the ranks, and an AdamW with sharded state."""
    averaged = DistributedDataParallel(model)
    matrices = [param for param in model.parameters() if param.dim() >= 2]
    vectors = [param for param in model.parameters() if param.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return averaged, ZeroRedundancyOptimizer(groups, optimizer_class=AdamW, lr=lr)


def in_groups(matrices: dict[str, Any], vectors: dict[str, Any]) -> Callable[[nn.Module], Groups]:
    """Two groups, with options for each."""

    def groups(model: nn.Module) -> Groups:
        params = list(model.parameters())
        return [
            {"params": [param for param in params if param.dim() >= 2], **matrices},
            {"params": [param for param in params if param.dim() < 2], **vectors},
        ]

    return groups


def sharded(groups: Any, lr: float) -> Optimizer:
    return ZeroRedundancyOptimizer(groups, optimizer_class=AdamW, lr=lr)


def setup_with(
    groups: Callable[[nn.Module, float], Any] = lambda model, decay: in_groups(
        {"weight_decay": decay}, {"weight_decay": 0.0}
    )(model),
    optimizer: Callable[[Any, float], Optimizer] = sharded,
    wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel,
) -> Solution:
    """The right setup, with a part of it done otherwise."""

    def make(model: nn.Module, lr: float, weight_decay: float) -> Setup:
        return wrap(model), optimizer(groups(model, weight_decay), lr)

    return make


def every_parameter_decays(model: nn.Module, decay: float) -> Groups:
    return [{"params": list(model.parameters()), "weight_decay": decay}]


def decay_by_name(model: nn.Module, decay: float) -> Groups:
    biases = [param for name, param in model.named_parameters() if "bias" in name]
    others = [param for name, param in model.named_parameters() if "bias" not in name]
    return [{"params": others, "weight_decay": decay}, {"params": biases, "weight_decay": 0.0}]


def of_this_rank(model: nn.Module, decay: float) -> Iterable[Tensor]:
    return list(model.parameters())[dist.get_rank() :: dist.get_world_size()]


def an_instance(groups: Any, lr: float) -> Optimizer:
    made: Any = AdamW(groups, lr=lr)
    return ZeroRedundancyOptimizer(groups, optimizer_class=made)


def no_class(groups: Any, lr: float) -> Optimizer:
    return ZeroRedundancyOptimizer(groups, lr=lr)  # type: ignore[call-arg]


def group_of_one(groups: Any, lr: float) -> Optimizer:
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    return ZeroRedundancyOptimizer(groups, optimizer_class=AdamW, lr=lr, process_group=alone)


def swapped(model: nn.Module, lr: float, weight_decay: float) -> tuple[Optimizer, nn.Module]:
    averaged, optimizer = make_zero1(model, lr, weight_decay)
    return optimizer, averaged


def group_by_group(model: nn.Module, lr: float, weight_decay: float) -> Setup:
    matrices, vectors = in_groups({"weight_decay": weight_decay}, {"weight_decay": 0.0})(model)
    optimizer = ZeroRedundancyOptimizer([matrices], AdamW, lr=lr)
    optimizer.add_param_group(vectors)
    return DistributedDataParallel(model, bucket_cap_mb=1), optimizer


def as_bucket_views(groups: Any, lr: float) -> Optimizer:
    return ZeroRedundancyOptimizer(groups, optimizer_class=AdamW, parameters_as_bucket_view=True, lr=lr)


def draw(rng: random.Random, number: int) -> Case:
    world_size, sizes, seed = draw_world_size(rng, number), draw_sizes(rng), rng.getrandbits(32)
    lr, decay = rng.uniform(0.02, 0.05), rng.uniform(0.2, 0.5)
    about = f"{world_size} ranks, {sizes[2]} blocks of width {sizes[0]}, lr {lr:.3f}, weight_decay {decay:.2f}"
    return Case(world_size=world_size, args=lambda rank: (sizes, lr, decay, seed), about=about)


def trained(solution: Solution, sizes: Sizes, lr: float, decay: float, seed: int) -> dict[str, Any]:
    """Losses and parameters of two steps."""
    model = Net(sizes, seed)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1)  # biases far from zero, so that their decay is seen
    made, optimizer = solution(model, lr, decay)
    losses = train(made, optimizer, 2, seed)
    mark("after two steps")
    return {"losses": losses, "parameters": shards(model)}


MAKE_ZERO1 = Exercise(
    name="production.make_zero1",
    title="ZeRO-1 as torch ships it",
    task="Wrap the model in `DistributedDataParallel`, which averages gradients, and make a "
    "`ZeroRedundancyOptimizer`, which shards the state of an `AdamW` with learning rate `lr`. Weights decay, and "
    "biases and norms do not: parameters of two or more dimensions by `weight_decay`, all others by 0. Return both.",
    stub=stubs.make_zero1,
    reference=make_zero1,
    draw=draw,
    trial=trained,
    measured=True,
    inputs_matter=False,
    case_count=2,
    rules=[holds_no_more("optimizer", "after two steps", slack=64)],
    variants={"group-by-group": group_by_group, "bucket-views": setup_with(optimizer=as_bucket_views)},
    mistakes=[
        Mistake(
            id="not-sharded",
            solution=setup_with(optimizer=lambda groups, lr: AdamW(groups, lr=lr)),
            told="This is torch's own AdamW: losses are right, and every rank keeps the state of all parameters.",
            action="Make a `ZeroRedundancyOptimizer`, and give it AdamW as `optimizer_class`.",
        ),
        Mistake(
            id="group-of-one",
            solution=setup_with(optimizer=group_of_one),
            told="Each rank is in a group of its own, so each has nobody to share the state with, and keeps all of it.",
            action="Leave `process_group` out: then it is all ranks.",
        ),
        Mistake(
            id="not-averaged",
            solution=setup_with(wrap=lambda model: model),
            told="Nobody averages the gradients. ZeroRedundancyOptimizer shards the update alone: each owner updates "
            "with the gradients of its own batch.",
            action="Wrap the model in `DistributedDataParallel`, and return that.",
        ),
        Mistake(
            id="by-name",
            solution=setup_with(decay_by_name),
            told="You go by names. A norm has a `weight` as well as a bias, of one dimension, and it decays with you.",
            action="Go by `param.dim()`: two and more decay.",
        ),
        Mistake(
            id="all-decay",
            solution=setup_with(groups=every_parameter_decays),
            told="There is one group, so biases decay, too.",
            action="Make two groups, each with its own `weight_decay`.",
        ),
        Mistake(
            id="default-for-vectors",
            solution=setup_with(groups=lambda model, decay: in_groups({"weight_decay": decay}, {})(model)),
            told="The second group says nothing of `weight_decay`, so it gets AdamW's default, which is 0.01.",
            action="Give that group `weight_decay` 0.",
        ),
        Mistake(
            id="decay-lost",
            solution=setup_with(groups=lambda model, decay: list(model.parameters())),
            told="`weight_decay` is used nowhere, so all parameters decay by AdamW's default, 0.01.",
            action="Make two groups, each with its own `weight_decay`.",
        ),
        Mistake(
            id="decay-swapped",
            solution=setup_with(
                groups=lambda model, decay: in_groups({"weight_decay": 0.0}, {"weight_decay": decay})(model)
            ),
            told="The vectors decay, and the matrices do not.",
            action="Swap the two: `param.dim() >= 2` is a matrix.",
        ),
        Mistake(
            id="learning-rate-lost",
            solution=setup_with(optimizer=lambda groups, lr: ZeroRedundancyOptimizer(groups, optimizer_class=AdamW)),
            told="The learning rate is AdamW's default, 0.001. What ZeroRedundancyOptimizer is given beyond its own "
            "arguments goes to the optimizer that it makes.",
            action="Pass `lr=lr` as well.",
        ),
        Mistake(
            id="adam",
            solution=setup_with(
                optimizer=lambda groups, lr: ZeroRedundancyOptimizer(groups, optimizer_class=Adam, lr=lr)
            ),
            told="With Adam, decay is added to the gradient, and then divided like it. AdamW decays the parameter.",
            action="Pass `AdamW` as `optimizer_class`.",
        ),
        Mistake(
            id="an-instance",
            solution=setup_with(optimizer=an_instance),
            told="`optimizer_class` was given an optimizer. It has to be a class, since each rank makes an optimizer "
            "for its own part.",
            action="Pass `AdamW` itself, without parentheses, and its arguments after it.",
        ),
        Mistake(
            id="no-class",
            solution=setup_with(optimizer=no_class),
            told="ZeroRedundancyOptimizer has no default for `optimizer_class`: it does not know what to shard.",
            action="Pass `optimizer_class=AdamW`.",
        ),
        Mistake(
            id="own-part-only",
            solution=setup_with(groups=of_this_rank),
            told="You give each rank a part of the parameters. ZeroRedundancyOptimizer deals them out itself, and "
            "has to be given the same on every rank.",
            action="Give it all parameters.",
        ),
        Mistake(
            id="order-of-the-two",
            solution=swapped,
            told="The two come in the wrong order.",
            action="Return the model first, then the optimizer.",
        ),
    ],
    hints=[
        "Two things happen after backward: gradients become alike on all ranks, and parameters are updated. Which of "
        "the two does each class do?",
        "An optimizer takes groups: dicts with the parameters and the options in which they differ. A "
        "ZeroRedundancyOptimizer takes the same groups, the class to shard, and what all groups have in common.",
        "`DistributedDataParallel(model)`; `param.dim()`; "
        "`ZeroRedundancyOptimizer(groups, optimizer_class=..., lr=...)`.",
        '```python\nmatrices = [... if param.dim() >= 2]\nvectors = [...]\ngroups = [{"params": matrices, '
        '"weight_decay": ...}, ...]\nreturn ..., ZeroRedundancyOptimizer(...)\n```',
    ],
    explanation="DDP and ZeroRedundancyOptimizer do not know of each other. The first all-reduces all gradients, 2Ψ; "
    "the second lets each rank update the parameters that it owns, and broadcast them, Ψ. So together they send 3Ψ "
    "where ZeRO-1 needs 2Ψ: an owner never needed the averaged gradients of others. Parameters are dealt out whole, "
    "group by group.",
)
