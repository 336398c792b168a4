"""The batches that are left of an epoch, when a run goes on in the middle of it."""

import random
from collections.abc import Sized

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from ...exercises import Case, Exercise, draw_world_size


def draw(rng: random.Random, number: int) -> Case:
    """Draw a step in the middle of an epoch, twice one between epochs and twice one before the last batch.

    Some examples are left over: on all ranks together in every case, on each rank only in some. The example at index n
    is the number 100 + n.
    """
    world_size, batch_size, per_epoch = draw_world_size(rng, number), rng.randint(2, 3), rng.randint(3, 4)
    left = (1, 0)[number % 2]
    count = world_size * (batch_size * per_epoch + left) + (world_size - 1)
    first = (rng.randint(1, per_epoch - 1), per_epoch - 1, 1, 0, 0, per_epoch - 1)[number % 6]
    step = per_epoch * (0, 1, 2, 1)[number % 4] + first
    what = f"{count} examples, batches of {batch_size}, stopped before step {step}"
    return Case(world_size=world_size, args=lambda rank: (range(100, 100 + count), batch_size, step), what=what)


exercise = Exercise("cluster.remaining_batches", title="Go on in the middle of an epoch", draw=draw, task="""
    A run was stopped after `step` steps, counted from the start of training, and goes on from its checkpoint. Return
    the batches that this rank still has to take in the current epoch: a list of indices for each step. If an epoch is
    just complete, these are all batches of the next one. `DistributedSampler(dataset, drop_last=True)` shares the
    examples out, in an order of its own for each epoch, which `set_epoch` sets. Leave out a batch that is not full.
    """, hints="""
    How many steps does an epoch have, and what do the quotient and the remainder of `step` by this number mean?

    The sampler's order depends only on its seed and on the epoch's number, so after a restart it can be made again. The
    batches before the stop are then skipped.

    `len(sampler)` is the number of this rank's examples, `list(sampler)` are their indices, `divmod(step, per_epoch)`.

    ```python
    sampler = DistributedSampler(dataset, drop_last=True)
    per_epoch = ...
    epoch, first = divmod(...)
    ...
    indices = list(sampler)
    return [indices[... : ...] for number in range(first, per_epoch)]
    ```
    """, explanation="""
    The data of a step is a function of the seed and the step's number, so a checkpoint needs only the number. A sampler
    that is simply made again begins again instead: the run sees the first batches of the epoch twice. If it makes only
    the steps that were left, it never sees the last ones. The loss does not show it. If the number of ranks changes, a
    step takes a different number of examples: then store the number of examples that were seen, and skip those.
    Datasets that are streamed cannot be skipped so cheaply. Their loaders have a state of their own, which the
    checkpoint has to contain, such as torchdata's `StatefulDataLoader`.""")


@exercise
def remaining_batches(dataset: Sized, batch_size: int, step: int) -> list[list[int]]:
    """Return this rank's batches that are left in the epoch of step `step`: the indices of their examples.

    Steps are counted from 0, over all epochs. A step takes one full batch on each rank. Each epoch, a
    `DistributedSampler` with `drop_last=True` shares out the examples.
    """
    sampler = DistributedSampler(dataset, drop_last=True)
    per_epoch = len(sampler) // batch_size
    epoch, first = divmod(step, per_epoch)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    return [indices[number * batch_size : (number + 1) * batch_size] for number in range(first, per_epoch)]


BATCHES = "[indices[number * batch_size : (number + 1) * batch_size] for number in range(first, per_epoch)]"

exercise.edit("begins-again", {"range(first, per_epoch)": "range(per_epoch)"}, """
    You return all batches of the epoch. The batches before the stop would be trained on twice.
    Next: skip as many batches as the epoch had steps before the stop.""")

exercise.edit("skips-all-steps", {"range(first, per_epoch)": "range(step, per_epoch)"}, """
    You skip as many batches as there were steps since the start of training, and earlier epochs took most of them.
    Next: skip the remainder of `step` by the number of steps in an epoch.""")

