"""Stage 1 with parameters in bf16: masters and moments in fp32, of this rank's shard alone."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..data_parallel.data import ranks
from ..form.declare import Case, Exercise, Mistake, Solution
from ..zero1.rules import sends_no_more
from . import stubs
from .data import OPTIMIZERS, normal


def sharded_step(
    flat_param: torch.Tensor, flat_grad: torch.Tensor, master: nn.Parameter, optimizer: torch.optim.Optimizer
) -> None:
    """Make a step of stage 1. `master` is this rank's shard of the parameters, in fp32."""
    master.grad = torch.empty_like(master)
    dist.reduce_scatter_single(master.grad, flat_grad.float() / dist.get_world_size())
    optimizer.step()
    master.grad = None
    dist.all_gather_single(flat_param, master.detach().to(flat_param.dtype))


def average(flat_grad: Tensor, master: nn.Parameter) -> None:
    """Let `master` have its shard of the average."""
    master.grad = torch.empty_like(master)
    dist.reduce_scatter_single(master.grad, flat_grad.float() / dist.get_world_size())


def update(optimizer: Optimizer, master: nn.Parameter) -> None:
    optimizer.step()
    master.grad = None


def gather(flat_param: Tensor, master: nn.Parameter) -> None:
    dist.all_gather_single(flat_param, master.detach().to(flat_param.dtype))


