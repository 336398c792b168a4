"""Incident: ranks other than 0 train a different model, because no file has the buffers that `to_empty` made anew."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcp_states
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution

LENGTH = 6


class Attention(nn.Module):
    """Causal attention with one head, rotary positions and no bias, from x [batch, LENGTH, width] to its shape.

    Two buffers are computed when the module is made, and belong to no state dict: `frequencies` [width / 2],
    by which a position turns each pair of numbers, and `mask` [LENGTH, LENGTH], True at what comes later, which it
    hides. `remains` is the number that new memory contains. `began_on_meta` and `has_run` are for the check.
    """

    def __init__(self, width: int, remains: float = 0.0) -> None:
        super().__init__()
        self.remains = remains
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.register_buffer("frequencies", 100.0 ** (-torch.arange(0, width, 2) / width), persistent=False)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)
        self.began_on_meta, self.has_run = self.mask.is_meta, False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Attention":
        """Fill what `to_empty` makes with `remains`, so that it is the same on every run."""
        was_meta = self.mask.is_meta
        super()._apply(fn, recurse)
        if was_meta and not self.mask.is_meta:
            for buffer in self.buffers():
                buffer.fill_(self.remains)
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.has_run = True
        query, key, value = self.project(x).chunk(3, dim=-1)
        angles = torch.arange(LENGTH)[:, None] * self.frequencies
        scores = turned(query, angles) @ turned(key, angles).mT
        mixed: Tensor = scores.masked_fill(self.mask, -1e9).softmax(-1) @ value
        return mixed


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair of numbers of x [batch, length, width] by its angle, [length, width / 2]."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()], -1)


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = 2 + number % 2, 4 * rng.randint(1, 2), rng.getrandbits(31)
    remains = number % 2 / 2  # zeros, as the memory of a GPU often begins, or not
    inside = number % 2 == 1
    what = f"attention of width {width}{' inside a module' * inside}, 5 batches, new memory contains {remains}"
    return Case(world_size=world_size, args=lambda rank: (width, remains, inside, seed), what=what)


def tuned(solution: Solution, width: int, remains: float, inside: bool, seed: int) -> dict[str, Any]:
    """Train on five batches whose targets are the checkpoint's own outputs, and a little more."""
    torch.manual_seed(seed)
    attention = Attention(width)
    attention.project.weight.data *= 3
    teacher = nn.Sequential(attention) if inside else attention
    checkpoint = teacher.state_dict() if dist.get_rank() == 0 else {}
    models = list[Attention]()

    def make_model() -> nn.Module:
        torch.manual_seed(seed + 1)
        model = Attention(width, remains)
        models.append(model)
        return nn.Sequential(model) if inside else model

    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    inputs = torch.randn(5, 8, LENGTH, width, generator=generator)
    with torch.no_grad():
        batches = [(x, teacher(x) + 0.1 * torch.randn(x.shape, generator=generator)) for x in inputs]
    losses = solution(make_model, checkpoint, batches, 0.3)
    on_meta = [model.began_on_meta for model in models]
    trained = [model.began_on_meta for model in models if model.has_run]
    right = dist.get_rank() == 0 or (any(on_meta) and all(trained))
    return {"losses": losses, "the model began on the meta device, except on rank 0": right}


exercise = Exercise("incidents.fresh_buffers", title="Incident: rank 0 looks right", draw=draw, trial=tuned,
    answers={
        "where": "line 18: to_empty",
        "what": "frequencies and mask",
    },
    inputs_matter=False, case_count=2, tolerance=1e-3, task="""
    Rank 0 reads the checkpoint, and the other ranks begin on the meta device, so that only one of them needs memory for
    the whole model. Every parameter arrives. The loss of rank 0 begins where the checkpoint ended, and the other
    ranks' losses begin far above. Repair the program: all ranks train the model of the checkpoint.
    """, hints="""
    Compare two ranks: which tensors of the model differ before the first step? Look at more than the parameters.

    A module has parameters and buffers. A buffer with `persistent=False` is in no state dict, so loading cannot bring
    it. Who computes it, and when?

    `model.named_buffers()` lists them. After `to_empty` they contain whatever was in the memory. Either compute them
    again, or send them: rank 0 has the right ones.

    ```python
    for buffer in model.buffers():
        dist.broadcast(...)
    ```
    """, explanation="""
    `to_empty` makes new memory for parameters and buffers. Loading fills the parameters, and the buffers that a state
    dict has. The others were computed in `__init__`, on the meta device, where there is nothing to compute with, so on
    these ranks they keep what was in the memory: zeros here, and the remains of other tensors or NaN elsewhere. In
    [LlamaFactory, pull request 10820](https://github.com/hiyouga/LlamaFactory/pull/10820) rank 0 now keeps these
    buffers and broadcasts them. If all ranks begin on the meta device, there is nothing to send: then a method that
    computes the buffers has to be called after `to_empty`, as
    [transformers, issue 45902](https://github.com/huggingface/transformers/issues/45902) explains.
    `torch.utils.deterministic.fill_uninitialized_memory` fills new memory with NaN in deterministic mode, so that the
    fault shows at once.
    """)


