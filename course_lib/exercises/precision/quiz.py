"""The quiz of lesson 07."""

from __future__ import annotations

import random

import torch

from ...planner import plan
from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register
from .activation_bytes import activation_bytes


def states_bytes(params: int, world_size: int, stage: int, precision: str = "mixed") -> int:
    """What a rank holds of model states, with Adam."""
    return sum(plan(params=params, world_size=world_size, stage=stage, precision=precision).bytes.values())


def offloaded_bytes(params: int, world_size: int, stage: int) -> int:
    """What is left of them on the GPU when the optimizer is on the host."""
    planned = plan(params=params, world_size=world_size, stage=stage, precision="mixed", offload=("optimizer",))
    return sum(planned.bytes.values())


def smallest_update_seen(weight: float, dtype: torch.dtype) -> float:
    """Half of the distance from `weight`, a power of two, to the next larger number of `dtype`."""
    return weight * torch.finfo(dtype).eps / 2


def stage_1(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 30]), rng.choice([8, 16, 32])
    params = billions * 10**9
    return Numeric(
        prompt=f"{billions} billion parameters are trained in bf16 with fp32 masters and Adam, by stage 1 on "
        f"{world_size} ranks. How much does each rank hold of model states?",
        expected=states_bytes(params, world_size, 1),
        unit="GB",
        right="2 + 2 whole, and 12/N.",
        wrong="Parameters and gradients of 2 bytes are whole; masters and both moments are shared.",
        mistakes=(
            Mistake.near(
                8 * params + 8 * params / world_size, "You share the moments alone. The masters are shared as well."
            ),
            Mistake.near(16 * params, "That is data parallel, without any sharing."),
            Mistake.near(states_bytes(params, world_size, 2), "That is stage 2, which shares gradients as well."),
            Mistake.near(states_bytes(params, world_size, 1, "fp32"), "That is stage 1 with all of it in fp32."),
            Mistake.near(12 * params / world_size, "Parameters and gradients come on top, whole."),
        ),
    )


def accumulation(rng: random.Random) -> Numeric:
    billions = rng.choice([1, 3, 7, 13])
    params = billions * 10**9
    expected = states_bytes(params, 1, 0, "mixed_fp32_accumulation")
    return Numeric(
        prompt=f"{billions} billion parameters in bf16 with masters and Adam on one GPU. Gradients of micro-batches "
        "are summed in fp32, beside those of 2 bytes that backward makes. How much do the model states take?",
        expected=expected,
        unit="GB",
        right="2 + 2 + 4 + 12 = 20 bytes for each parameter.",
        wrong="Add up: parameters, gradients, their sums, masters and two moments.",
        mistakes=(
            Mistake.near(16 * params, "The sums are missing: 4 bytes more."),
            Mistake.near(18 * params, "The gradients of 2 bytes are there beside the sums of 4."),
        ),
    )


def layer_bytes(rng: random.Random) -> Numeric:
    sequence, batch, (hidden, heads) = 2048, rng.choice([1, 2, 4]), rng.choice([(4096, 32), (5120, 40), (2048, 16)])

    def kept(checkpointing: str, dropout: bool = True) -> int:
        return activation_bytes(sequence, batch, hidden, heads, dropout, checkpointing)

    return Numeric(
        prompt=f"A layer of width {hidden} with {heads} heads works on {batch} sequence{'s' * (batch > 1)} of "
        f"{sequence} tokens, in 16 bits, with dropout and without FlashAttention. How much does it keep for backward?",
        expected=kept("none"),
        unit="MB",
        right="s·b·h·(34 + 5·a·s/h).",
        wrong="There are 34 bytes for each element of the input, and 5 for each score of each head.",
        mistakes=(
            Mistake.near(kept("selective"), "That is with the attention core computed again."),
            Mistake.near(kept("none", dropout=False), "That is without dropout."),
            Mistake.near(kept("full"), "That is the input alone, as with full checkpointing."),
            Mistake.near(
                2 * kept("none"), "That is about twice as much: numbers have 2 bytes here, not 4.", tolerance=0.1
            ),
        ),
    )


