"""Frozen weights next to trained ones under FSDP2: what the optimizer gets, and what a checkpoint needs."""

import random
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcp_states
from torch import Tensor, nn

from ...exercises import Case, Exercise, Solution
from .data import Net, Sizes, a_step, draw_world, mesh, on_plain_tensors
from .make_zero3 import make_zero3


class LoRA(nn.Module):
    """A frozen layer plus a product of two small matrices, which are trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.base(x) + self.up(self.down(x))
        return total


def draw(rng: random.Random, number: int) -> Case:
    (world_size, sizes), seed = draw_world(rng, number), rng.getrandbits(32)
    what = f"{sizes[1]} blocks of width {sizes[0]}"
    return Case(world_size=world_size, args=lambda rank: (sizes, seed), what=what)


def saved(solution: Solution, sizes: Sizes, seed: int) -> Any:
    """Make a step, and return what the solution then saves."""
    model: Any = Net(sizes, seed).requires_grad_(False)
    for block in model.blocks:
        block[1] = LoRA(block[1])
    optimizer = make_zero3(model, mesh(), 0.05)
    a_step(model, on_plain_tensors(optimizer), seed)
    return solution(model)


exercise = Exercise("production.lora", title="Save what is trained", draw=draw, trial=saved, inputs_matter=False,
    case_count=2, task="""
    FSDP2 has sharded `model`. Its weights are frozen, except the small matrices of its adapters (LoRA). Return a state
    dict with only the trained parameters: on rank 0 whole tensors by name, on all other ranks an empty dict.
    `torch.distributed.checkpoint.state_dict`, which the notebook imports as `dcp_states`, has the function for it.
    """, hints="""
    How does a parameter show whether it is trained?

    Each rank holds shards, so whole tensors need collectives, which all ranks call. Frozen parameters have to stay
    out of them, or the whole model is gathered.

    `dcp_states.get_model_state_dict(model, options=...)` and `dcp_states.StateDictOptions(full_state_dict=...,
    cpu_offload=..., ignore_frozen_params=...)`.

    ```python
    options = dcp_states.StateDictOptions(...)
    return dcp_states.get_model_state_dict(...)
    ```
    """, explanation="""
    The checkpoint has the size of the adapters, and so have gradients and Adam's moments. Frozen weights have neither,
    but FSDP2 shards and gathers them like all others: they are in the all-gathers, not in the reduce-scatters. To use
    the adapters, load them into the model that the training began with.""")


@exercise
def save_trained(model: nn.Module) -> dict[str, Any]:
    """Return the trained parameters of a sharded model, whole: on rank 0 by name, on other ranks an empty dict."""
    options = dcp_states.StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    return dcp_states.get_model_state_dict(model, options=options)


FROZEN = ", ignore_frozen_params=True"
GET = "return dcp_states.get_model_state_dict(model, options=options)"

exercise.edit("frozen-too", {FROZEN: ""}, """
    You save the frozen parameters too, so the checkpoint is as large as the model, and rank 0 has to hold it all.
    Next: set `ignore_frozen_params`.""")

exercise.edit("shards", {"full_state_dict=True, ": ""}, """
    You return this rank's shards of the trained parameters. The task asks for whole tensors.
    Next: set `full_state_dict`.""")

exercise.edit("on-every-rank", {", cpu_offload=True": ""}, """
    Every rank keeps the whole tensors, and only rank 0 needs them to write a file. Next: set `cpu_offload` as well.""")

exercise.edit("rank-zero-calls", {GET: "if dist.get_rank() == 0:\n    " + GET + "\nreturn {}"}, """
    Only rank 0 asks for the state dict. Gathering is a collective, so rank 0 waits for ranks that never call.
    Next: call the function on all ranks.""")

exercise.edit("model-state-dict", {GET: "return model.state_dict()"}, """
    `model.state_dict()` returns this rank's shards, of frozen parameters too. Next: use `get_model_state_dict`, whose
    options choose whole tensors and leave out what is frozen.""")

exercise.edit("asks-the-copies", {FROZEN: "", GET: GET.replace("return ", "states = ")
    + "\nreturn {name: value for name, value in states.items() if value.requires_grad}"}, """
    You look at `requires_grad` of the saved tensors, which are copies and never need gradients, so nothing is left.
    Next: look at the model's parameters, or let the options leave out what is frozen.""")


@exercise.variant
def parameter_by_parameter(model: nn.Module) -> dict[str, Any]:
    whole = {name: param.full_tensor() for name, param in model.named_parameters() if param.requires_grad}
    return {name: value.detach().cpu() for name, value in whole.items()} if dist.get_rank() == 0 else {}


@exercise.variant
def gathered_on_all(model: nn.Module) -> dict[str, Any]:
    options = dcp_states.StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    states = dcp_states.get_model_state_dict(model, options=options)
    return states if dist.get_rank() == 0 else {}
