"""A training program with six faults."""

import random
from collections.abc import Callable, Iterator
from math import isclose
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ...exercises import Case, Exercise, Solution
from .data import Examples, Model, notes_its_runs, shared_folder, what_was_saved


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = (2, 3)[number % 2], rng.randint(3, 5), rng.getrandbits(31)
    what = f"layers of width {width}, 2 epochs"
    return Case(world_size=world_size, args=lambda rank: (width, 8 * world_size, seed), what=what)


def trained(solution: Solution, width: int, count: int, seed: int) -> dict[str, Any]:
    examples, models, ran = Examples(count, width, seed), [], list[Any]()

    def make_model() -> nn.Module:
        models.append(Model(width))
        notes_its_runs(models[-1], ran)
        return models[-1]

    with shared_folder() as folder:
        losses = solution(make_model, examples, folder, 2)
        dist.barrier()
        saved = {epoch: what_was_saved(folder, epoch) for epoch in range(2)}
    model = (ran or models)[-1]
    return {
        "examples, in order": examples.asked,
        "parameters at the first batch": model.at_the_first_batch,
        "losses, divided by two": halves(losses, model, examples),
        "its shards of the parameters": [
            (param.to_local() if isinstance(param, DTensor) else param).detach() for param in model.parameters()
        ],
        "what each epoch saved": [one if isinstance(one, str) else "the model in shards" for one in saved.values()],
        **{f"parameters in the checkpoint of epoch {epoch}": found for epoch, found in saved.items()},
    }


def halves(losses: Any, model: Model, examples: Examples) -> Any:
    """Return the losses divided by two, as the given program returns them, also if they are the whole losses."""
    floats = isinstance(losses, list) and losses and all(isinstance(loss, float) for loss in losses)
    if not (floats and model.at_the_first_batch):
        return losses
    first, last = model.at_the_first_batch[:2], model.at_the_first_batch[2:]
    x, y = (all_of[examples.asked[:2]] for all_of in (examples.inputs, examples.targets))
    whole = F.mse_loss(F.linear(F.linear(x, *first).tanh(), *last), y).item()
    return [loss / 2 for loss in losses] if isclose(losses[0], whole, rel_tol=1e-3) else losses


exercise = Exercise("cluster.repair_train", title="Repair: six faults of a training program", draw=draw, trial=trained,
    inputs_matter=False, case_count=2, task="""
    The program trains with FSDP2, and has six faults. None of them raises an error, and its losses look like losses.
    Repair it until the docstring is true. The check reads the model from each checkpoint, under the names
    of its parameters, or under these names behind a prefix such as `model.`.
    """, hints="""
    Go through the docstring sentence by sentence. Which line of the program makes each sentence true?

    Which parameters does the optimizer know? Which weights does each rank start from, torch's or the
    model's? What changes from epoch to epoch?

    `reset_parameters` gives a layer torch's usual weights, and knows nothing of the model that it is part of.
    `fully_shard` replaces the parameters, so the optimizer is made after it. A sampler shuffles by its epoch number.
    `set_requires_gradient_sync(False)` stays until it is set to True. Files of the same name replace each other.

    ```python
    torch.manual_seed(...)          # the same on every rank
    ...                             # the model on the meta device, then `to_empty`
    model.init_weights()
    for epoch in range(epochs):
        sampler.set_epoch(...)
        for number, (x, y) in enumerate(loader):
            model.set_requires_gradient_sync(number % 2 == ...)
    ```

    `dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{folder}/epoch-{epoch}")`, on every rank.
    """, explanation="""
    Each of the six comes from real programs, and each costs a training run: the same order in every epoch; an
    optimizer whose tensors get no gradients, because the model does not use them any more; a model put together from
    the shards of different initialisations; layers that start from torch's usual weights instead of the model's own;
    gradients that never leave their rank; a checkpoint with the shards of one rank only.
    The loss falls with four of them. With an optimizer made too early, or gradients never reduced, no parameter moves.
    Compare with one process on a small model before you start a large one.
    """)


@exercise
def train(make_model: Callable[[], nn.Module], dataset: Dataset, folder: str, epochs: int) -> list[float]:
    """Train with FSDP2, and return the loss of each of this rank's batches.

    All ranks start from the parameters that the model's `init_weights()` gives with seed 0. Each epoch
    has an order of its own: that of `DistributedSampler` for the epochs 0, 1 and so on. Two batches
    make one step.
    After each epoch all ranks save their shards with `dcp`, in the folder `{folder}/epoch-0` and so on.
    Each of these folders contains the whole model.
    """
    torch.manual_seed(0)
    with torch.device("meta"):
        model = make_model()
    model.to_empty(device="cpu")
    model.init_weights()
    model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            model.set_requires_gradient_sync(number % 2 == 1)
            loss = F.mse_loss(model(x), y) / 2
            loss.backward()
            losses.append(loss.item())
            if number % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{folder}/epoch-{epoch}")
    return losses


SEED = {"torch.manual_seed(0)": "torch.manual_seed(dist.get_rank())"}
INIT = {"model.init_weights()": "for layer in model.children():\n    layer.reset_parameters()"}
OPTIMIZER = {
    "model = fully_shard(model)\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.01)":
    "optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)\nmodel = fully_shard(model)",
}
EPOCH = {"sampler.set_epoch(epoch)\n": ""}
SYNC = {"number % 2 == 1)\n": "False)\n"}
SAVE = {
    'dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{folder}/epoch-{epoch}")':
    'torch.save(get_model_state_dict(model), f"{folder}/epoch-{epoch}.pt")',
}