def with_n_ranks(rng: random.Random) -> Numeric:
    gigabytes, few, many = rng.choice([6, 10, 12]), rng.choice([2, 4]), rng.choice([16, 32])
    return Numeric(
        prompt=f"With stage 3 on {few} ranks, forward keeps {gigabytes} GB of activations on each rank. You go to "
        f"{many} ranks, with as many lines on each rank as before. How much does forward keep on each?",
        expected=gigabytes * 10**9,
        unit="GB",
        right="They come from the rank's own lines, and these are as many as before.",
        wrong="Which part of a rank's activations does any other rank have?",
        mistakes=(
            Mistake.near(
                gigabytes * 10**9 * few / many,
                "Model states are shared among ranks. Activations are each rank's own, in all stages.",
            ),
        ),
    )


def lost_update(rng: random.Random) -> Numeric:
    weight = rng.choice([1, 2, 4, 8])
    expected = smallest_update_seen(weight, torch.bfloat16)
    return Numeric(
        prompt=f"A weight in bf16 is {weight}. To it is added, again and again, the same small positive number. Below "
        "which size of that number does the weight never change? (In bf16, 1 is followed by 1 + 1/128.)",
        expected=expected,
        right="Half of the distance to the next number: less than that is rounded back.",
        wrong="How far away is the next number of bf16? From where on is a sum rounded to it?",
        mistakes=(
            Mistake.near(2 * expected, "That is the distance to the next number. From half of it on, sums round up."),
            *(
                [Mistake.near(1 / 256, "That is so for weights from 1 to 2. Larger numbers are farther apart.")]
                if weight > 1
                else []
            ),
        ),
    )


def offload(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 20]), rng.choice([4, 8])
    params = billions * 10**9
    return Numeric(
        prompt=f"{billions} billion parameters in mixed precision with Adam, stage 2 on {world_size} GPUs, and the "
        "optimizer offloaded to the CPU. How much do the model states take on each GPU?",
        expected=offloaded_bytes(params, world_size, 2),
        unit="GB",
        right="The parameters. The optimizer's states are on the host, and gradient shards go there as they come.",
        wrong="Whole parameters stay. What goes to the host as soon as it is reduced?",
        mistakes=(
            Mistake.near(states_bytes(params, world_size, 2), "That is without offload."),
            Mistake.near(offloaded_bytes(params, world_size, 1), "That is stage 1: its gradients are whole."),
            Mistake.near(offloaded_bytes(params, world_size, 3), "That is stage 3: its parameters are cut."),
            Mistake.near(12 * params / world_size, "That is what lives on the host."),
        ),
    )


