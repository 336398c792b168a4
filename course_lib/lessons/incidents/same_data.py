"""Incident: after a restart the job trains on data that it has seen, because nobody saved its place in the epoch."""

import random
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ...exercises import Case, Exercise, Solution
from ..cluster.data import shared_folder

Sample = tuple[int, Tensor, Tensor]


class Samples(Dataset[Sample]):
    """Random inputs [width] with random targets [1]: a model can learn them only by heart. Each has a number."""

    def __init__(self, count: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(count, width, generator=generator)
        self.targets = torch.randn(count, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> Sample:
        return number, self.inputs[number], self.targets[number]


STOPS = ([5, 8], [8, 17], [3, 10, 12])
"""Where the job of each case is stopped: in the middle of an epoch of eight steps, at its end, or twice."""

PER_RANK = (16, 16, 15)
"""How many samples a rank has in an epoch. With an odd number, the last batch has one."""


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = 2 + number % 2, 64, rng.getrandbits(31)
    stops, count = STOPS[number % 3], PER_RANK[number % 3] * world_size
    what = f"{count} samples, stopped after {' and '.join(f'step {stop}' for stop in stops)}"
    return Case(world_size=world_size, args=lambda rank: (count, width, seed, stops), what=what)


def stopped_and_resumed(solution: Solution, count: int, width: int, seed: int, stops: list[int]) -> dict[str, Any]:
    """Train up to each of `stops` in a new start of the program."""
    data = Samples(count, width, seed)
    log: list[tuple[list[int], float]] = []
    with shared_folder() as folder:
        for start, stop in pairwise([0, *stops]):
            torch.manual_seed(seed)
            log += solution(nn.Linear(width, 1, bias=False), data, f"{folder}/checkpoint", stop, start > 0)
    return {"samples": [numbers for numbers, _ in log], "losses": [loss for _, loss in log]}


exercise = Exercise("incidents.same_data", title="Incident: better after every restart", draw=draw,
    trial=stopped_and_resumed,
    answers={
        "never": 12,
        "where": "epoch, and the place in it",
    },
    inputs_matter=False, case_count=3, task="""
    After every restart, the training loss is lower than it should be, and the loss on other data is not. Model,
    optimizer and step number come back from the checkpoint. Repair the program: in every epoch each sample is trained
    on once, wherever the job was stopped.
    """, hints="""
    Write down which samples a rank trains on before the restart, and which it trains on afterwards. Are any missing?

    A new loader begins at its first batch, and a new sampler in epoch 0. The step number says how many batches have
    been trained on, in all epochs together.

    `divmod(step, len(loader))` gives the epoch and the batches of it that are done. `sampler.set_epoch(epoch)` sets
    the order of this epoch, and `itertools.islice(loader, done, None)` leaves its first batches out.

    ```python
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    for number, (numbers, x, y) in enumerate(loader):
        if number < ...:
            continue
    ```
    """, explanation="""
    The place in the data is state, like the moments of Adam, and here nobody saved it. So some samples were
    trained on twice and others never, and the falling loss shows only that the model knows what it has seen. In
    [KempnerForge, issue 51](https://github.com/KempnerInstitute/KempnerForge/issues/51) every resume began the first
    epoch again. The ends of epochs need a test of their own: in
    [verl, issue 7401](https://github.com/verl-project/verl/issues/7401) a checkpoint from there leaves out the whole
    next epoch. If you skip batches in the loader, it reads them all from the disk, so large jobs skip in the sampler
    ([fvdb-reality-capture, pull request 159](https://github.com/openvdb/fvdb-reality-capture/pull/159)), or save the
    loader's state, as torchdata's `StatefulDataLoader` does.
    """)


@exercise
def train(
    model: nn.Module, data: Dataset[tuple[int, Tensor, Tensor]], file: str, stop: int, resume: bool
) -> list[tuple[list[int], float]]:
    """Train with data parallel until step `stop`, save in `file`, and return the samples and the loss of each step.

    With `resume`, go on from what the program saved there, as if it had never stopped. In each epoch a
    rank trains once on each of its samples, two at a time, in the order that `DistributedSampler` gives.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    step, log = 0, []
    if resume:
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < stop:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for number, (numbers, x, y) in enumerate(loader):
            if number < done:
                continue
            loss = F.mse_loss(model(x), y)
            loss.backward()
            for param in model.parameters():
                dist.all_reduce(param.grad)
                param.grad /= world_size
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            log.append((numbers.tolist(), loss.item()))
            if step == stop:
                break
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, file)
    dist.barrier()
    return log


ZERO = "step, log = 0, []\n"
PLACE = "epoch, done = divmod(step, len(loader))\n"
EPOCH = "sampler.set_epoch(epoch)\n"
LOOP = "for number, (numbers, x, y) in enumerate(loader):\n    if number < done:\n        continue"
STEP = 'step = state["step"]'
AGAIN = {ZERO: "step, epoch, log = 0, 0, []\n", PLACE: "", EPOCH: EPOCH + "epoch += 1\n",
    LOOP: "for numbers, x, y in loader:"}

exercise.start_edit(AGAIN)

exercise.edit("begins-again", AGAIN | {STEP: STEP + "\ndist.barrier()"}, """
    After a restart, the loader begins with the first batch of epoch 0. The samples from before the restart are trained
    on again, and the others have to wait until a job lives long enough.
    Next: compute epoch and place from the step number.""")

exercise.edit("smaller-steps-after-restart", AGAIN | {STEP: STEP + '\noptimizer.param_groups[0]["lr"] /= 2'}, """
    You lower the learning rate after a restart. The loss falls less, on the same samples as before.
    Next: compare the samples before and after the restart.""")

exercise.edit("next-epoch", {PLACE: "epoch, done = -(-step // len(loader)), 0\n"}, """
    After a restart you go on with the next epoch. No sample is trained on twice, and the rest of this epoch is lost.
    Next: go on in the middle of the epoch.""")

exercise.edit("order-of-the-first-epoch", {EPOCH: "sampler.set_epoch(0)\n"}, """
    You leave out the right number of batches, and every epoch has the order of the first.
    Next: give the sampler the number of the epoch.""")

exercise.edit("step-as-epoch", {EPOCH: "sampler.set_epoch(step)\n"}, """
    You give the sampler the number of the step, so a restart gives the epoch a new order. Leaving out the first
    batches of a different order leaves out the wrong samples. Next: give it the number of the epoch.""")

exercise.edit("one-batch-lost", {"number < done": "number < done + (resume and not log)"}, """
    You leave out one batch too many: the first that was not trained on before the stop.
    Next: `done` batches are done; what is the number of the next?""")

exercise.edit("one-batch-again", {"number < done": "number < done - 1"}, """
    You train again on the last batch before the stop.
    Next: `done` batches are done; what is the number of the next?""")

exercise.edit("skips-in-every-epoch", {PLACE: "epoch = step // len(loader)\n", STEP:
    STEP + "\ndone = step % len(loader)", "optimizer = torch": "done = 0\noptimizer = torch"}, """
    You leave out the first batches of the epoch in which you resume, and of every later one.
    Next: from the second epoch on there is nothing to leave out.""")

exercise.edit("skips-an-epoch", {EPOCH: "sampler.set_epoch(epoch + (resume and not log and done == 0))\n"}, """
    A stop in the middle of an epoch is right, but after a stop at its end you leave out a whole epoch.
    Next: with all batches of epoch 0 done, the next is batch 0 of epoch 1.""")

exercise.edit("last-batch-dropped", {"sampler=sampler)": "sampler=sampler, drop_last=True)"}, """
    An epoch's last batch is missing where a rank has an odd number of samples: that batch has one sample.
    `drop_last=True` has this effect. Next: compare the samples of one epoch with all that the sampler gives.""")

exercise.edit("steps-rounded-down", {PLACE: "epoch, done = divmod(step, len(data) // world_size // 2)\n"}, """
    With an odd number of samples on each rank, an epoch has one step more than you count, for the last sample. So the
    place in the epoch is wrong. Next: count the steps as the loader counts its batches.""")

exercise.edit("counts-from-zero", {"\n" + STEP: ""}, """
    Your second start counts its steps from zero, with parameters that have made them already. It makes more steps in
    all, and begins with the same data. Next: take the step number from the file.""")


exercise.variant_edit("skips-in-the-loader", {LOOP:
    "from itertools import islice\nfor numbers, x, y in islice(loader, done, None):"})

exercise.variant_edit("skips-in-the-sampler", {
    LOOP: "rest = list(sampler)[2 * done :]\nfor numbers, x, y in DataLoader(data, batch_size=2, sampler=rest):"})