exercise.start_edit(SEED | INIT | OPTIMIZER | EPOCH | SYNC | SAVE)

exercise.edit("seed-by-rank", SEED, """
    Each of your ranks makes a model with a seed of its own, and keeps a shard of it. So the sharded model consists of
    parts of different models. Next: use the same seed on every rank before the model is made.
    """)

exercise.edit("not-its-own-weights", INIT, """
    Your model does not start from its own weights. `reset_parameters` gives each layer torch's usual ones; what the
    model's `__init__` had chosen was lost on the meta device. Next: call the model's own `init_weights()`.
    """)

exercise.edit("optimizer-before-sharding", OPTIMIZER, """
    No parameter moves: your optimizer makes no step, or finds no gradients. If it is made before `fully_shard`, which
    replaces the parameters by shards, it holds tensors that the model does not use any more.
    Next: look at where the optimizer is made, at what happens to the gradients before its step, and at the step.
    """)

exercise.edit("same-order-every-epoch", EPOCH, """
    Your second epoch has the order of the first: a sampler shuffles by its epoch number, which stays 0.
    Next: tell the sampler the number of the epoch at the start of each.
    """)

exercise.edit("never-reduces", SYNC, """
    You switch the reduction of gradients off, and never switch it on again. Every rank keeps its own gradients, and the
    shards get none. Next: turn the reduction on again for the batch before each step.
    """)

exercise.edit("one-file-for-all", SAVE, """
    All your ranks write their shards to one file, and each replaces what the one before wrote: one rank's shards are
    left. Next: call `dcp.save` on every rank, with the sharded state of the model.
    """)

exercise.edit("last-epoch-only", {"dcp.save(": "if epoch == epochs - 1:\n    dcp.save("}, """
    At the end only the last epoch has a folder with a checkpoint. If the program crashes while it saves this one,
    none is complete. Next: save after each epoch, in a folder with the epoch's number.
    """)

exercise.edit("reduces-the-wrong-batch", {"number % 2 == 1)\n": "number % 2 == 0)\n"}, """
    You reduce gradients in the first batch of a step and switch the reduction off for the second. The gradients of the
    second batch come too late for the step. Next: reduce in the batch that the step follows.
    """)

exercise.edit("only-rank-zero-saves", {"dcp.save(": "if dist.get_rank() == 0:\n        dcp.save("}, """
    Only rank 0 saves. `dcp.save` is a collective, in which each rank writes its own shards, so rank 0 waits for calls
    that other ranks never make. Next: call `dcp.save` on every rank.
    """)

exercise.edit("saves-whole-tensors", {'{"model": get_model_state_dict(model)}':
    "{key: param.full_tensor() for key, param in get_model_state_dict(model).items()}"}, """
    Your checkpoint contains whole parameters. If you gather them before you save, every rank needs memory for the whole
    model. Next: save the sharded state as it is; `dcp.save` knows which part of a parameter each rank has.
    """)

exercise.edit("gradients-not-cleared", {"optimizer.step()\noptimizer.zero_grad()\n": "optimizer.step()\n"}, """
    The gradients of a step are added to those of all steps before it: nothing clears them.
    Next: clear the gradients after each step, as the program did.""")

exercise.edit("steps-after-each-batch", {"if number % 2 == 1:": "if True:", "number % 2 == 1)\n": "True)\n"}, """
    Your program makes a step after every batch. Two batches make one step.
    Next: step only after every second batch.
    """)


@exercise.variant
def with_no_sync_off_only_once(
    make_model: Callable[[], nn.Module], dataset: Any, folder: str, epochs: int
) -> list[float]:
    torch.manual_seed(0)
    model = make_model()  # which calls `init_weights` itself
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, 2, sampler=DistributedSampler(dataset))
    losses = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        batches: Iterator[Any] = iter(loader)
        for x, y in batches:
            for is_last, (a, b) in ((False, (x, y)), (True, next(batches))):
                model.set_requires_gradient_sync(is_last)
                loss = F.mse_loss(model(a), b) / 2
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        dcp.save({"model": get_model_state_dict(model)}, storage_writer=dcp.FileSystemWriter(f"{folder}/epoch-{epoch}"))
    return losses


exercise.variant_edit("reduces-every-batch", {"number % 2 == 1)\n": "True)\n"})
exercise.variant_edit("whole-losses", {"/ 2\nloss.backward()": "\n(loss / 2).backward()"})

SAVED = '{"model": get_model_state_dict(model)}'
exercise.variant_edit("names-of-its-own", {SAVED: "model.state_dict()"})
exercise.variant_edit("with-the-optimizer", {SAVED:
    '{"net": model, "optimizer": optimizer.state_dict(), "epoch": epoch}'})

exercise.variant_edit("filled-after-sharding", {'model.to_empty(device="cpu")\nmodel.init_weights()\n': "",
    "model = fully_shard(model)\n": 'model = fully_shard(model)\nmodel.to_empty(device="cpu")\nmodel.init_weights()\n'})