@exercise
def train(
    make_model: Callable[[], nn.Module],
    checkpoint: dict[str, Tensor],
    batches: list[tuple[Tensor, Tensor]],
    lr: float,
) -> list[float]:
    """Train the model of the checkpoint with FSDP2, and return the loss of each batch.

    Only rank 0 has the checkpoint, and makes the whole model; elsewhere `checkpoint` is empty, and the
    model is made on the meta device. All ranks train the same model.
    """
    device = "cpu" if dist.get_rank() == 0 else "meta"
    with torch.device(device):
        model = make_model()
    fully_shard(model)
    if device == "meta":
        model.to_empty(device="cpu")
    options = dcp_states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_states.set_model_state_dict(model, checkpoint, options=options)
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


MAKE = "with torch.device(device):\n    model = make_model()\n"
LOAD = "dcp_states.set_model_state_dict(model, checkpoint, options=options)\n"
SEND = "for buffer in model.buffers():\n    dist.broadcast(buffer, 0)\n"

SEND_SOME = (
    'for name, buffer in model.named_buffers():\n    if name.endswith("{}"):\n        dist.broadcast(buffer, 0)\n'
)

exercise.start_edit({SEND: ""})

exercise.edit("nobody-fills-the-buffers", {SEND: "dist.barrier()\n"}, """
    On all ranks but 0, the buffers do not have rank 0's numbers: `to_empty` made them anew, and does not fill them.
    Next: print `named_buffers()` on two ranks, and compare.""")

exercise.edit("only-the-mask", {SEND: SEND_SOME.format("mask")}, """
    The mask is right on every rank, but the frequencies are not: without them, positions mean nothing.
    Next: fill every buffer.""")

exercise.edit("only-the-frequencies", {SEND: SEND_SOME.format("frequencies")}, """
    The frequencies are right on every rank, but the mask is not: these ranks look at what comes later.
    Next: fill every buffer.""")

exercise.edit("zeros-everywhere", {"dist.broadcast(buffer, 0)": "buffer.zero_()"}, """
    You set the buffers to zero on every rank. Now the ranks agree, but rank 0 has lost the right numbers, too.
    Next: keep those of rank 0, and bring them to the other ranks.""")

exercise.edit("mean-of-the-buffers", {"dist.broadcast(buffer, 0)":
    "mean = buffer.float()\ndist.all_reduce(mean)\nbuffer.copy_(mean / dist.get_world_size())"}, """
    You average the buffers over all ranks. All ranks agree now, on the mean of right numbers and empty ones.
    Next: take those of rank 0.""")

exercise.edit("sends-the-parameters", {"model.buffers():\n    dist.broadcast(buffer, 0)":
    "model.parameters():\n    dist.broadcast(buffer.to_local(), 0)"}, """
    You send parameters. Those were right, because each rank had its shard, and now all have the shard of rank 0. The
    buffers are as they were. Next: look at `named_buffers()`.""")

exercise.edit("all-ranks-on-meta", {'"cpu" if dist.get_rank() == 0 else "meta"': '"meta"'}, """
    All ranks have the buffers of a rank that began on the meta device, so they agree on values that nobody computed.
    Next: send the buffers of a rank that computed them, or let every rank compute them.""")

exercise.edit("a-new-model", {MAKE: "model = make_model()\n", LOAD: "", "if device == \"meta\":\n    "
    "model.to_empty(device=\"cpu\")\n": ""}, """
    Every rank makes the model as if there were no checkpoint. The buffers are right, but the parameters are new.
    Next: load the checkpoint, and fill the buffers.""")

exercise.edit("whole-on-every-rank", {MAKE: "model = make_model()\n", SEND: "", "if device == \"meta\":\n    "
    "model.to_empty(device=\"cpu\")\n": ""}, """
    The losses are right. But ranks other than 0 train a model that they made with all its values, so each of these
    ranks needed memory for the whole model. Next: which ranks have to begin on the meta device?""")

exercise.edit("rank-zero-trains-alone", {SEND: "", "loss.backward()":
    "(loss * float(device == \"cpu\")).backward()"}, """
    You keep the wrong ranks out of the gradient. Their losses are still wrong, and their data are lost.
    Next: give them the right buffers.""")

exercise.variant_edit("computes-them-again", {SEND: "right = make_model()\nfor name, buffer in model.named_buffers():\n"
    "    buffer.copy_(right.get_buffer(name))\ndel right\n"})

exercise.variant_edit("right-from-the-start", {MAKE: MAKE + "right = dict(make_model().named_buffers())\n",
    SEND: "for name, buffer in model.named_buffers():\n    buffer.copy_(right[name])\n"})
