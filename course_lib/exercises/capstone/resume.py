"""Training that goes on where it was saved."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..form.declare import Case, Exercise, Mistake, Solution
from . import stubs
from .data import Batches, Scored, draw_batches, draw_world, make_engine
from .train import train

State = dict[str, Any]


def resume(engine: Any, saved: dict[str, Any], batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Bring `engine` to where `saved` was, train on the batches that are left; return their losses."""
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[saved["step"] :])


def optimizer_forgotten(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    return train(engine, batches[saved["step"] :])


def model_forgotten(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[saved["step"] :])


def both_forgotten(engine: Any, saved: State, batches: Batches) -> list[float]:
    return train(engine, batches[saved["step"] :])


def data_from_the_start(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches)


def data_from_the_start_as_many(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[: len(batches) - saved["step"]])


def one_batch_twice(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[saved["step"] - 1 :])


def one_batch_skipped(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[saved["step"] + 1 :])


def weights_alone_from_the_start(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    return train(engine, batches)


def all_anew(engine: Any, saved: State, batches: Batches) -> list[float]:
    return train(engine, batches)


def trained_anew(engine: Any, saved: State, batches: Batches) -> list[float]:
    return train(engine, batches)[saved["step"] :]


def with_state(optimizer: State, **replaced: Any) -> State:
    """A copy of an optimizer's state dict, with something replaced for every parameter."""
    state = {number: {**values, **replaced} for number, values in optimizer["state"].items()}
    return {**optimizer, "state": state}


def count_forgotten(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(with_state(saved["optimizer"], step=torch.tensor(0.0)))
    return train(engine, batches[saved["step"] :])


def moments_forgotten(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    state = {
        number: {key: value if key == "step" else torch.zeros_like(value) for key, value in values.items()}
        for number, values in saved["optimizer"]["state"].items()
    }
    engine.load_optimizer_state_dict({**saved["optimizer"], "state": state})
    return train(engine, batches[saved["step"] :])


def own_options(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    groups = engine.optimizer_state_dict()["param_groups"]
    engine.load_optimizer_state_dict({**saved["optimizer"], "param_groups": groups})
    return train(engine, batches[saved["step"] :])


def options_alone(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict({**saved["optimizer"], "state": {}})
    return train(engine, batches[saved["step"] :])


def on_rank_0_alone(engine: Any, saved: State, batches: Batches) -> list[float]:
    if dist.get_rank() == 0:
        engine.load_state_dict(saved["model"])
        engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, batches[saved["step"] :])


def loaded_too_late(engine: Any, saved: State, batches: Batches) -> list[float]:
    losses = train(engine, batches[saved["step"] :])
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return losses


def one_step_alone(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    return train(engine, [batches[saved["step"]]])


def count_changed(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_state_dict(saved["model"])
    engine.load_optimizer_state_dict(saved["optimizer"])
    losses = train(engine, batches[saved["step"] :])
    saved["step"] = len(batches)
    return losses


def optimizer_first(engine: Any, saved: State, batches: Batches) -> list[float]:
    engine.load_optimizer_state_dict(copy.deepcopy(saved["optimizer"]))
    engine.load_state_dict(copy.deepcopy(saved["model"]))
    losses: list[float] = []
    for number, batch in enumerate(batches):
        if number >= saved["step"]:
            losses += train(engine, [batch])
    return losses


def with_extend(engine: Any, saved: State, batches: Batches) -> list[float]:
    model, optimizer, done = (saved[key] for key in ("model", "optimizer", "step"))
    engine.load_state_dict(model)
    engine.load_optimizer_state_dict(optimizer)
    return list(train(engine, list(batches)[done:]))


def saved_by_one_process(seed: int, batches: Batches, step: int) -> State:
    """What a training of `step` batches in one process has saved."""
    model = Scored(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for batch in batches[:step]:
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def trial(solution: Solution, stage: int, saved: State, batches: Batches) -> object:
    """The losses of an engine that began otherwise: with other weights, and another learning rate."""
    return solution(make_engine(0, stage, torch.optim.Adam, lr=0.2), saved, batches)


def draw(rng: random.Random, number: int) -> Case:
    world_size, stage, about = draw_world(rng, number)
    seed, step = rng.getrandbits(32), 2 + number % 2

    def args(rank: int) -> tuple[int, State, Batches]:
        batches = draw_batches(seed, 5)
        return stage, saved_by_one_process(seed, batches, step), batches

    return Case(world_size=world_size, args=args, about=f"{about}, {step} of 5 batches done")


RESUME = Exercise(
    name="capstone.resume",
    title="Go on as if nothing had happened",
    task="`saved` is what a training has left: whole state dicts of the model and of the optimizer, and how many "
    "batches it had done. It ran on another number of ranks, maybe at another stage. `engine` is fresh: other weights, "
    "another learning rate. Bring it to where the training was, go on with the batches that are left, and return "
    "their losses: those of a training that was never interrupted. Use your `train`.",
    stub=stubs.resume,
    reference=resume,
    draw=draw,
    trial=trial,
    tolerance=1e-4,
    case_count=4,
    variants={"optimizer-first": optimizer_first, "unpacked": with_extend},
    mistakes=[
        Mistake(
            id="optimizer-forgotten",
            solution=optimizer_forgotten,
            told="The weights are back, and Adam begins anew: no moments, and the engine's own learning rate.",
            action="Load `saved['optimizer']` as well.",
        ),
        Mistake(
            id="model-forgotten",
            solution=model_forgotten,
            told="Adam is back, and the weights are still those of a fresh engine.",
            action="Load `saved['model']` as well.",
        ),
        Mistake(
            id="both-forgotten",
            solution=both_forgotten,
            told="Nothing is loaded: a fresh model trains on the batches that are left.",
            action="Load both state dicts first.",
        ),
        Mistake(
            id="data-from-the-start",
            solution=data_from_the_start,
            told="The data begin from the start. What was learned from already is seen twice.",
            action="Begin with `batches[saved['step']]`.",
        ),
        Mistake(
            id="first-batches-again",
            solution=data_from_the_start_as_many,
            told="You train on as many batches as are left, but on the first ones.",
            action="Leave out the first `saved['step']` batches, not the last.",
        ),
        Mistake(
            id="one-batch-twice",
            solution=one_batch_twice,
            told="You begin one batch early: the last that was done is done again.",
            action="`step` counts those that are done, so it is the number of the next.",
        ),
        Mistake(
            id="one-batch-skipped",
            solution=one_batch_skipped,
            told="You begin one batch late, and one is never seen.",
            action="`step` counts those that are done, so it is the number of the next.",
        ),
        Mistake(
            id="weights-alone",
            solution=weights_alone_from_the_start,
            told="Of what was saved, you use the weights only: Adam begins anew, and so do the data.",
            action="Load the optimizer's state, and begin with `batches[saved['step']]`.",
        ),
        Mistake(
            id="all-anew",
            solution=all_anew,
            told="You train a fresh engine on all batches.",
            action="Load both state dicts, and leave out the batches that are done.",
        ),
        Mistake(
            id="trained-anew",
            solution=trained_anew,
            told="You train a fresh engine on all batches, and return the last losses. That is another training, and "
            "what was saved is of no use to it.",
            action="Load both state dicts, and train on what is left.",
        ),
        Mistake(
            id="count-forgotten",
            solution=count_forgotten,
            told="The moments are back, but Adam counts its steps from 0, and takes the moments for young ones: its "
            "first updates are too large.",
            action="Load the optimizer's state dict as it is.",
        ),
        Mistake(
            id="moments-forgotten",
            solution=moments_forgotten,
            told="Adam knows how many steps it has made, but its moments are zeros.",
            action="Load the optimizer's state dict as it is.",
        ),
        Mistake(
            id="own-options",
            solution=own_options,
            told="The engine keeps the learning rate that it was made with. A schedule would begin anew.",
            action="Load `saved['optimizer']` with its `param_groups`.",
        ),
        Mistake(
            id="options-alone",
            solution=options_alone,
            told="The learning rate is back, the moments are not.",
            action="Load `saved['optimizer']` with its `state`.",
        ),
        Mistake(
            id="on-rank-0-alone",
            solution=on_rank_0_alone,
            told="Only rank 0 loads. Loading sends nothing: the other ranks stay where they were.",
            action="Load on every rank.",
        ),
        Mistake(
            id="loaded-too-late",
            solution=loaded_too_late,
            told="You train first and load then.",
            action="Load both state dicts before you train.",
        ),
        Mistake(
            id="one-step-alone",
            solution=one_step_alone,
            told="You train on the next batch only.",
            action="Go on to the end of `batches`.",
        ),
        Mistake(
            id="saved-changed",
            solution=count_changed,
            told="The losses are right, but you have changed `saved`: whoever goes on from it once more cannot.",
            action="Leave `saved` as it is.",
        ),
    ],
    hints=[
        "What does a training know that the weights do not tell?",
        "Three things: the weights, the optimizer's state (moments, step count, learning rate), and which batch is "
        "next.",
        "`engine.load_state_dict`, `engine.load_optimizer_state_dict`, and a slice of `batches`.",
        "```python\nengine.load_state_dict(...)\nengine.load_optimizer_state_dict(...)\n"
        "return train(engine, batches[...:])\n```",
    ],
    explanation="Each part that is left out gives a training that runs, and is another one: the loss jumps, or goes on "
    "a little worse, and nothing fails. So compare with an unbroken run, once, before you need it. (Real ones save the "
    "random states as well: for dropout, and for the order of the data.)",
)
