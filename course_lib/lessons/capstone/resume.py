"""Go on with a training where it was saved."""

import random
from typing import Any

import torch
import torch.distributed as dist  # noqa: F401 (an edit uses it)
from torch import Tensor

from ...exercises import Case, Exercise, Solution
from .data import Batches, Scored, draw_batches, draw_world, make_engine
from .train import train


def saved_by_one_process(seed: int, batches: Batches, step: int) -> dict[str, Any]:
    """Return what a training in one process saves after `step` batches."""
    model = Scored(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for batch in batches[:step]:
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def trial(solution: Solution, stage: int, saved: dict[str, Any], batches: Batches) -> object:
    """Return the losses of an engine that starts with different weights and a different learning rate."""
    return solution(make_engine(0, stage, torch.optim.Adam, lr=0.2), saved, batches)


def draw(rng: random.Random, number: int) -> Case:
    world_size, stage = draw_world(rng, number)
    seed, step = rng.getrandbits(32), 2 + number % 2

    def args(rank: int) -> tuple[int, dict[str, Any], Batches]:
        batches = draw_batches(seed, 5)
        return stage, saved_by_one_process(seed, batches, step), batches

    return Case(world_size=world_size, args=args, what=f"stage {stage}, {step} of 5 batches done")


exercise = Exercise("capstone.resume", title="Go on as if nothing had happened", draw=draw, trial=trial, tolerance=1e-4,
    case_count=4, task="""
    A training saved `saved`: the whole state dicts of the model and of the optimizer, and the number of batches done.
    It ran on a different number of ranks, maybe at a different stage. `engine` is new, with different weights and a
    different learning rate. Bring it to where the training was, train on the batches that are left, and return their
    losses. They must equal the losses of a training without an interruption. Use your `train`.""", hints="""
    What does a training know besides the weights?

    Three things matter: the weights, the optimizer's state (moments, step count, learning rate), and which batch is
    next.

    `engine.load_state_dict`, `engine.load_optimizer_state_dict`, and a slice of `batches`.

    ```python
    engine.load_state_dict(...)
    engine.load_optimizer_state_dict(...)
    return train(engine, batches[...:])
    ```
    """, explanation="""
    If you leave out any part, the training still runs, and it is a different training: the loss jumps, or becomes a
    little worse, and nothing fails. So compare with an unbroken run once, before you need to resume. (Real trainings
    save the random states as well, for dropout and for the order of the data.)""")


@exercise
def resume(engine: Any, saved: dict[str, Any], batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Bring `engine` to where `saved` was, train on the batches that are left; return their losses.

    saved["model"] and saved["optimizer"] are whole state dicts, saved["step"] counts the batches
    done. `batches` are all those of the training. `saved` stays as it is.
    """
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[saved["step"] :])


MODEL = 'engine.load_state_dict(saved["model"])\n'
OPTIMIZER = 'engine.load_optimizer_state_dict(saved["optimizer"])\n'

exercise.edit("optimizer-forgotten", {OPTIMIZER: ""}, """
    You load the weights and not the optimizer, so Adam starts again: without moments, and with the engine's own
    learning rate. Next: load `saved["optimizer"]` as well.""")

exercise.edit("model-forgotten", {MODEL: ""}, """
    You load the optimizer and not the model, so the weights are still those of a new engine.
    Next: load `saved["model"]` as well.""")

exercise.edit("both-forgotten", {MODEL + OPTIMIZER: ""}, """
    A new model trains on the batches that are left: neither state dict is loaded before the training.
    Next: load both state dicts first.""")

exercise.edit("data-from-the-start", {'[saved["step"] :]': ""}, """
    You train on all batches. The model has learned from the first ones already.
    Next: begin with `batches[saved["step"]]`.""")

exercise.edit("one-batch-twice", {'"step"] :': '"step"] - 1 :'}, """
    You begin one batch too early, and train again on the last batch that was done.
    Next: begin with batch number `saved["step"]`: it counts the batches done, so it is the number of the next.""")

exercise.edit("own-options", {OPTIMIZER: 'groups = engine.optimizer_state_dict()["param_groups"]\n'
    'engine.load_optimizer_state_dict({**saved["optimizer"], "param_groups": groups})\n'}, """
    The engine keeps the learning rate that it was made with. After a learning rate schedule, this is the wrong rate.
    Next: load `saved["optimizer"]` with its `param_groups`.""")

exercise.edit("on-rank-0-alone", {MODEL + OPTIMIZER: f"if dist.get_rank() == 0:\n    {MODEL}    {OPTIMIZER}"}, """
    Only rank 0 loads. Loading sends nothing, so the other ranks keep their new weights and optimizer.
    Next: load on every rank.""")


@exercise.variant
def unpacked(engine: Any, saved: dict[str, Any], batches: Batches) -> list[float]:
    model, optimizer, done = (saved[key] for key in ("model", "optimizer", "step"))
    engine.load_state_dict(model)
    engine.load_optimizer_state_dict(optimizer)
    return list(train(engine, list(batches)[done:]))


exercise.variant_edit("optimizer-first", {MODEL: OPTIMIZER, OPTIMIZER: MODEL})