def sums_in_16_bits(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    summed = flat_grad.new_empty(master.shape)
    dist.reduce_scatter_single(summed, flat_grad)
    master.grad = summed.float() / dist.get_world_size()
    update(optimizer, master)
    gather(flat_param, master)


def averages_in_16_bits(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    mean = flat_grad.new_empty(master.shape)
    dist.reduce_scatter_single(mean, flat_grad / dist.get_world_size())
    master.grad = mean.float()
    update(optimizer, master)
    gather(flat_param, master)


def divides_in_16_bits(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    master.grad = torch.empty_like(master)
    dist.reduce_scatter_single(master.grad, (flat_grad / dist.get_world_size()).float())
    update(optimizer, master)
    gather(flat_param, master)


def sum_for_mean(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    master.grad = torch.empty_like(master)
    dist.reduce_scatter_single(master.grad, flat_grad.float())
    update(optimizer, master)
    gather(flat_param, master)


def own_gradient(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    master.grad = flat_grad.chunk(dist.get_world_size())[dist.get_rank()].float()
    update(optimizer, master)
    gather(flat_param, master)


def all_reduces(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    mean = flat_grad.float() / dist.get_world_size()
    dist.all_reduce(mean)
    master.grad = mean.chunk(dist.get_world_size())[dist.get_rank()]
    update(optimizer, master)
    gather(flat_param, master)


def all_reduces_in_16_bits(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    dist.all_reduce(flat_grad)
    mean = flat_grad / dist.get_world_size()
    master.grad = mean.chunk(dist.get_world_size())[dist.get_rank()].float()
    update(optimizer, master)
    gather(flat_param, master)


def gathers_masters(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    average(flat_grad, master)
    update(optimizer, master)
    whole = torch.empty(flat_param.shape)
    dist.all_gather_single(whole, master.detach())
    flat_param.copy_(whole)


def two_dtypes(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    average(flat_grad, master)
    update(optimizer, master)
    dist.all_gather_single(flat_param, master.detach())


def never_gathers(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    average(flat_grad, master)
    update(optimizer, master)
    flat_param.chunk(dist.get_world_size())[dist.get_rank()].copy_(master.detach())


def gathers_elsewhere(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    average(flat_grad, master)
    update(optimizer, master)
    gathered = torch.empty_like(flat_param)
    gather(gathered, master)
    flat_param = gathered


def gathers_first(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    average(flat_grad, master)
    gather(flat_param, master)
    update(optimizer, master)


def master_from_parameters(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    master.data.copy_(flat_param.chunk(dist.get_world_size())[dist.get_rank()])
    sharded_step(flat_param, flat_grad, master, optimizer)


def rounds_the_master(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    sharded_step(flat_param, flat_grad, master, optimizer)
    master.data.copy_(flat_param.chunk(dist.get_world_size())[dist.get_rank()])


def keeps_the_gradient(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    average(flat_grad, master)
    optimizer.step()
    gather(flat_param, master)


def without_a_gradient(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    dist.reduce_scatter_single(torch.empty_like(master), flat_grad.float() / dist.get_world_size())
    update(optimizer, master)
    gather(flat_param, master)


def with_lists(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    world_size = dist.get_world_size()
    mean = torch.zeros_like(master)
    dist.reduce_scatter(mean, [chunk.float() for chunk in flat_grad.chunk(world_size)])
    master.grad = mean / world_size
    optimizer.step()
    optimizer.zero_grad()
    dist.all_gather(list(flat_param.chunk(world_size)), master.detach().bfloat16())


def through_its_shard(flat_param: Tensor, flat_grad: Tensor, master: nn.Parameter, optimizer: Optimizer) -> None:
    grad = flat_grad.to(torch.float32)
    shard = torch.empty(master.numel())
    dist.reduce_scatter_single(shard, grad)
    master.grad = shard.div_(dist.get_world_size())
    optimizer.step()
    del master.grad
    mine = flat_param.view(dist.get_world_size(), -1)[dist.get_rank()]
    mine.copy_(master.detach())
    dist.all_gather_single(flat_param, mine.clone())


STEPS = 3


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 3, 4, 1)[number] if number < 4 else rng.randint(2, 4)
    (name, make_optimizer), seed = OPTIMIZERS[number % 2], rng.getrandbits(32)
    numel = world_size * rng.randint(2, 4)
    return Case(
        world_size=world_size,
        args=lambda rank: (numel, make_optimizer, seed),
        about=f"{ranks(world_size)}, {STEPS} steps of {name} with {numel} elements",
    )


def steps(solution: Solution, numel: int, make_optimizer: Any, seed: int) -> dict[str, Any]:
    """Steps with other gradients on each rank, the later ones too small for bf16."""
    whole = 3 + normal(numel, seed=seed)
    flat_param = whole.bfloat16()
    master = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())
    optimizer = make_optimizer([master])
    for step in range(STEPS):
        flat_grad = normal(numel, seed=seed + 100 * step + dist.get_rank() + 1, dtype=torch.bfloat16)
        solution(flat_param, flat_grad * (1 if step == 0 else 0.01), master, optimizer)
    return {"flat_param": flat_param, "master": master.detach(), "gradient of the master": master.grad}


SHARDED_STEP = Exercise(
    name="precision.sharded_step",
    title="Masters in shards",
    task="Average the ranks' `flat_grad` in fp32, so that each rank has the average of its shard; let it be "
    "`master.grad`, and make a step of `optimizer`, which was made for `master`. Then let go of that gradient, and "
    "all-gather the masters, rounded to bf16, into `flat_param`. No rank may send more than it has to.",
    stub=stubs.sharded_step,
    reference=sharded_step,
    draw=draw,
    trial=steps,
    inputs_matter=False,
    rules=[sends_no_more("a reduce-scatter of the gradients in fp32, and an all-gather of the parameters in bf16")],
    variants={"with-lists": with_lists, "through-its-shard": through_its_shard},
    mistakes=[
        Mistake(
            id="sums-in-16-bits",
            solution=sums_in_16_bits,
            told="The gradients are summed in bf16, and every sum is rounded to 8 significant bits. With many ranks "
            "small gradients vanish beside the sum of the others.",
            action="Make them fp32 before they are reduced.",
        ),
        Mistake(
            id="averages-in-16-bits",
            solution=averages_in_16_bits,
            told="You divide and sum in bf16, and make fp32 of the rounded result. The digits are gone by then.",
            action="Make the gradients fp32 before anything else.",
        ),
        Mistake(
            id="divides-in-16-bits",
            solution=divides_in_16_bits,
            told="You divide in bf16, and make fp32 of the rounded quotient. A third, say, is rounded to 8 bits then.",
            action="First `.float()`, then divide.",
        ),
        Mistake(
            id="sum-for-mean",
            solution=sum_for_mean,
            told="The gradients are summed over the ranks, and not averaged.",
            action="Divide by the world size.",
        ),
        Mistake(
            id="own-gradient",
            solution=own_gradient,
            told="Each rank updates its shard with its own gradient. What the others' lines say about that shard is "
            "never heard.",
            action="Reduce-scatter the gradients of all.",
        ),
        Mistake(
            id="all-reduces",
            solution=all_reduces,
            told="An all-reduce brings every rank the whole average, of which it uses a shard. It sends twice what a "
            "reduce-scatter does.",
            action="Use `dist.reduce_scatter_single`.",
        ),
        Mistake(
            id="all-reduces-in-16-bits",
            solution=all_reduces_in_16_bits,
            told="The whole gradient is all-reduced, in bf16. Each sum is rounded to 8 significant bits, and every "
            "rank receives the shards of all others, too.",
            action="Make the gradients fp32 first, and reduce-scatter them.",
        ),
        Mistake(
            id="gathers-masters",
            solution=gathers_masters,
            told="The masters travel in fp32, and are rounded on arrival. Rounded before, they are half as many bytes, "
            "and the result is the same.",
            action="Make the shard bf16 before it is gathered.",
        ),
        Mistake(
            id="two-dtypes",
            solution=two_dtypes,
            told="The all-gather gets a shard of fp32 and a tensor of bf16 to write to. A collective copies bytes; it "
            "converts nothing.",
            action="Make the shard bf16 first: `.to(flat_param.dtype)`.",
        ),
        Mistake(
            id="never-gathers",
            solution=never_gathers,
            told="Each rank updates its own part of `flat_param`, and never hears of the others' parts.",
            action="All-gather the shards.",
        ),
        Mistake(
            id="gathers-elsewhere",
            solution=gathers_elsewhere,
            told="The updated parameters are in a tensor of your own. `flat_param = ...` gives a name to another "
            "tensor; the one that the model uses stays as it was.",
            action="Gather into `flat_param` itself.",
        ),
        Mistake(
            id="gathers-first",
            solution=gathers_first,
            told="You gather the masters before the step that changes them, so the parameters are a step behind.",
            action="Update first, then gather.",
        ),
        Mistake(
            id="master-from-parameters",
            solution=master_from_parameters,
            told="You make the master anew from the parameters. With that you throw away the digits that bf16 cannot "
            "hold, which is all that a master is there for.",
            action="Keep `master` as the last step left it.",
        ),
        Mistake(
            id="rounds-the-master",
            solution=rounds_the_master,
            told="At the end you copy the rounded parameters into the master. So small updates are lost before they "
            "can add up.",
            action="Leave `master` as the optimizer left it.",
        ),
        Mistake(
            id="keeps-the-gradient",
            solution=keeps_the_gradient,
            told="The master's gradient stays when you are done: 4 bytes for each element of the shard.",
            action="Set `master.grad = None` after the step.",
        ),
        Mistake(
            id="without-a-gradient",
            solution=without_a_gradient,
            told="The average arrives in a tensor that nobody looks at. The optimizer takes `master.grad`, and that is "
            "None, so nothing is updated.",
            action="Let `master.grad` be the average before the step.",
        ),
    ],
    hints=[
        "What does each rank need of the gradients, and in which dtype? What does it have to give to the others "
        "afterwards, and in which?",
        "Stage 1 reduce-scatters, updates a shard, and all-gathers. What is summed should be in fp32; what is only "
        "copied may be as small as its reader wants it.",
        "`flat_grad.float()`, `dist.reduce_scatter_single(out, whole)`, `optimizer.step()`, "
        "`dist.all_gather_single(whole, shard)`.",
        "```python\nmaster.grad = torch.empty_like(master)\ndist.reduce_scatter_single(master.grad, ...)\n"
        "optimizer.step()\n...  # let go of the gradient\ndist.all_gather_single(flat_param, ...)\n```",
    ],
    explanation="Of each shard one rank has the master, the momentum and the variance, 4 bytes each: so 12Ψ/N, where "
    "every rank had 12Ψ. Nobody misses the others' masters, for forward and backward use the rounded copies alone. "
    "Rounding before the all-gather gives the same values as rounding after it, and sends half as much. Sums are "
    "another matter: what is rounded between two additions is gone.",
)