exercise.edit("forgets-the-epoch", {"sampler.set_epoch(epoch)\n": ""}, """
    Your sampler has the order of epoch 0, whatever `step` is. Next: find out in which epoch `step` is, and call
    `sampler.set_epoch` with it.""")

exercise.edit("the-complete-epoch", {"set_epoch(epoch)": "set_epoch(max(step - 1, 0) // per_epoch)"}, """
    Where an epoch is just complete, you return all batches, but in the order of the epoch that is complete.
    Next: give `set_epoch` the quotient of `step` by the number of steps in an epoch.""")

exercise.edit("step-for-epoch", {"set_epoch(epoch)": "set_epoch(step)"}, """
    You call `set_epoch` with the number of the step. So the order changes with each restart, and some examples of the
    epoch come twice. Next: divide by the number of steps in an epoch.""")

exercise.edit("repeats-some", {", drop_last=True": ""}, """
    Without `drop_last=True`, the sampler repeats examples until all ranks have equally many.
    Next: tell the sampler to drop what is left over, as the run did before it stopped.""")

exercise.edit("the-batches-before", {"range(first, per_epoch)": "range(first)"}, """
    You return the batches before the stop. Next: begin where these end.""")

exercise.edit("skips-examples", {BATCHES: "[indices[at : at + batch_size] for at in range(first, len(indices) - "
    "batch_size + 1, batch_size)]"}, """
    You skip as many examples as there were steps. A step takes a batch. Next: multiply by the batch size.""")

SMALLER = """
    Your last batch is smaller than the others. Next: leave out a batch that is not full."""

exercise.edit("with-a-smaller-batch", {"range(first, per_epoch)": "range(first, per_epoch + 1)"}, SMALLER)

exercise.edit("keeps-what-is-left", {BATCHES:
    "[indices[at : at + batch_size] for at in range(first * batch_size, len(indices), batch_size)]"}, SMALLER)

exercise.edit("drops-a-full-batch", {BATCHES: "[indices[at : at + batch_size] for at in range(first * batch_size, "
    "len(indices) - batch_size, batch_size)]"}, """
    You leave out the last batch where it is full. The last full batch begins `batch_size` examples before the end, and
    `range` stops before its second argument. Next: leave out only a batch that is not full.""")

exercise.edit("counts-all-ranks", {"len(sampler) // batch_size": "len(dataset) // batch_size", BATCHES:
    "[indices[at : at + batch_size] for at in range(first * batch_size, len(indices) - batch_size + 1, batch_size)]"},
    """
    You count the steps of an epoch by the examples of all ranks. A step takes a batch on each rank, so an epoch has
    fewer. Next: count with the examples of this rank.""")

exercise.edit("unshuffled", {"drop_last=True": "drop_last=True, shuffle=False"}, """
    Your sampler does not shuffle. The run that was stopped did: `DistributedSampler` shuffles unless it is told not to.
    Next: make the sampler as the run made it.""")

exercise.edit("everyone-takes-all", {"list(sampler)": "list(range(len(sampler)))"}, """
    Every rank takes the same examples, the first ones, in their order. Next: iterate over the sampler: it shuffles, and
    gives each rank its own share.""")

exercise.edit("the-examples-themselves", {"list(sampler)": "[dataset[index] for index in sampler]"}, """
    You return the examples, and the task asks for their indices: loading an example is the program's work.
    Next: leave `dataset` out of what you return; only its length counts.""")


@exercise.variant
def by_examples(dataset: Sized, batch_size: int, step: int) -> list[list[int]]:
    per_epoch = len(dataset) // dist.get_world_size() // batch_size
    sampler = DistributedSampler(dataset, drop_last=True)
    sampler.set_epoch(step // per_epoch)
    mine = list(sampler)[: per_epoch * batch_size]
    return [mine[at : at + batch_size] for at in range(step % per_epoch * batch_size, len(mine), batch_size)]


exercise.variant_edit("all-then-skip", {BATCHES: BATCHES.replace("range(first, per_epoch)", "range(per_epoch)") +
    "[first:]"})
