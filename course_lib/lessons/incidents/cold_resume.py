"""Incident: after every restart the loss jumps, because the optimizer's state was never loaded."""

# (annotations of inner functions are code, which the learner's cell would evaluate)

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as dcp_states
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from ...exercises import Case, Exercise, Solution
from ..cluster.data import notes_its_runs, shared_folder, whole


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = 2 + number % 2, rng.randint(3, 5), rng.getrandbits(31)
    rows = (1, 4)[number % 2]  # with one row, rank 0 has all of the weight
    what = f"width {width}, stopped after 5 and after 7 of 8 batches"
    return Case(world_size=world_size, args=lambda rank: (width, rows, seed), what=what)


def stopped_and_resumed(solution: Solution, width: int, rows: int, seed: int) -> dict[str, Any]:
    """Train for five batches and save; then for two more, and for one more, each in a new start of the program."""
    models, ran = list[nn.Module](), list[nn.Module]()

    def make_model() -> nn.Module:
        torch.manual_seed(seed)
        models.append(nn.Linear(width, rows, bias=False))
        notes_its_runs(models[-1], ran)
        return models[-1]

    x = torch.randn(4, width, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    with shared_folder() as folder:
        starts = ("", f"{folder}/1"), (f"{folder}/1", f"{folder}/2"), (f"{folder}/2", f"{folder}/3")
        losses = [solution(make_model, *ends, [x] * count) for ends, count in zip(starts, (5, 2, 1), strict=True)]
    weights = [whole(param).detach() for param in (ran or models)[-1].parameters()]
    return {"losses": [loss for each in losses for loss in each], "weights": weights}


exercise = Exercise("incidents.cold_resume", title="Incident: the loss jumps after every restart", draw=draw,
    answers={
        "where": "the optimizer's part of states(), called at line 18",
        "why": "dcp.load reads what the dict has names for, and it has none for the moments",
    },
    trial=stopped_and_resumed, inputs_matter=False, case_count=2, task="""
    A node fails every few hours, and the job goes on from its last checkpoint. After each restart the loss jumps. The
    files contain everything: parameters, moments, step counts. Repair the program: a run that was stopped goes on
    exactly as if it had not been.
    """, hints="""
    After the restart, compare three things with the run that was not stopped: the parameters, `optimizer.state`, and
    the loss of the first batch. Which of them differs?

    `dcp.load` fills the tensors of the dict that it is given, in place. What is not in this dict is not read. What
    does the state dict of a new Adam contain?

    An optimizer makes its state in the first step. `dcp_states.get_optimizer_state_dict(model, optimizer)` makes it
    before, so that there is something to fill, and `dcp_states.set_optimizer_state_dict` puts it back.

    ```python
    state = {
        "model": dcp_states.get_model_state_dict(model),
        "optimizer": dcp_states.get_optimizer_state_dict(...),
    }
    ```

    Use the same functions where the program saves: the names in the file must be those in the dict.
    """, explanation="""
    A new Adam has no moments, so `optimizer.state_dict()` has none, and `dcp.load` had nothing to fill. It read the
    learning rate and the other options, and skipped the rest without a warning. Adam divides by the
    size of earlier gradients; without that memory even a tiny gradient makes a full step, away from the minimum. The
    report: [KempnerForge pull request 115](https://github.com/KempnerInstitute/KempnerForge/pull/115); a relative, with
    gradients left over when the state is made, is
    [pytorch issue 140898](https://github.com/pytorch/pytorch/issues/140898). Test a resume as this check does: eight
    steps at once, and five, two and one, must give the same numbers.
    """)


@exercise
def train(make_model: Callable[[], nn.Module], start: str, stop: str, batches: Iterable[Tensor]) -> list[float]:
    """Train with FSDP2 and Adam, save in the folder `stop`, and return the loss of each batch.

    If `start` is not empty, go on from what the program saved in this folder, as if it had never stopped.
    """
    model = make_model()
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3, betas=(0.5, 0.999), fused=True)

    def states():
        return {
            "model": dcp_states.get_model_state_dict(model),
            "optimizer": dcp_states.get_optimizer_state_dict(model, optimizer),
        }

    if start:
        state = states()
        dcp.load(state, checkpoint_id=start)
        dcp_states.set_model_state_dict(model, state["model"])
        dcp_states.set_optimizer_state_dict(model, optimizer, state["optimizer"])
    losses = []
    for x in batches:
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    dcp.save(states(), checkpoint_id=stop)
    return losses


