"""Incident: rank 0 alone gathers the model for a checkpoint."""

import random
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as dcp_states
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution
from ..cluster.data import shared_folder
from .data import Batch, batches, make_mlp


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (3, 2)[number % 2], rng.randint(2, 4), rng.getrandbits(31)

    def args(rank: int) -> tuple[nn.Module, list[Batch]]:
        return make_mlp(width, seed), batches([4] * 4, width, seed + rank)

    return Case(world_size=world_size, args=args, what=f"4 steps, a layer of width {width}")


def trained(solution: Solution, model: nn.Module, data: list[Batch]) -> dict[str, Any]:
    with shared_folder() as folder:
        own = Path(folder, str(dist.get_rank()))  # so that it shows which rank writes
        own.mkdir()
        losses = solution(model, data, str(own))
        files = sorted(own.iterdir())
        saved = {file.name: torch.load(file) for file in files}
    return {"losses": losses, "files": saved}


exercise = Exercise("incidents.first_checkpoint", title="Incident: the first checkpoint", draw=draw, trial=trained,
    answers={
        "where": "rank 0, at line 21",
        "why": "With DDP rank 0 has the whole model, so it calls no collective",
    },
    inputs_matter=False, case_count=2, task="""
    The job stops at its first checkpoint: [bergson, pull request
    376](https://github.com/EleutherAI/bergson/pull/376), rebuilt with FSDP2. Repair the program until its docstring
    is true.
    """, hints="""
    Which ranks are in a barrier, and what is rank 0 in?

    No rank has the whole model. To save it, something has to bring the shards to rank 0.

    `dcp_states.get_model_state_dict` with `full_state_dict=True` gathers: it is a collective. Writing the file is not.

    ```python
    state = dcp_states.get_model_state_dict(...)
    if dist.get_rank() == 0:
        ...
    ```
    """, explanation="""
    With DDP, `if rank == 0: torch.save(model.state_dict())` is right: rank 0 has everything. With shards the same line
    hangs, because taking the state is a collective and only writing it is not. So take the state on every rank, and
    decide by rank who writes. PyTorch's own design says it in one sentence: ["all ranks will still need to call all
    collectives"](https://github.com/pytorch/pytorch/issues/73383). With `cpu_offload=True` only rank 0 keeps the whole
    model. `dcp.save` avoids the gather: each rank writes its shards.
    """)


@exercise
def train(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]], folder: str) -> list[float]:
    """Train with FSDP2, and return the losses of this rank's batches.

    After every second step, counted from 1, rank 0 saves the whole model's parameters in the file
    `{folder}/step-2.pt`, `{folder}/step-4.pt` and so on. No other rank writes a file.
    """
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = dcp_states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    losses = []
    for step, (x, y) in enumerate(data, 1):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.3f}")
        if step % 2 == 0:
            state = dcp_states.get_model_state_dict(model, options=whole)
            if dist.get_rank() == 0:
                torch.save(state, f"{folder}/step-{step}.pt")
            dist.barrier()
    return losses


SAVE = 'torch.save(state, f"{folder}/step-{step}.pt")'
TAKE = f"state = dcp_states.get_model_state_dict(model, options=whole)\nif dist.get_rank() == 0:\n    {SAVE}"
ALONE = f"if dist.get_rank() == 0:\n    state = dcp_states.get_model_state_dict(model, options=whole)\n    {SAVE}"

exercise.start_edit({TAKE: ALONE})

exercise.edit("still-alone", {TAKE: f"dist.barrier()\n{ALONE}"}, """
    Rank 0 still gathers alone: taking the whole state is a collective, in which it waits for the shards of the others.
    They wait in the barrier. Next: take the state on every rank, and write it on rank 0.
    """)

exercise.edit("no-barrier", {TAKE: ALONE, "\n    dist.barrier()": ""}, """
    Without the barrier the other ranks go on to their next step, and its gather meets the gather of rank 0's
    checkpoint. Next: take the state on every rank, and write it on rank 0.
    """)

exercise.edit("own-shards", {"dcp_states.get_model_state_dict(model, options=whole)":
    "{name: param.to_local() for name, param in model.named_parameters()}"}, """
    Nobody hangs, but the file contains the shards of rank 0 only. That shows when somebody loads it.
    Next: take the whole state, on every rank.
    """)

exercise.edit("a-file-for-each-rank", {TAKE: "state = dcp_states.get_model_state_dict(model, options=whole)\nname = "
    "f\"step-{step}.pt\" if dist.get_rank() == 0 else f\"step-{step}-{dist.get_rank()}.pt\"\n"
    "torch.save(state, f\"{folder}/{name}\")"}, """
    Every rank writes a file, and only rank 0 has something to write in it. Next: write the file on rank 0 only.
    """)

exercise.edit("one-file-by-all", {TAKE: f"state = dcp_states.get_model_state_dict(model, options=whole)\n{SAVE}"}, """
    Every rank writes the file. With `cpu_offload=True` only rank 0 has the whole model, so an empty dictionary of
    another rank may replace it. Next: write the file on rank 0 only.
    """)

exercise.edit("only-the-last", {"if step % 2 == 0": "if step == len(data)"}, """
    You save once, at the end. A job that crashes before loses everything. Next: save after every second step.
    """)

BLOCK = f"if step % 2 == 0:\n{indent(TAKE, '    ')}\n    dist.barrier()"

exercise.edit("state-before-training", {TAKE: f"if dist.get_rank() == 0:\n    {SAVE}",
    "losses = []": "losses = []\nstate = dcp_states.get_model_state_dict(model, options=whole)"}, """
    Every file contains the parameters from before the first step: you take the state only once.
    Next: take the state when you save it.
    """)

exercise.edit("before-the-step", {"optimizer.step()\noptimizer.zero_grad()\n": "",
    BLOCK: f"{BLOCK}\noptimizer.step()\noptimizer.zero_grad()"}, """
    Your program saves the parameters from before the optimizer step. Next: make the step first.
    """)

exercise.variant_edit("full-tensors", {"dcp_states.get_model_state_dict(model, options=whole)":
    "{name: param.full_tensor() for name, param in model.named_parameters()}"})

exercise.variant_edit("without-the-barrier", {"\n    dist.barrier()": ""})
