"""The quiz of lesson 06."""

import random
from fractions import Fraction

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz


def states_bytes(params: int, world_size: int, stage: int) -> int:
    """Return the bytes of model states on each rank, in mixed precision with Adam."""
    return sum(plan(params=params, world_size=world_size, stage=stage, precision="mixed").bytes.values())


def volume_bytes(params: int, world_size: int, stage: int) -> int:
    """Return the bytes that each rank sends in a step, in mixed precision."""
    return plan(params=params, world_size=world_size, stage=stage, precision="mixed").sent_bytes


def shard_numel(numel: int, world_size: int) -> int:
    """Return the number of elements of each shard, padding included."""
    return -(-numel // world_size)


def most_parameters_bytes(layers: int, layer_params: int, world_size: int, depth: int) -> Fraction:
    """Return the most bytes of 2-byte parameters in forward: all shards, the layer in use, and the layers ahead."""
    return 2 * layer_params * (Fraction(layers, world_size) + 1 + depth)


def model_states(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 30, 70]), rng.choice([8, 16, 32])
    params = billions * 10**9
    return Numeric(
        prompt=f"Stage 3 trains a model of {billions} billion parameters on {world_size} ranks, in mixed precision "
        "with Adam. How many bytes of parameters, gradients and optimizer state does a rank hold after backward?",
        expected=states_bytes(params, world_size, 3),
        unit="GB",
        right="All 16 bytes for each parameter are sharded: 16Ψ/N.",
        wrong="There are 2 + 2 + 12 bytes for each parameter. Which of them are sharded over the ranks?",
        mistakes=(
            (states_bytes(params, world_size, 2), "This is stage 2: its parameters are whole."),
            (states_bytes(params, world_size, 1), "This is stage 1: it shards only optimizer state."),
            (16 * params, "This is the total. Each rank holds only a part of it."),
            (2 * params / world_size, "This is only the parameters. Add gradients and optimizer state."),
            (
                8 * params + 8 * params / world_size,
                "You shard only the two moments. Masters, gradients and parameters are sharded too.",
            ),
        ),
    )


def volume(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 7, 13]), rng.choice([4, 8])
    params = billions * 10**9
    return Numeric(
        prompt=f"Stage 3 trains {billions} billion parameters on {world_size} ranks. Parameters and gradients have 2 "
        "bytes each, and a step has one micro-batch. How much does a rank send in a step?",
        expected=volume_bytes(params, world_size, 3),
        unit="GB",
        right="Two all-gathers and one reduce-scatter send (N − 1)/N of the model each.",
        wrong="Parameters are gathered for forward and again for backward, and gradients are reduced. Each of the "
        "three sends (N − 1)/N of the model's bytes.",
        mistakes=(
            (volume_bytes(params, world_size, 2), "This is stage 2: it gathers the parameters once."),
            (6 * params, "Nearly: each of the three collectives sends (N − 1)/N of the model."),
            (volume_bytes(params, world_size, 3) / 2, "This is the number of elements. Each has 2 bytes."),
            (volume_bytes(params, world_size, 3) * 2, "Each element has 2 bytes here, not 4."),
            (6 * params / world_size, "You count 1/N of the model. A rank keeps 1/N and sends (N − 1)/N."),
        ),
    )


