"""The quiz of lesson 06."""

from __future__ import annotations

import random
from fractions import Fraction

from ...planner import plan
from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register


def states_bytes(params: int, world_size: int, stage: int) -> int:
    """What a rank holds of model states, in mixed precision with Adam."""
    return sum(plan(params=params, world_size=world_size, stage=stage, precision="mixed").bytes.values())


def volume_bytes(params: int, world_size: int, stage: int) -> int:
    """What a rank sends in a step, in mixed precision."""
    return plan(params=params, world_size=world_size, stage=stage, precision="mixed").sent_bytes


def shard_numel(numel: int, world_size: int) -> int:
    """Elements of each shard, padding included."""
    return -(-numel // world_size)


def most_parameters_bytes(layers: int, layer_params: int, world_size: int, depth: int) -> Fraction:
    """In forward, of parameters of 2 bytes: all shards, the layer in use, and those ahead of it."""
    return 2 * layer_params * (Fraction(layers, world_size) + 1 + depth)


def model_states(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 30, 70]), rng.choice([8, 16, 32])
    params = billions * 10**9
    return Numeric(
        prompt=f"A model of {billions} billion parameters is trained by stage 3 on {world_size} ranks, in mixed "
        "precision with Adam. How much does a rank hold of parameters, gradients and optimizer state between two "
        "steps?",
        expected=states_bytes(params, world_size, 3),
        unit="GB",
        right="All 16 bytes for each parameter are shared: 16Ψ/N.",
        wrong="There are 2 + 2 + 12 bytes for each parameter. Which of them are shared among the ranks?",
        mistakes=(
            Mistake.near(states_bytes(params, world_size, 2), "That is stage 2: its parameters are whole."),
            Mistake.near(states_bytes(params, world_size, 1), "That is stage 1, which shares optimizer state alone."),
            Mistake.near(16 * params, "That is all of it, and each rank holds a part."),
            Mistake.near(
                2 * params / world_size, "That is the parameters alone; gradients and optimizer state come on top."
            ),
            Mistake.near(
                8 * params + 8 * params / world_size,
                "You share the two moments alone. Masters, gradients and parameters are shared as well.",
            ),
        ),
    )


def volume(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 7, 13]), rng.choice([4, 8])
    params = billions * 10**9
    return Numeric(
        prompt=f"The same in communication: {billions} billion parameters on {world_size} ranks, stage 3, parameters "
        "and gradients of 2 bytes each, one micro-batch. How much does a rank send in a step?",
        expected=volume_bytes(params, world_size, 3),
        unit="GB",
        right="Two all-gathers and a reduce-scatter, each (N − 1)/N of the model.",
        wrong="Parameters are gathered for forward and for backward, and gradients are reduced: three times "
        "(N − 1)/N of the model's bytes.",
        mistakes=(
            Mistake.near(volume_bytes(params, world_size, 2), "That is stage 2: it gathers the parameters once."),
            Mistake.near(6 * params, "Nearly: of each whole, a rank sends (N − 1)/N, and not all."),
            Mistake.near(volume_bytes(params, world_size, 3) / 2, "That is the number of elements; each has 2 bytes."),
            Mistake.near(volume_bytes(params, world_size, 3) * 2, "Each element has 2 bytes here, not 4."),
            Mistake.near(6 * params / world_size, "A rank sends (N − 1)/N of the whole, and keeps 1/N of it."),
        ),
    )


