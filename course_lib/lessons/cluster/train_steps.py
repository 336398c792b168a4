"""A training program that can be stopped after any step, written from an empty function."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from ...exercises import Case, Exercise, Solution
from .data import Examples, Model, is_sharded, notes_its_runs, shared_folder, whole
from .remaining_batches import remaining_batches

PER_EPOCH, LAST = 2, 5


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (2, 3)[number % 2], rng.randint(3, 5), rng.getrandbits(31)
    stop = (3, 1)[number % 2]
    what = f"layers of width {width}, {PER_EPOCH} steps in an epoch, stopped after {stop} and {LAST - 1} of {LAST}"
    count = (2 * PER_EPOCH + 1) * world_size + 1  # one is left over on each rank, and one on all ranks together
    return Case(world_size=world_size, args=lambda rank: (width, count, seed, stop), what=what)


def stopped_and_resumed(solution: Solution, width: int, count: int, seed: int, stop: int) -> dict[str, Any]:
    """Train until step `stop`; then call the solution twice more, as a new start of the program does."""
    models, ran = list[nn.Module](), list[nn.Module]()

    def make_model() -> nn.Module:
        torch.manual_seed(seed)
        models.append(Model(width))
        notes_its_runs(models[-1], ran)
        return models[-1]

    examples = Examples(count, width, seed)
    with shared_folder() as folder:
        stops = stop, LAST - 1, LAST
        losses = [solution(make_model, examples, folder, *steps) for steps in pairwise((0, *stops))]
        dist.barrier()
        paths = {step: Path(folder) / f"step-{step}" for step in stops}
        saved = [step for step, path in paths.items() if (path / ".metadata").exists() and is_sharded(path)]
    params = list((ran or models)[-1].parameters())
    return {
        "the losses before the first stop": losses[0],
        "the losses after it": losses[1],
        "the losses after the second stop": losses[2],
        "steps with a sharded checkpoint": saved,
        "elements of the parameters that this rank has": sum(
            (param.to_local() if isinstance(param, DTensor) else param).numel() for param in params
        ),
        "the parameters at the end": [whole(param).detach() for param in params],
    }


exercise = Exercise("cluster.train_steps", title="Write a training program", draw=draw, trial=stopped_and_resumed,
    inputs_matter=False, case_count=2, task="""
    Write the program that you repaired, from an empty function: model, sharding, optimizer, data, checkpoint. It trains
    one optimizer step for each batch, with the mean squared error. The check calls it three times in the same folder,
    as if the job had been stopped in the middle of an epoch and once more, and compares with a run that was not
    stopped. Use your `remaining_batches`. How the checkpoint names its parts is up to you.""", hints="""
    Which three things does the second start need, so that its first step is the one that would have come next?

    Parameters and optimizer state come from the checkpoint; the batch follows from the number of the step.
    `dcp.load` fills the tensors of a state dict, so the program first makes model and optimizer as always.

    `remaining_batches(data, 2, step)[0]` has the indices of this step's batch, and
    `default_collate([data[index] for index in ...])` makes tensors of the examples. `get_state_dict` returns two
    state dicts, and `set_state_dict(model, optimizer, model_state_dict=..., optim_state_dict=...)` puts them back.

    ```python
    model = fully_shard(make_model())
    optimizer = ...  # after sharding
    if begin > 0:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        saved = {"model": ..., "optimizer": ...}
        dcp.load(saved, checkpoint_id=...)
        set_state_dict(...)
    for step in range(begin, end):
        x, y = ...
        ...
    ...  # save, on every rank
    ```
    """, explanation="""
    A program is right if a stop does not show. Compare a run that was stopped with one that was not, on a small model
    and in the middle of an epoch: at the end of one, a sampler that begins again is right by chance. Here the data of a
    step follows from its number, and so does a learning rate: make both functions of the step, and the checkpoint needs
    only tensors. Generators of random numbers, for dropout, are state as well.""")


@exercise
def train_steps(make_model: Callable[[], nn.Module], data: Dataset, folder: str, begin: int, end: int) -> list[float]:
    """Train with FSDP2 from step `begin` up to `end`, and return the loss of each step on this rank.

    Step 0 starts from the parameters that `make_model()` gives. A step takes 2 examples on each rank;
    examples that are left over in an epoch are dropped. AdamW has lr=0.01. After the last step, all
    ranks save their shards with `dcp` in `{folder}/step-{end}`. If `begin` is not 0, the program goes
    on from `{folder}/step-{begin}`, as if it had not been stopped.
    """
    model = fully_shard(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if begin > 0:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        saved = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(saved, checkpoint_id=f"{folder}/step-{begin}")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    losses = []
    for step in range(begin, end):
        x, y = default_collate([data[index] for index in remaining_batches(data, 2, step)[0]])
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/step-{end}")
    return losses


SET = 'set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])'
SAVE = 'dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/step-{end}")'
BATCH = "x, y = default_collate([data[index] for index in remaining_batches(data, 2, step)[0]])"

exercise.edit("data-begins-again", {f"for step in range(begin, end):\n{BATCH}":
    f"for step in range(end - begin):\n    {BATCH}"}, """
    After the restart your program takes the first batches of the first epoch again. The batches that would have come
    next are never seen. Next: count steps from the start of training, not from the start of the program.""")

FROM_EPOCH_0 = (
    "indices = list(DistributedSampler(data, drop_last=True))\nfirst = 2 * (step % (len(indices) // 2))\n"
    "x, y = default_collate([data[index] for index in indices[first : first + 2]])"
)

exercise.edit("never-sets-the-epoch", {BATCH: FROM_EPOCH_0}, """
    Your sampler never learns in which epoch it is, so every epoch has the order of the first.
    Next: call the sampler's `set_epoch` with the epoch of the step, or take the batch from your `remaining_batches`.
    """)

exercise.edit("begins-again-in-epoch-0", {BATCH: FROM_EPOCH_0.replace("step %", "(step - begin) %")}, """
    After the restart your program takes the first batches of the first epoch again. And its sampler never learns in
    which epoch it is, so every epoch has the same order. Next: let the epoch, and the place in it, follow from the
    number of the step.""")

exercise.edit("keeps-what-is-left-over", {BATCH:
    "sampler = DistributedSampler(data)\nepoch, place = divmod(step, len(sampler) // 2)\nsampler.set_epoch(epoch)\n"
    "indices = list(sampler)[2 * place : 2 * place + 2]\nx, y = default_collate([data[index] for index in indices])"},
    """
    Your sampler keeps the examples that are left over, and repeats others until every rank has as many. So an epoch has
    more steps. Next: give the sampler `drop_last=True`, or take the batch from your `remaining_batches`.""")

exercise.edit("one-batch", {"(data, 2, step)": "(data, 2, begin)"}, """
    Every step of a call takes the same batch. Next: let the batch follow from the number of the step.""")

exercise.edit("cold-optimizer", {SET: "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)"}, """
    The parameters come from the checkpoint, and Adam's moments begin at zero again, so the first updates after the
    restart differ. Next: put the optimizer's state into the optimizer that trains.""")

