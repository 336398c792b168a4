"""The whole step of ZeRO-1: reduce-scatter, update one shard, all-gather."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ...meter import mark
from ..checking.rules import holds_no_more
from ..declare import Case, Exercise, Mistake, Solution
from ..ranks.data import draw_world_size
from . import known_zero1_steps as known
from . import stubs
from .data import OPTIMIZERS, draw_shapes, give_gradients, gradients, parameters, ranks
from .flatten import flatten
from .rules import sends_no_more

Params = list[nn.Parameter]
MakeOptimizer = Callable[..., Optimizer]


def make_zero1_step(
    params: list[nn.Parameter], flat_param: torch.Tensor, make_optimizer: Callable[..., Optimizer]
) -> Callable[[], None]:
    """Return a function that makes one step of ZeRO-1 with the gradients of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    param_shard = nn.Parameter(flat_param.view(world_size, -1)[rank])  # a view: it has no memory of its own
    optimizer = make_optimizer([param_shard])

    def step() -> None:
        grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
        flat_grad = torch.zeros_like(flat_param)
        flat_grad[: sum(param.numel() for param in params)] = torch.cat([grad.flatten() for grad in grads])
        param_shard.grad = torch.empty_like(param_shard)
        dist.reduce_scatter_single(param_shard.grad, flat_grad)
        param_shard.grad /= world_size
        optimizer.step()
        param_shard.grad = None
        dist.all_gather_single(flat_param, param_shard.detach())

    return step


def draw(rng: random.Random, number: int) -> Case:
    world_size, seed = draw_world_size(rng, number), rng.getrandbits(32)
    about_optimizer, make_optimizer = OPTIMIZERS[number % 3]
    shapes = draw_shapes(rng, rng.randint(3, 5))
    shapes.append((1 + (1 - sum(torch.Size(shape).numel() for shape in shapes)) % world_size,))  # one left over
    lacking = {0: 1, world_size - 1: len(shapes) - 2} if number > 0 and world_size > 1 else {}

    def args(rank: int) -> tuple[Params, MakeOptimizer, Sequence[Sequence[Tensor | None]]]:
        grads: list[list[Tensor | None]] = [list(of_step) for of_step in gradients(shapes, 3, seed + rank)]
        if rank in lacking:
            grads[-1][lacking[rank]] = None
        return parameters(shapes, seed), make_optimizer, grads

    about = f"{ranks(world_size)}, {sum(torch.Size(shape).numel() for shape in shapes)} elements, {about_optimizer}"
    return Case(world_size=world_size, args=args, about=about + ", some gradients None" * bool(lacking))


def parameters_afterwards(
    solution: Solution, params: Params, make_optimizer: MakeOptimizer, grads: Sequence[Sequence[Tensor | None]]
) -> Any:
    flat_param = flatten(params, dist.get_world_size())
    step = solution(params, flat_param, make_optimizer)
    for of_step in grads if callable(step) else ():
        give_gradients(params, of_step)
        step()
    mark("after step()")
    return list(params) if callable(step) else step


