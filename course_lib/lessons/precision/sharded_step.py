"""Stage 1 with parameters in bf16: masters and moments in fp32, of this rank's shard only."""

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...exercises import Case, Exercise, Solution, draw_world_size, normal, sends_no_more
from .data import OPTIMIZERS

STEPS = 3


def draw(rng: random.Random, number: int) -> Case:
    world_size = draw_world_size(rng, number)
    (name, make_optimizer), seed = OPTIMIZERS[number % 2], rng.getrandbits(32)
    numel = world_size * rng.randint(2, 4)
    what = f"{STEPS} steps of {name} with {numel} elements"
    return Case(world_size=world_size, args=lambda rank: (numel, make_optimizer, seed), what=what)


def steps(solution: Solution, numel: int, make_optimizer: Any, seed: int) -> dict[str, Any]:
    """Make steps with different gradients on each rank; those of the later steps are too small for the masters in bf16.

    Those of the first element are too small for fp16, which Adam shows: its step is as large as with larger ones.
    """
    whole = 3 + normal(numel, seed=seed)
    flat_param = whole.bfloat16()
    master = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())
    optimizer = make_optimizer([master])
    for step in range(STEPS):
        flat_grad = normal(numel, seed=seed + 100 * step + dist.get_rank() + 1, dtype=torch.bfloat16)
        flat_grad[0] *= 1e-8
        solution(flat_param, flat_grad * (1 if step == 0 else 0.01), master, optimizer)
    return {"flat_param": flat_param, "master": master.detach(), "gradient of the master": master.grad}


exercise = Exercise("precision.sharded_step", title="Masters in shards", draw=draw, trial=steps, inputs_matter=False,
    rules=[sends_no_more("a reduce-scatter of the gradients in fp32, and an all-gather of the parameters in bf16")],
    task="""
    Average the ranks' `flat_grad` in fp32, so that each rank gets the average of its own shard. Store this average in
    `master.grad`, and make a step of `optimizer`, which updates `master`. Then remove the gradient, round the masters
    to bf16, and all-gather them into `flat_param`. No rank may send more bytes than this takes.""", hints="""
    Which part of the gradients does each rank need, and in which dtype? What do the other ranks need from it
    afterwards?

    Stage 1 reduce-scatters gradients, updates a shard, and all-gathers parameters. Sum in fp32. A tensor that is only
    copied can travel in the dtype in which it is used.

    `flat_grad.float()`, `dist.reduce_scatter_single(out, whole)`, `optimizer.step()`,
    `dist.all_gather_single(whole, shard)`.

    ```python
    master.grad = torch.empty_like(master)
    dist.reduce_scatter_single(master.grad, ...)
    optimizer.step()
    ...  # remove the gradient
    dist.all_gather_single(flat_param, ...)
    ```
    """, explanation="""
    Only one rank holds the master, the momentum and the variance of a shard, 4 bytes each. So a rank holds 12Ψ/N bytes
    instead of 12Ψ. No rank needs the masters of other ranks, because forward and backward use only the rounded
    parameters. Rounding before the all-gather gives the same values as rounding after it, and sends half as many bytes.
    Sums are different: digits that are rounded away between two additions are lost.""")


