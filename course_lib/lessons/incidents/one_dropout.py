"""Incident: after a restart all ranks drop the same elements."""

import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ...exercises import Case, Exercise, Solution
from ..cluster.data import shared_folder


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (2, 3, 4)[number % 3], rng.randint(12, 16), rng.getrandbits(31)
    counts = (2, 2, 1) if number else (2, 3)
    what = f"dropout of {width} elements, stopped after 2 {'and 4 ' * (len(counts) > 2)}of 5 batches"
    return Case(world_size=world_size, args=lambda rank: (width, seed, counts), what=what)


class Dropped(nn.Module):
    """A linear map of an input of which elements were dropped; notes which were kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.kept = nn.Linear(width, 1, bias=False), [""]
        nn.init.ones_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        dropped = F.dropout(x, 0.5, self.training)
        self.kept += ["".join("x" if number else "." for number in dropped[0].tolist())]
        y: Tensor = self.linear(dropped)
        return y


def stopped_and_resumed(solution: Solution, width: int, seed: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """Train for as many batches as `counts` says, each time in a new start of the program."""
    losses: list[float] = []
    masks: list[str] = []
    with shared_folder() as folder:
        for start, count in enumerate(counts):
            torch.manual_seed(seed + dist.get_rank())  # as each start of the program does
            model = Dropped(width)
            losses += solution(model, [torch.ones(1, width)] * count, f"{folder}/checkpoint.pt", start > 0)
            masks += model.kept[1:]
            dist.barrier()
    return {"losses": losses, "what dropout kept": masks, "weights": model.linear.weight.detach()}


exercise = Exercise("incidents.one_dropout", title="Incident: noisier since the restart", draw=draw,
    answers={
        "where": "line 25: torch.save on rank 0",
        "why": "Each restart repeats the masks that this seed begins with",
    },
    trial=stopped_and_resumed, inputs_matter=False, case_count=3, task="""
    Since a restart the gradients are noisier, and the losses of the ranks move up and down together. The parameters
    and the learning rate are right. Repair the program: a run that was stopped goes on exactly as if it had not been,
    on every rank, its dropout included.
    """, hints="""
    Print what dropout keeps on each rank, before and after the restart. What is the same where it should differ?

    The random state is different on each rank, and it belongs in a checkpoint. How many random states does the
    file have?

    Every rank needs its own state back. `dist.all_gather_object` or `dist.gather_object` brings all states to rank 0;
    or each rank writes a file of its own.

    ```python
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    ...
    torch.set_rng_state(state["random"][...])
    ```
    """, explanation="""
    Rank 0 saved its random state, and every rank loaded it. From then on the ranks drew the same numbers: they dropped
    the same elements, so the average over ranks had the noise of one. The report:
    [miles pull request 3187](https://github.com/radixark/miles/pull/3187); the same fault in Megatron-LM changed the
    streams of 252 of 256 ranks ([pull request 6858](https://github.com/NVIDIA/Megatron-LM/pull/6858)). A seed by rank
    after loading makes the ranks differ, but repeats the masks of the first epoch.
    """)


@exercise
def train(model: nn.Module, batches: list[Tensor], file: str, resume: bool) -> list[float]:
    """Train `model` with data parallel, save in `file`, and return the loss of each batch.

    With `resume`, go on from what the program saved there, as if it had never stopped: with the same
    parameters, and on each rank with the random numbers that would have come next.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    if resume:
        state = torch.load(file)
        model.load_state_dict(state["model"])
        torch.set_rng_state(state["random"][rank])
    losses = []
    for x in batches:
        loss = model(x).square().mean()
        loss.backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= world_size
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    states = [None] * world_size
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        torch.save({"model": model.state_dict(), "random": states}, file)
    dist.barrier()
    return losses


LOAD = 'torch.set_rng_state(state["random"][rank])'
GATHER = "states = [None] * world_size\ndist.all_gather_object(states, torch.get_rng_state())\n"
SAVE = 'if rank == 0:\ntorch.save({"model": model.state_dict(), "random": states}, file)\n'
OF_RANK_0 = {GATHER: "states = torch.get_rng_state()\n", LOAD: 'torch.set_rng_state(state["random"])'}

exercise.start_edit({GATHER: "", '"random": states': '"random": torch.get_rng_state()',
    LOAD: 'torch.set_rng_state(state["random"])'})

exercise.edit("still-rank-0s-numbers", {LOAD: 'torch.set_rng_state(state["random"][0])'}, """
    Every rank goes on with rank 0's random numbers, so all ranks drop the same elements.
    Next: save the state of each rank, and let each rank load its own.""")

exercise.edit("first-masks-again", {f"\n{LOAD}": ""}, """
    No saved random state is in force when training begins. The ranks differ, because the program seeds them when it
    starts, but they draw the numbers of the first batches again: the same elements are dropped as at the beginning.
    Next: go on from the state in which each rank stopped.""")

exercise.edit("seeds-by-rank", OF_RANK_0 | {LOAD: 'torch.set_rng_state(state["random"])\ntorch.manual_seed(rank)'}, """
    You seed each rank by its number after loading. The ranks differ again, but the numbers are not those that would
    have come next, and each restart repeats them. Next: save one state for each rank.""")

exercise.edit("draws-by-rank", OF_RANK_0 | {LOAD: 'torch.set_rng_state(state["random"])\ntorch.rand(rank)'}, """
    You let each rank skip as many numbers as its rank, from rank 0's state. The streams are the same, shifted by a
    few elements, and only rank 0 goes on where it stopped. Next: save one state for each rank.""")

exercise.edit("neighbours-state", {'state["random"][rank]': 'state["random"][rank - 1]'}, """
    All states are in the file, and each rank loads another rank's. The ranks differ, but no rank goes on where it
    stopped. Next: use the index `rank`.""")

exercise.edit("dropout-switched-off", OF_RANK_0 | {LOAD: 'torch.set_rng_state(state["random"])\nmodel.eval()'}, """
    You switch dropout off after a restart. The noise is gone, and so is the regularisation that dropout is for.
    Next: keep the model in training mode, and give each rank its random state.""")

exercise.edit("no-dropout-at-all", {"losses = []\n": "model.eval()\nlosses = []\n"}, """
    Nothing is dropped, not even before the restart: the model is not in training mode.
    Next: keep the model in training mode. Only the random states need a repair.""")

exercise.edit("state-of-the-start", {GATHER: "", "losses = []\n": f"{GATHER}losses = []\n"}, """
    You collect the states before the training, so a restart repeats the numbers of the run before it.
    Next: collect them where the program saves.""")

exercise.edit("one-file-for-all", OF_RANK_0 | {
    SAVE: "for saver in range(world_size):\n    if rank == saver:\n"
    '        torch.save({"model": model.state_dict(), "random": states}, file)\n    dist.barrier()\n'}, """
    All ranks load the state of the last rank. If every rank saves to the same file, each replaces what the one before
    wrote. Next: look at which states are saved, and at which of them a rank takes.""")

exercise.variant_edit("a-file-for-each-rank", {GATHER: "", SAVE: 'torch.save({"model": model.state_dict(), "random": '
    'torch.get_rng_state()}, f"{file}.{rank}")\n', "torch.load(file)": 'torch.load(f"{file}.{rank}")',
    'state["random"][rank]': 'state["random"]'})


@exercise.variant
def with_tensors(model: nn.Module, batches: list[Tensor], file: str, resume: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    path = Path(file)
    if resume:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        torch.random.set_rng_state(saved["random"][dist.get_rank()].clone())
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for param in model.parameters():
            assert param.grad is not None
            dist.all_reduce(param.grad.div_(dist.get_world_size()))
        optimizer.step()
        losses.append(loss.item())
    mine = torch.random.get_rng_state()
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    if not dist.get_rank():
        torch.save({"model": model.state_dict(), "random": torch.stack(everyones)}, path)
    dist.barrier()
    return losses