def shard_of_a_unit(rng: random.Random) -> Numeric:
    # With these, the number that divides is never that of the next shard down or up.
    world_size, numel = rng.choice([(4, 1001), (4, 250), (8, 1004), (8, 4099), (16, 1000), (16, 4103)])
    return Numeric(
        prompt=f"A unit has {numel} elements. How many has each shard of it on {world_size} ranks, padding included?",
        expected=shard_numel(numel, world_size),
        tolerance=0,
        right="Rounded up: the shards are equal, and the last may end in padding.",
        wrong="The shards are equal, and hold every element. So round in the direction that loses nothing.",
        mistakes=(
            Mistake.near(numel // world_size, "Rounded down, the shards lose what is left over.", tolerance=0),
            Mistake.near(
                shard_numel(numel, world_size) * world_size, "That is the length of all shards together.", tolerance=0
            ),
        ),
    )


def most_parameters(rng: random.Random) -> Numeric:
    layers, millions, world_size, depth = rng.choice([32, 48]), rng.choice([100, 200, 400]), 16, rng.choice([1, 2])
    layer_params = millions * 10**6
    expected = most_parameters_bytes(layers, layer_params, world_size, depth)
    return Numeric(
        prompt=f"{layers} layers of {millions} million parameters each, of 2 bytes, are sharded over {world_size} "
        f"ranks. Each layer is a unit, and {depth} {'is' if depth == 1 else 'are'} gathered ahead. How many bytes of "
        "parameters does a rank hold at most during forward? (Count the shards of 2 bytes; leave out the fp32 "
        "masters.)",
        expected=expected,
        unit="GB",
        right="All shards, the layer in use, and those ahead.",
        wrong="Add up: 1/N of all layers, the layer in use, and those ahead of it.",
        mistakes=(
            Mistake.near(
                float(most_parameters_bytes(layers, layer_params, world_size, depth - 1)),
                "One layer is missing: the one in use counts beside those ahead.",
            ),
            Mistake.near(2 * layer_params * layers, "That is the whole model, which no rank holds at any moment."),
            Mistake.near(2 * layer_params * (1 + depth), "The shards of all layers come on top."),
            Mistake.near(
                2 * layer_params * layers / world_size, "Those are the shards; some layers are whole meanwhile."
            ),
        ),
    )


def fsdp_bytes(rng: random.Random) -> Numeric:
    gigabytes, world_size = rng.choice([2, 4, 6]), rng.choice([4, 8])
    return Numeric(
        prompt=f"On one of {world_size} ranks of FSDP2, `sum(p.to_local().nbytes for p in model.parameters())` gives "
        f"{gigabytes}e9, between two steps. How much memory do the parameters take on this rank?",
        expected=gigabytes * 10**9,
        unit="GB",
        right="That sum is over this rank's shards: it is what the rank holds.",
        wrong="What does `to_local()` give, the whole tensor or this rank's shard?",
        mistakes=(
            Mistake.near(
                gigabytes * 10**9 / world_size, "Divided once more: `to_local()` has given this rank's shards already."
            ),
            Mistake.near(
                gigabytes * 10**9 * world_size,
                "That is the whole model, on all ranks together. A rank holds its shards.",
            ),
        ),
    )


QUIZ = register(
    Quiz(
        name="zero3",
        title="ZeRO-3: parameters",
        questions=(
            Question(id="model-states", ask=model_states),
            Question(id="volume", ask=volume),
            Question(id="shard", ask=shard_of_a_unit),
            Question(
                id="who-keeps",
                ask=Choice(
                    prompt="A unit was gathered: `flat` is its tensor, and the module's weights are views of it. "
                    "`flat` and the weights are let go of. Which of these, made before, still keep all of its memory?",
                    several=True,
                    options=(
                        Option(
                            text="`row = weight.data[0]`",
                            right=True,
                            feedback="A view, however small, keeps the whole memory that it looks into.",
                        ),
                        Option(
                            text="`row = weight.data[0].clone()`",
                            feedback="A copy has memory of its own, and keeps none of the other.",
                        ),
                        Option(
                            text="`lambda: weight_view.sum()`, where `weight_view = weight.data`",
                            right=True,
                            feedback="A function keeps the variables that it closes over, and this one is a view.",
                        ),
                        Option(
                            text="`largest = weight.max().item()`",
                            feedback="A number. It remembers nothing of where it came from.",
                        ),
                        Option(
                            text="The output of the linear layer, with autograd recording as usual",
                            right=True,
                            feedback="Its graph has `weight.t()`, saved for backward, and that is a view.",
                        ),
                    ),
                ),
            ),
            Question(
                id="when-to-gather-again",
                ask=Choice(
                    prompt="Why does a unit gather its parameters again when the gradient of its output is there, and "
                    "not when autograd first asks for a saved weight?",
                    options=(
                        Option(
                            text="Some gradients need no weight, and arrive at parameters that would still be empty",
                            right=True,
                            feedback="That of an embedding or of an added bias, say. It would not fit to an empty one.",
                        ),
                        Option(
                            text="Autograd never asks for weights in backward",
                            feedback="It does: the gradient of a linear layer's input is computed with its weight.",
                        ),
                        Option(
                            text="Then all units would be gathered at the same time",
                            feedback="No: each would be gathered as backward comes to it, a little later than now.",
                        ),
                        Option(
                            text="Collectives are not allowed while backward runs",
                            feedback="They are, on every rank in the same order. Your reduce-scatter runs there, too.",
                        ),
                    ),
                ),
            ),
            Question(
                id="not-resharded",
                ask=Choice(
                    prompt="`fully_shard(layer, reshard_after_forward=False)` for every layer. Compared with True, "
                    "what changes?",
                    several=True,
                    options=(
                        Option(
                            text="Less is sent: 2Ψ in the place of 3Ψ",
                            right=True,
                            feedback="The all-gather of backward is not needed.",
                        ),
                        Option(
                            text="The whole model is in memory between forward and backward",
                            right=True,
                            feedback="That is what the saved all-gather costs.",
                        ),
                        Option(
                            text="Parameters are whole between steps",
                            feedback="They are resharded after backward, in either case.",
                        ),
                        Option(text="The gradients are whole", feedback="They are reduced to shards in either case."),
                        Option(text="The losses", feedback="The same numbers are computed with the same parameters."),
                    ),
                ),
            ),
            Question(
                id="granularity",
                ask=Choice(
                    prompt="You make the whole model one unit, where every layer was one. What happens?",
                    options=(
                        Option(
                            text="As many bytes are sent, in fewer calls, and the peak is much higher",
                            right=True,
                            feedback="In forward and in backward the whole model is gathered at once.",
                        ),
                        Option(
                            text="Fewer bytes are sent, and the peak stays",
                            feedback="Every parameter still travels twice, and every gradient once.",
                        ),
                        Option(
                            text="More bytes are held between steps",
                            feedback="Between steps there are shards alone, whatever the units.",
                        ),
                        Option(
                            text="Nothing that could be measured",
                            feedback="The number of calls and the peak change; you measured both.",
                        ),
                    ),
                ),
            ),
            Question(id="most-parameters", ask=most_parameters),
            Question(id="divided-again", ask=fsdp_bytes),
        ),
    )
)