GET_MODEL = "dcp_states.get_model_state_dict(model)"
GET = "dcp_states.get_optimizer_state_dict(model, optimizer)"
SET_MODEL = 'dcp_states.set_model_state_dict(model, state["model"])'
SET = 'dcp_states.set_optimizer_state_dict(model, optimizer, state["optimizer"])'
LOSSES = "losses = []\n"
LOAD = "state = states()\ndcp.load(state, checkpoint_id=start)\n"
PLAIN = {GET_MODEL: "model.state_dict()", GET: "optimizer.state_dict()",
    SET_MODEL: 'model.load_state_dict(state["model"])', SET: 'optimizer.load_state_dict(state["optimizer"])'}

exercise.start_edit(PLAIN)

exercise.edit("optimizer-starts-again", PLAIN | {"dcp.load(": "dist.barrier()\ndcp.load("}, """
    After the restart, the parameters are those of the checkpoint, and the optimizer that trains has no moments.
    Next: print the optimizer's part of the dict before `dcp.load`: does it contain tensors to fill? Then print
    `optimizer.state` before the first batch.""")

exercise.edit("model-starts-again", {"dcp.load(state, ": 'dcp.load({"optimizer": state["optimizer"]}, '}, """
    The optimizer has its state back, and the model starts from its first parameters.
    Next: load the model's part as well.""")

exercise.edit("nothing-is-loaded", {f"if start:\n{LOAD}{SET_MODEL}\n{SET}\n": ""}, """
    The second run starts from the beginning: neither parameters nor moments come from the checkpoint.
    Next: load both.""")

exercise.edit("small-steps-after-restart", PLAIN | {LOSSES: LOSSES
    + 'if start:\n    optimizer.param_groups[0]["lr"] /= 10\n'}, """
    You lower the learning rate after a restart. The jump is smaller, and so are all steps that follow; the moments are
    still missing. Next: load the moments, and leave the learning rate alone.""")

exercise.edit("step-without-gradients", PLAIN | {"losses = []\nfor x": "losses = []\nif start:\n    "
    "for param in model.parameters():\n        param.grad = torch.zeros_like(param)\n    optimizer.step()\nfor x"}, """
    After the restart the moments are zeros, and not those of the checkpoint, as if a step on gradients of zero had made
    them after loading. Next: look at what `dcp.load` fills, and at whether it exists before.""")

exercise.edit("names-differ", {"states(), ":
    '{"model": model.state_dict(), "optimizer": optimizer.state_dict()}, '}, """
    Your dict has names of optimizer states that the file does not have. `optimizer.state_dict()` numbers the
    parameters, and `get_optimizer_state_dict` names them. Next: save what you load, with the same functions.""")

exercise.edit("gradients-left-over", {"if start:\nstate": "if start:\n    model(torch.ones(1, model.in_features))"
    ".sum().backward()\n    state"}, """
    Parameters have gradients when the optimizer's state is made. Then torch makes none, and nothing is loaded into it.
    Next: call `optimizer.zero_grad()` before you ask for the state.""")

exercise.variant_edit("both-at-once", {GET_MODEL: "dcp_states.get_state_dict(model, optimizer)[0]",
    f"{SET_MODEL}\n{SET}": 'dcp_states.set_state_dict(model, optimizer, model_state_dict=state["model"], '
    'optim_state_dict=state["optimizer"])'})

exercise.variant_edit("state-made-by-hand", PLAIN | {
    "if start:\nstate": "if start:\n    for param in model.parameters():\n"
    "        param.grad = torch.zeros_like(param)\n    optimizer.step()\n    optimizer.zero_grad()\n    state"})
