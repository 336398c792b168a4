"""Training that is the same at every stage, and tells the loss of the whole batch."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import Batches, draw_batches, draw_world, make_engine, part_of


def train(engine: Any, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Train on one batch after the other; return the loss of each whole batch, on every rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, y in batches:
        engine.zero_grad()
        loss = engine(x.chunk(world_size)[rank], y.chunk(world_size)[rank])
        loss.backward()
        engine.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def averaged(loss: Tensor) -> float:
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def local_loss(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        loss = engine(*part_of(batch))
        loss.backward()
        engine.step()
        losses.append(loss.item())
    return losses


def summed_loss(engine: Any, batches: Batches) -> list[float]:
    return [loss * dist.get_world_size() for loss in train(engine, batches)]


def loss_of_rank_0(engine: Any, batches: Batches) -> list[float]:
    told = torch.tensor(local_loss(engine, batches))
    dist.broadcast(told, src=0)
    return [float(loss) for loss in told]


def gradients_not_cleared(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        loss = engine(*part_of(batch))
        loss.backward()
        engine.step()
        losses.append(averaged(loss))
    return losses


def never_stepped(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        loss = engine(*part_of(batch))
        loss.backward()
        losses.append(averaged(loss))
    return losses


def cleared_before_step(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        loss = engine(*part_of(batch))
        loss.backward()
        engine.zero_grad()
        engine.step()
        losses.append(averaged(loss))
    return losses


def never_backward(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        loss = engine(*part_of(batch))
        engine.step()
        losses.append(averaged(loss))
    return losses


def loss_after_the_step(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        engine(*part_of(batch)).backward()
        engine.step()
        losses.append(averaged(engine(*part_of(batch))))
    return losses


def whole_batch_on_each(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        loss = engine(*batch)
        loss.backward()
        engine.step()
        losses.append(averaged(loss))
    return losses


def first_part_on_each(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for x, y in batches:
        engine.zero_grad()
        loss = engine(x.chunk(dist.get_world_size())[0], y.chunk(dist.get_world_size())[0])
        loss.backward()
        engine.step()
        losses.append(averaged(loss))
    return losses


def batches_dealt_out(engine: Any, batches: Batches) -> list[float]:
    rank, world_size, losses = dist.get_rank(), dist.get_world_size(), []
    for first in range(0, len(batches), world_size):
        engine.zero_grad()
        loss = engine(*batches[min(first + rank, len(batches) - 1)])
        loss.backward()
        engine.step()
        losses.append(averaged(loss))
    return losses


def divided_before_backward(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        loss = engine(*part_of(batch)) / dist.get_world_size()
        loss.square().backward()
        engine.step()
        losses.append(averaged(loss) * dist.get_world_size())
    return losses


def averaged_before_backward(engine: Any, batches: Batches) -> list[float]:
    losses = []
    for batch in batches:
        engine.zero_grad()
        loss = engine(*part_of(batch))
        (loss / dist.get_world_size()).backward()
        engine.step()
        losses.append(averaged(loss))
    return losses


def last_loss_alone(engine: Any, batches: Batches) -> list[float]:
    return train(engine, batches)[-1:]


def mean_of_losses(engine: Any, batches: Batches) -> Any:
    losses = train(engine, batches)
    return sum(losses) / len(losses)


def in_strides(engine: Any, batches: Batches) -> list[float]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, y in batches:
        loss = engine(x[rank::world_size], y[rank::world_size])
        loss.backward()
        engine.step()
        engine.zero_grad()
        losses.append(loss.detach())
    told = torch.stack(losses)
    dist.all_reduce(told)
    return [loss / world_size for loss in told.tolist()]


def gathered(engine: Any, batches: Batches) -> list[float]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses: list[float] = []
    for x, y in batches:
        engine.zero_grad()
        rows = slice(rank * len(x) // world_size, (rank + 1) * len(x) // world_size)
        loss = engine(x[rows], y[rows])
        loss.backward()
        everybodys = [torch.empty_like(loss) for _ in range(world_size)]
        dist.all_gather(everybodys, loss.detach())
        losses.append(torch.stack(everybodys).mean().item())
        engine.step()
    return losses


def trial(solution: Solution, seed: int, stage: int, batches: Batches) -> object:
    """The losses, and how many rows each call of the model got."""
    engine = make_engine(seed, stage, torch.optim.SGD, lr=0.05)  # Adam would hide a factor on the gradients
    losses = solution(engine, batches)
    return {"losses": losses, "rows in each call": list(engine.module.rows)}


def draw(rng: random.Random, number: int) -> Case:
    world_size, stage, about = draw_world(rng, number)
    seed = rng.getrandbits(32)
    return Case(
        world_size=world_size, args=lambda rank: (seed, stage, draw_batches(seed, 3)), about=f"{about}, 3 batches"
    )


TRAIN = Exercise(
    name="capstone.train",
    title="One loop for all stages",
    task="Train `engine` on each batch in turn, and return a list with the loss of each *whole* batch, before the step "
    "that it leads to: the same numbers on every rank. A batch is `(x, y)`, the same on all ranks; each trains on an "
    "equal part of its rows. `engine(x, y)` gives the mean loss of the rows that it is given. The engine averages "
    "gradients by itself; the loss that you return is yours to average.",
    stub=stubs.train,
    reference=train,
    draw=draw,
    trial=trial,
    tolerance=1e-4,
    case_count=4,
    variants={"strides": in_strides, "gathered": gathered},
    mistakes=[
        Mistake(
            id="local-loss",
            solution=local_loss,
            told="Each rank returns the loss of its own rows. That is another number on each, and on none that of the "
            "batch.",
            action="Average the losses over the ranks: one all-reduce, of a copy.",
        ),
        Mistake(
            id="summed-loss",
            solution=summed_loss,
            told="You add up the ranks' losses. Each is a mean already, so theirs is a mean, too.",
            action="Divide by the number of ranks.",
        ),
        Mistake(
            id="loss-of-rank-0",
            solution=loss_of_rank_0,
            told="Every rank returns rank 0's loss: the mean over its rows alone.",
            action="Average over all ranks.",
        ),
        Mistake(
            id="gradients-not-cleared",
            solution=gradients_not_cleared,
            told="Gradients of earlier batches are still there when the next ones come, and are added to.",
            action="Call `engine.zero_grad()` for each batch.",
        ),
        Mistake(
            id="never-stepped",
            solution=never_stepped,
            told="The model never changes: gradients are computed, and not used.",
            action="Call `engine.step()` after backward.",
        ),
        Mistake(
            id="cleared-before-step",
            solution=cleared_before_step,
            told="You clear the gradients between backward and step, so that there is nothing to step with.",
            action="Clear them before backward, or after the step.",
        ),
        Mistake(
            id="never-backward",
            solution=never_backward,
            told="There is no backward, and a step without gradients changes nothing.",
            action="Call `loss.backward()` before `engine.step()`.",
        ),
        Mistake(
            id="loss-after-the-step",
            solution=loss_after_the_step,
            told="You compute the loss once more after the step, when the batch has been learned from.",
            action="Keep the loss that backward was called on.",
        ),
        Mistake(
            id="whole-batch-on-each",
            solution=whole_batch_on_each,
            told="Every rank trains on the whole batch. The losses are right; the work is done once for each rank.",
            action="Take this rank's part of x and of y.",
        ),
        Mistake(
            id="first-part-on-each",
            solution=first_part_on_each,
            told="All ranks train on the same part of the batch.",
            action="Choose the part by this rank's number.",
        ),
        Mistake(
            id="batches-dealt-out",
            solution=batches_dealt_out,
            told="Each rank trains on another batch, so that a step sees several, and there are fewer steps.",
            action="Go through all batches on every rank, and take a part of each.",
        ),
        Mistake(
            id="squared-loss",
            solution=divided_before_backward,
            told="Backward begins from something else than the loss.",
            action="Call `backward()` on what the engine returned.",
        ),
        Mistake(
            id="averaged-twice",
            solution=averaged_before_backward,
            told="You divide the loss before backward, and the engine averages the gradients as well: they are too "
            "small by the number of ranks. Adam would hide it.",
            action="Call `backward()` on what the engine returned.",
        ),
        Mistake(
            id="last-loss-alone",
            solution=last_loss_alone,
            told="You return the last loss only.",
            action="Return a list with one loss for each batch.",
        ),
        Mistake(
            id="mean-of-losses",
            solution=mean_of_losses,
            told="You return one number, the mean over all batches.",
            action="Return a list with one loss for each batch.",
        ),
    ],
    hints=[
        "In which order does one step clear, compute and update? And whose loss does `engine(x, y)` give you?",
        "Forward, backward and step are those of one process; only the rows are a part of the batch. The mean of equal "
        "parts' means is the mean of the whole.",
        "`x.chunk(world_size)[rank]`, and `dist.all_reduce` on a detached copy of the loss.",
        "```python\nfor x, y in batches:\n    engine.zero_grad()\n    loss = engine(..., ...)\n    ...\n"
        "    mean = loss.detach() / world_size\n    dist.all_reduce(mean)\n    losses.append(mean.item())\n```",
    ],
    explanation="Nothing in it knows the stage, and that is the point of an engine: whether gradients are reduced in "
    "backward or in step, the losses are those of one process, up to rounding. `detach()` matters: an all-reduce of "
    "the loss itself would change in place what autograd knows.",
)