ZERO1_STEP = Exercise(
    name="zero1.zero1_step",
    title="The whole step",
    task="Make an optimizer for this rank's shard of `flat_param`, and return a function that makes a step: average "
    "the gradients over ranks with a reduce-scatter, so that this rank gets the average of its shard alone; update "
    "the shard; all-gather the shards of all ranks into `flat_param`. Send no more than these two calls do.",
    stub=stubs.make_zero1_step,
    reference=make_zero1_step,
    draw=draw,
    trial=parameters_afterwards,
    inputs_matter=False,
    measured=True,
    rules=[
        holds_no_more("optimizer", "after step()"),
        sends_no_more("the gradients once through a reduce-scatter, the parameters once through an all-gather"),
    ],
    variants={"in-lists": known.in_lists, "into-a-new-tensor": known.into_a_new_tensor},
    mistakes=[
        Mistake(
            id="sum-for-mean",
            solution=known.step_with(
                grad=lambda params, flat: known.averaged_shard(params, flat) * dist.get_world_size()
            ),
            told="A reduce-scatter sums, and the average was asked for. With SGD the step is world size times too "
            "large; Adam divides the size of a gradient out again, so there the mistake hardly shows.",
            action="Divide by `dist.get_world_size()`, before or after the reduce-scatter.",
        ),
        Mistake(
            id="gathers-first",
            solution=known.gathers_first,
            told="You gather before the optimizer's step, so the old shards travel, and each rank alone has its new "
            "one.",
            action="Call `optimizer.step()` first, and gather what it has made.",
        ),
        Mistake(
            id="all-reduce-and-cut",
            solution=known.step_with(grad=known.cut_from_an_all_reduce),
            told="The numbers are right. But an all-reduce brings every rank the whole averaged gradient, and you use "
            "one shard of it: half of what it sends is for nothing.",
            action="Use `dist.reduce_scatter_single`, which stops where each rank has its shard.",
        ),
        Mistake(
            id="broadcasts-shards",
            solution=known.step_with(grad=known.cut_from_an_all_reduce, bring=known.broadcast_shards),
            told="The numbers are right: this is what `ZeroRedundancyOptimizer` does on top of DDP. The all-reduce "
            "brings every rank whole gradients, of which it uses one shard: 3Ψ are sent where 2Ψ would do.",
            action="Use `dist.reduce_scatter_single` for the gradients and `dist.all_gather_single` for the "
            "parameters.",
        ),
        Mistake(
            id="unsharded",
            solution=known.unsharded,
            told="This is data parallel: all-reduce, and every rank updates everything and holds the state of all.",
            action="Make the optimizer for one shard of `flat_param`, and reduce-scatter the gradients.",
        ),
        Mistake(
            id="unsharded-and-gathered",
            solution=known.unsharded_and_gathered,
            told="Every rank updates everything and holds the state of all; then an all-gather brings each the numbers "
            "that it has already. It costs more than data parallel, and saves nothing.",
            action="Make the optimizer for one shard of `flat_param`, and reduce-scatter the gradients.",
        ),
        Mistake(
            id="whole-state",
            solution=known.whole_state,
            told="The optimizer was made for all of `flat_param`, so every rank holds the state of all. (Where the "
            "gradients are reduce-scattered, most of it even belongs to gradients that are always zero.)",
            action="Make the optimizer for a parameter that is this rank's shard and nothing more.",
        ),
        Mistake(
            id="never-gathers",
            solution=known.step_with(bring=lambda flat, shard: None),
            told="Each rank has updated its own shard, and the others never get it.",
            action="All-gather the shards into `flat_param` after the step.",
        ),
        Mistake(
            id="updates-a-copy",
            solution=known.step_with(
                shard=lambda flat: known.shard_of(flat).clone(),
                bring=lambda flat, shard: known.gather(flat, known.shard_of(flat).clone()),
            ),
            told="The optimizer updates a copy of the shard, and what you gather is the shard in `flat_param`, which "
            "has not changed.",
            action="Let the optimizer's parameter be a view of `flat_param`: a slice, without a clone.",
        ),
        Mistake(
            id="shard-of-the-next",
            solution=known.step_with(shard=known.shard_of_the_next),
            told="The reduce-scatter gives rank r the gradient of shard r, and you update another shard with it.",
            action="This rank's shard begins at `rank * shard_numel`.",
        ),
        Mistake(
            id="own-gradients",
            solution=known.step_with(grad=lambda params, flat: known.shard_of(known.flat_grads(params, flat))),
            told="Each rank updates its shard with its own gradient: what the other ranks have learned from their "
            "part of the batch is lost.",
            action="Sum the flat gradients over ranks with `dist.reduce_scatter_single`.",
        ),
        Mistake(
            id="divides-twice",
            solution=known.step_with(
                grad=lambda params, flat: known.averaged_shard(params, flat) / dist.get_world_size()
            ),
            told="You divide by the world size twice.",
            action="Divide once: the gradients beforehand, or the shard of the sum.",
        ),
        Mistake(
            id="closes-gaps",
            solution=known.step_with(grad=known.without_gaps),
            told="A parameter without a gradient leaves no gap in your flat gradient, so everything behind it moves "
            "up, and is added to the gradients of other parameters on other ranks.",
            action="Put zeros in the place of a gradient that is None.",
        ),
        Mistake(
            id="made-anew",
            solution=known.made_anew,
            told="You make the optimizer inside `step`, so each step begins with empty state.",
            action="Make the optimizer once, outside `step`.",
        ),
        Mistake(
            id="from-rank-0",
            solution=known.step_with(bring=lambda flat, shard: dist.broadcast(flat, src=0)),
            told="Everybody gets the parameters of rank 0, which has updated its own shard alone. The other shards go "
            "back to what they were.",
            action="All-gather: every rank brings its shard.",
        ),
        Mistake(
            id="averages-parameters",
            solution=known.step_with(bring=known.average_parameters),
            told="You average the parameters of all ranks. Each shard is new on one rank and old on all others, so "
            "only 1/N of each step arrives; and it costs twice an all-gather.",
            action="All-gather: every rank brings its shard as it is.",
        ),
        Mistake(
            id="keeps-adding",
            solution=known.keeps_adding,
            told="Your flat gradient lives from step to step and is added to, so each step sees the gradients of all "
            "steps before.",
            action="Begin each step with zeros.",
        ),
        Mistake(
            id="no-padding",
            solution=known.step_with(grad=known.without_padding),
            told="The flat gradient ends with the last parameter, and a reduce-scatter wants world size equal shards.",
            action="Make it as long as `flat_param`, with zeros at the end.",
        ),
        Mistake(
            id="gathers-elsewhere",
            solution=known.step_with(bring=lambda flat, shard: known.gather(torch.empty_like(flat), shard)),
            told="You gather into a tensor that nobody reads. The parameters are views of `flat_param`.",
            action="Gather into `flat_param`, or copy what was gathered into it.",
        ),
    ],
    hints=[
        "This rank updates one shard. Which gradients does it need for that, and from whom? Who needs what afterwards?",
        "Reduce-scatter gives each rank the sum of its shard. The optimizer gets one parameter, a view of this rank's "
        "shard in `flat_param`, so what it updates is in its place already. An all-gather brings the other shards.",
        "`nn.Parameter(flat_param.view(world_size, -1)[rank])`; `torch.zeros_like(flat_param)` for the flat gradient; "
        "`dist.reduce_scatter_single(grad_shard, flat_grad)`; `dist.all_gather_single(flat_param, "
        "param_shard.detach())`.",
        "```python\nparam_shard = nn.Parameter(...)\noptimizer = make_optimizer([param_shard])\n\ndef step():\n"
        "    flat_grad = ...  # zeros where a gradient is None, and in the padding\n"
        "    param_shard.grad = torch.empty_like(param_shard)\n    dist.reduce_scatter_single(..., ...)\n    ...\n"
        "    optimizer.step()\n    dist.all_gather_single(..., ...)\n\nreturn step\n```",
    ],
    explanation="One all-reduce was a reduce-scatter and an all-gather all along. ZeRO-1 takes the two apart and puts "
    "the optimizer's step in between: first each rank has the averaged gradient of its shard, then its shard is "
    "updated, then all have all. So nothing more is sent than in data parallel, and each rank holds 1/N of the state. "
    "The padding takes part with a gradient of zero. What the optimizer sees is a flat slice, which suits those that "
    "treat each element by itself, as SGD and Adam do; one that looks at whole matrices or at a layer's norm needs "
    "whole parameters.",
)