QUIZ = register(
    Quiz(
        name="precision",
        title="Mixed precision, activations, checkpointing",
        questions=(
            Question(id="stage-1", ask=stage_1),
            Question(id="lost-update", ask=lost_update),
            Question(
                id="why-masters",
                ask=Choice(
                    prompt="What are fp32 masters for?",
                    options=(
                        Option(
                            text="Small updates add up in them, which in bf16 would each be rounded away",
                            right=True,
                            feedback="In one direction alone: from master to parameter.",
                        ),
                        Option(
                            text="Forward computes with them where bf16 would overflow",
                            feedback="Forward uses the rounded copies alone; and bf16 has the range of fp32.",
                        ),
                        Option(
                            text="They save memory",
                            feedback="They cost 4 bytes for each parameter, as much as gradients and parameters save.",
                        ),
                        Option(
                            text="They are a backup for checkpoints on disk",
                            feedback="They are saved there, too, but they are needed in every step.",
                        ),
                    ),
                ),
            ),
            Question(id="accumulation", ask=accumulation),
            Question(
                id="overflow",
                ask=Choice(
                    prompt="Stage 2 in fp16 on 8 ranks. In the shard of rank 5 a gradient is infinite. What has to "
                    "happen?",
                    options=(
                        Option(
                            text="All ranks skip the step and halve the scale",
                            right=True,
                            feedback="So all have to hear of it: an all-reduce of one flag.",
                        ),
                        Option(
                            text="Rank 5 skips the step; the others make it",
                            feedback="Then shards of one model are a step apart, and stay so.",
                        ),
                        Option(
                            text="Rank 5 sets that element to zero, and all make the step",
                            feedback="Others may be wrong without being infinite, and the scale stays too large.",
                        ),
                        Option(
                            text="Nothing: the average over 8 ranks is finite",
                            feedback="The average of infinity and anything is infinite or NaN.",
                        ),
                    ),
                ),
            ),
            Question(
                id="order",
                ask=Choice(
                    prompt="Gradients are clipped to norm 1 *before* they are divided by the loss scale. What happens?",
                    options=(
                        Option(
                            text="Nearly all are clipped, then made smaller by the scale: almost nothing is learned",
                            right=True,
                            feedback="The limit holds for gradients as they are without the scale.",
                        ),
                        Option(
                            text="Nothing: scaling and clipping are both factors",
                            feedback="Clipping is a factor that depends on the norm, which the scale has changed.",
                        ),
                        Option(
                            text="The step is skipped",
                            feedback="Only if a gradient is not finite. Large ones are finite.",
                        ),
                        Option(
                            text="Gradients explode",
                            feedback="They shrink: clipped to 1, and divided by the scale after that.",
                        ),
                    ),
                ),
            ),
            Question(
                id="bf16-scale",
                ask=Choice(
                    prompt="Why does training in bf16 need no loss scaling?",
                    options=(
                        Option(
                            text="bf16 has the exponents of fp32, so small gradients do not become zero",
                            right=True,
                            feedback="It has fewer digits instead, and for those there are masters.",
                        ),
                        Option(
                            text="bf16 has more digits than fp16",
                            feedback="It has fewer, 8 to 11. What it has more of is range.",
                        ),
                        Option(
                            text="With masters, gradients are made in fp32",
                            feedback="Backward makes them in the dtype of the parameters. What became zero there stays "
                            "zero.",
                        ),
                        Option(
                            text="It does, only nobody does it",
                            feedback="The smallest numbers of bf16 are nearly as small as those of fp32.",
                        ),
                    ),
                ),
            ),
            Question(
                id="autocast",
                ask=Choice(
                    prompt="A model in fp32 trains under `torch.autocast` to bf16, with Adam and without sharding. "
                    "Which of these take 2 bytes for each parameter?",
                    several=True,
                    options=(
                        Option(
                            text="The copies of weights that forward computes with",
                            right=True,
                            feedback="They are made in forward, and live until backward has used them.",
                        ),
                        Option(text="The parameters", feedback="They stay in fp32, and are masters at the same time."),
                        Option(text="The gradients", feedback="They have the dtype of the parameters: fp32."),
                        Option(text="Momentum and variance", feedback="They have the dtype of the parameters: fp32."),
                    ),
                ),
            ),
            Question(id="layer-bytes", ask=layer_bytes),
            Question(
                id="checkpointing",
                ask=Choice(
                    prompt="Every layer is checkpointed. What is in memory while backward goes through layer 7 of 12?",
                    several=True,
                    options=(
                        Option(
                            text="The inputs of layers 1 to 7",
                            right=True,
                            feedback="Each is a checkpoint from which its layer is computed again.",
                        ),
                        Option(
                            text="All that layer 7 keeps for backward",
                            right=True,
                            feedback="It has just been computed again, this time with autograd.",
                        ),
                        Option(
                            text="All that layers 1 to 6 keep for backward",
                            feedback="They have not been computed again yet. Their inputs are all there is.",
                        ),
                        Option(
                            text="All that layers 8 to 12 keep for backward",
                            feedback="Backward is through with them, and has let go of it.",
                        ),
                    ),
                ),
            ),
            Question(id="more-ranks", ask=with_n_ranks),
            Question(id="offload", ask=offload),
        ),
    )
)