def shard_of_a_unit(rng: random.Random) -> Numeric:
    # None of these is a multiple of the world size, so the shard is padded.
    world_size, numel = rng.choice([(4, 1001), (4, 250), (8, 1004), (8, 4099), (16, 1000), (16, 4103)])
    return Numeric(
        prompt=f"A unit has {numel} elements. How many elements does each shard have on {world_size} ranks, "
        "padding included?",
        expected=shard_numel(numel, world_size),
        tolerance=0,
        right="Rounded up: all shards have the same size, and the last may end in padding.",
        wrong="All shards have the same size, and together they contain every element. Round in the "
        "direction that loses nothing.",
        mistakes=(
            (numel // world_size, "If you round down, the remainder is on no rank."),
            (shard_numel(numel, world_size) * world_size, "This is the length of all shards together."),
        ),
    )


def most_parameters(rng: random.Random) -> Numeric:
    layers, millions, world_size, depth = rng.choice([32, 48]), rng.choice([100, 200, 400]), 8, rng.choice([1, 2])
    layer_params = millions * 10**6
    expected = most_parameters_bytes(layers, layer_params, world_size, depth)
    return Numeric(
        prompt=f"{layers} layers of {millions} million parameters each, of 2 bytes, are sharded over {world_size} "
        f"ranks. Each layer is a unit, and {depth} {'is' if depth == 1 else 'are'} gathered ahead. How many bytes of "
        "parameters does a rank hold at most during forward? Count the 2-byte shards, and leave out the fp32 "
        "masters.",
        expected=expected,
        unit="GB",
        right="All shards, the layer in use, and the layers ahead.",
        wrong="Add 1/N of all layers, the layer in use, and the layers ahead of it.",
        mistakes=(
            (
                most_parameters_bytes(layers, layer_params, world_size, depth - 1),
                "One layer is missing: count the layer in use and the layers ahead.",
            ),
            (2 * layer_params * layers, "This is the whole model. No rank ever holds it."),
            (
                expected - 2 * layer_params * Fraction(1 + depth, world_size),
                "This rank's shards of the whole layers are in memory twice: by themselves, and in the layers.",
            ),
            (2 * layer_params * (1 + depth), "Add the shards of all layers."),
            (2 * layer_params * layers / world_size, "These are the shards. During forward, some layers are whole."),
        ),
    )


def fsdp_bytes(rng: random.Random) -> Numeric:
    gigabytes, world_size = rng.choice([2, 4, 6]), rng.choice([4, 8])
    return Numeric(
        prompt=f"On one of {world_size} ranks of FSDP2, `sum(p.to_local().nbytes for p in model.parameters())` returns "
        f"{gigabytes}e9 between two steps. How much memory do the parameters take on this rank?",
        expected=gigabytes * 10**9,
        unit="GB",
        right="The sum counts this rank's shards, and the rank holds nothing else of the parameters.",
        wrong="Does `to_local()` return the whole tensor, or this rank's shard?",
        mistakes=(
            (gigabytes * 10**9 / world_size, "You divide twice: `to_local()` returns only this rank's shards."),
            (
                gigabytes * 10**9 * world_size,
                "This is the whole model, on all ranks together. A rank holds only its shards.",
            ),
        ),
    )


QUIZ = Quiz(name="zero3", title="ZeRO-3: parameters", questions=(
    Question(id="model-states", ask=model_states),
    Question(id="volume", ask=volume),
    Question(id="shard", ask=shard_of_a_unit),
    Question(id="who-keeps", ask=Choice.read("""
        A unit is gathered: `flat` is its tensor, and the module's weights are views of it. Then `free(unit)` drops
        both. Which of these objects, made before, still keep the whole memory?

        - [x] `row = weight.data[0]`
          > A view keeps the whole memory, however small it is.
        - [ ] `row = weight.data[0].clone()`
          > A copy has memory of its own, and does not keep the original's.
        - [x] `lambda: weight_view.sum()`, where `weight_view = weight.data`
          > A function keeps the variables that it closes over, and this variable is a view.
        - [ ] `largest = weight.max().item()`
          > This is a number. It refers to no tensor.
        - [x] The output of the linear layer, if its input requires a gradient
          > Autograd saved `weight.t()` for backward, and this is a view.""", several=True)),
    Question(id="when-to-gather-again", ask=Choice.read("""
        Why does a unit gather its parameters again when the gradient of its output arrives, and not when autograd first
        asks for a saved weight?

        - [x] Some gradients need no weight, and would arrive at parameters that are still empty
          > For example, the gradient of an embedding's matrix. It would not fit an empty parameter.
        - [ ] Autograd never asks for weights in backward
          > It does: it computes the gradient of a linear layer's input with the weight.
        - [ ] Then all units would be gathered at the same time
          > No: each would be gathered when backward reaches it, a little later than now.
        - [ ] Collectives are not allowed while backward runs
          > They are allowed, in the same order on every rank. Your reduce-scatter runs there too.""")),
    Question(id="under-way", ask=Choice.read("""
        Backward computes layer k, and one layer is gathered ahead. What is on its way meanwhile?

        - [x] The parameters of layer k − 1
          > They are needed next, so their gather starts when the gradient of layer k's output has arrived.
        - [x] The gradients of layer k + 1
          > They are complete, so their reduce-scatter has started. It is finished when those of layer k are complete.
        - [ ] The gradients of layer k
          > They are not complete before the layer's backward has ended.
        - [ ] The parameters of layer k
          > They must be there before this layer's backward begins.""", several=True)),
    Question(id="not-resharded", ask=Choice.read("""
        You call `fully_shard(layer, reshard_after_forward=False)` for every layer. What changes compared with True?

        - [x] Less is sent: 2Ψ instead of 3Ψ
          > Backward needs no all-gather.
        - [x] The whole model is in memory between forward and backward
          > This is the cost of the all-gather that you save.
        - [ ] Parameters are whole between steps
          > They are resharded after backward in both cases.
        - [ ] The gradients are whole
          > They are reduced to shards in both cases.
        - [ ] The losses
          > The same numbers are computed with the same parameters.""", several=True)),
    Question(id="granularity", ask=Choice.read("""
        In your stage 3, every layer was a unit, and you make the whole model one unit. What happens?

        - [x] As many bytes are sent, in fewer calls, and the peak is much higher
          > In forward and in backward the whole model is gathered at once.
        - [ ] Fewer bytes are sent, and the peak stays
          > Every parameter still travels twice, and every gradient once.
        - [ ] More bytes are held between steps
          > Between steps there are only shards, whatever the units are.
        - [ ] Nothing that could be measured
          > The number of calls and the peak change; you measured both.""")),
    Question(id="most-parameters", ask=most_parameters),
    Question(id="divided-again", ask=fsdp_bytes),
))