exercise.edit("starts-afresh", {"if begin > 0": "if begin < 0"}, """
    The second call begins with a new model, although there is a checkpoint. Next: load the checkpoint of the step at
    which the call begins, if there is one.""")

exercise.edit("optimizer-before-sharding", {"model = fully_shard(make_model())\noptimizer = torch.optim.AdamW(model"
    ".parameters(), lr=0.01)": "model = make_model()\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.01)\n"
    "model = fully_shard(model)"}, """
    You make the optimizer before `fully_shard`, which replaces the parameters. So the optimizer holds tensors that the
    model does not use, and `get_state_dict` does not find them in it.
    Next: make the optimizer from the parameters of the sharded model.""")

exercise.edit("saves-the-model-only", {SET: 'model.load_state_dict(saved["model"])',
    '{"model": model_state, "optimizer": optimizer_state}\n': '{"model": model_state}\n',
    SAVE: SAVE.replace(', "optimizer": optimizer_state', "")}, """
    Only the parameters are in your checkpoint. Adam's moments and its number of steps are not, so the updates after the
    restart differ. Next: save the optimizer's state as well, and put it back.""")

exercise.edit("not-sharded", {"fully_shard(make_model())": "make_model()"}, """
    Your model is not sharded: every rank has all of it, and trains it on its own examples.
    Next: call `fully_shard` before you make the optimizer.""")

exercise.edit("averaged-but-not-sharded", {"fully_shard(make_model())": "make_model()", "loss.backward()\n":
    "loss.backward()\nfor param in model.parameters():\n    dist.all_reduce(param.grad)\n"
    "    param.grad /= dist.get_world_size()\n"}, """
    Your ranks train one model together, and each of them has all of it: nothing calls `fully_shard`, so there are no
    shards to save. Next: call `fully_shard` before you make the optimizer.""")

exercise.edit("never-steps", {"optimizer.step()\n": ""}, """
    The parameters keep the values that `make_model()` gave them: the optimizer makes no step, or finds no gradients.
    Next: let the optimizer make a step after each backward, and clear the gradients only after the step.""")

exercise.edit("default-lr", {", lr=0.01": ""}, """
    Your AdamW has its default learning rate, 0.001. Next: give it the one that the docstring asks for.""")

exercise.edit("gradients-add-up", {"optimizer.zero_grad()\n": ""}, """
    Your gradients add up from step to step. Next: call `optimizer.zero_grad()` after each step.""")

exercise.edit("rank-0-saves", {SAVE: f"if dist.get_rank() == 0:\n    {SAVE}"}, """
    Only rank 0 calls `dcp.save`. It is a collective, because each rank writes its own shards, so rank 0 waits for the
    others. Next: call it on every rank.""")

exercise.edit("saves-whole-tensors", {SAVE: "model_state = {key: param.full_tensor() for key, param in model_state"
    f".items()}}\n{SAVE}"}, """
    Your checkpoint contains whole tensors. If you gather them before you save, every rank needs memory for them.
    Next: save the sharded state as it is.""")


@exercise.variant
def with_a_loader(
    make_model: Callable[[], nn.Module], data: Dataset, folder: str, begin: int, end: int
) -> list[float]:
    model = fully_shard(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=2, sampler=sampler, drop_last=True)
    if begin > 0:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.load({"net": model_state, "adam": optimizer_state}, checkpoint_id=f"{folder}/step-{begin}")
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    losses = []
    for step in range(end):
        sampler.set_epoch(step // len(loader))
        x, y = list(loader)[step % len(loader)]
        if step >= begin:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    states = dict(zip(("net", "adam"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=f"{folder}/step-{end}")
    return losses


exercise.variant_edit("stacks-by-hand", {BATCH:
    "xs, ys = zip(*(data[index] for index in remaining_batches(data, 2, step)[0]))\n"
    "x, y = torch.stack(xs), torch.stack(ys)"})