@exercise
def sharded_step(
    flat_param: torch.Tensor,
    flat_grad: torch.Tensor,
    master: nn.Parameter,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Make a step of stage 1. `master` is this rank's shard of the parameters, in fp32.

    `flat_param`, which is updated in place, and `flat_grad`, this rank's gradient, are in bf16. Both
    have the shape [padded_numel]: they are as long as all shards together. Gradients are averaged in
    fp32, and parameters travel in bf16. `optimizer` updates `master`. Afterwards `master` has no
    gradient. Send no more bytes than one reduce-scatter in fp32 and one all-gather in bf16.
    """
    master.grad = torch.empty_like(master)
    dist.reduce_scatter_single(master.grad, flat_grad.float() / dist.get_world_size())
    optimizer.step()
    master.grad = None
    dist.all_gather_single(flat_param, master.detach().to(flat_param.dtype))


AVERAGE = """master.grad = torch.empty_like(master)
dist.reduce_scatter_single(master.grad, flat_grad.float() / dist.get_world_size())"""
GATHER = "dist.all_gather_single(flat_param, master.detach().to(flat_param.dtype))"

exercise.edit("sums-in-16-bits", {AVERAGE: """summed = flat_grad.new_empty(master.shape)
dist.reduce_scatter_single(summed, flat_grad)
master.grad = summed.float() / dist.get_world_size()"""}, """
    You sum the gradients in bf16, so each sum is rounded to 8 significant bits. With many ranks, small gradients are
    lost next to a large sum. Next: convert the gradients to fp32 before the reduce-scatter.""")

exercise.edit("sum-for-mean", {" / dist.get_world_size()": ""}, """
    You update with the sum of the gradients; a reduce-scatter adds, and the task asks for the average. With SGD, the
    step is world size times too large. Next: divide by `dist.get_world_size()`, before or after the reduce-scatter.""")

OWN = """
    You update with this rank's own gradient. The gradients of the other ranks never arrive.
    Next: which call gives each rank the sum of its own shard over all ranks?"""
MINE = "master.grad = flat_grad.float().chunk(dist.get_world_size())[dist.get_rank()]"

exercise.edit("never-reduces", {AVERAGE: f"{MINE} / dist.get_world_size()"}, OWN)

exercise.edit("never-reduces-nor-divides", {AVERAGE: MINE}, OWN)

exercise.edit("all-reduces", {AVERAGE: """mean = flat_grad.float() / dist.get_world_size()
dist.all_reduce(mean)
master.grad = mean.chunk(dist.get_world_size())[dist.get_rank()]"""}, """
    Your all-reduce gives every rank the whole average, and a rank uses only its shard. An all-reduce sends twice as
    many bytes as a reduce-scatter. Next: use `dist.reduce_scatter_single`.""")

exercise.edit("gathers-masters", {GATHER: """whole = torch.empty(flat_param.shape)
dist.all_gather_single(whole, master.detach())
flat_param.copy_(whole)"""}, """
    Your parameters take twice the bytes of an all-gather in bf16. That happens if masters travel in fp32 and are
    rounded afterwards, or if an all-reduce collects the shards.
    Next: convert the shard to bf16, and then all-gather it.""")

exercise.edit("two-dtypes", {".to(flat_param.dtype)": ""}, """
    You gather a shard in fp32 into a tensor in bf16. A collective copies bytes, and does not convert them.
    Next: convert the shard to the dtype of what it is gathered into.""")

exercise.edit("never-gathers", {GATHER:
    "flat_param.chunk(dist.get_world_size())[dist.get_rank()].copy_(master.detach())"}, """
    Each rank updates only its own part of `flat_param`. The parts of the other ranks keep their old values.
    Next: all-gather the shards.""")

exercise.edit("through-fp16", {"flat_grad.float()": "flat_grad.half().float()"}, """
    Your gradients pass through fp16, in which numbers below 3e-8 become 0. Bf16 goes down to about 1e-40.
    Next: convert them from bf16 to fp32 directly.""")

exercise.edit("never-steps", {"optimizer.step()\n": ""}, """
    `master` and `flat_param` keep their old values: nothing updates `master`.
    Next: let the optimizer make its step, once the master has its gradient.""")

exercise.edit("gathers-elsewhere", {GATHER: f"gathered = torch.empty_like(flat_param)\n"
    f"{GATHER.replace('(flat_param,', '(gathered,')}\nflat_param = gathered"}, """
    `flat_param` keeps its old values. If you wrote `flat_param = ...`: that gives the name to a new tensor, and the
    model still uses the old one. Next: gather into `flat_param` itself, as the first argument of the all-gather.""")

exercise.edit("rounds-the-master", {GATHER:
    f"{GATHER}\nmaster.data.copy_(flat_param.chunk(dist.get_world_size())[dist.get_rank()])"}, """
    You end by copying the rounded parameters into the master. Small updates are lost before they can add up.
    Next: leave `master` as the optimizer left it.""")

exercise.edit("keeps-the-gradient", {"master.grad = None\n": ""}, """
    The master still has its gradient at the end: 4 bytes for each element of the shard.
    Next: drop the master's gradient after the step.""")


@exercise.variant
def with_lists(
    flat_param: torch.Tensor, flat_grad: torch.Tensor, master: nn.Parameter, optimizer: torch.optim.Optimizer
) -> None:
    world_size = dist.get_world_size()
    mean = torch.zeros_like(master)
    dist.reduce_scatter(mean, [chunk.float() for chunk in flat_grad.chunk(world_size)])
    master.grad = mean / world_size
    optimizer.step()
    optimizer.zero_grad()
    dist.all_gather(list(flat_param.chunk(world_size)), master.detach().bfloat16())


exercise.variant_edit("through-its-shard", {GATHER: "mine = flat_param.chunk(dist.get_world_size())[dist.get_rank()]\n"
    "mine.copy_(master.detach())\ndist.all_gather_single(flat_param, mine.clone())"})
