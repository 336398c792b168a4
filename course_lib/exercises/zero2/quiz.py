"""The quiz of lesson 05."""

from __future__ import annotations

import random
from fractions import Fraction
from math import hypot

from ...planner import plan
from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register


def rank_bytes(billions: int, world_size: int, stage: int, precision: str) -> int:
    """Bytes of the model states on each rank."""
    return sum(plan(params=billions * 10**9, world_size=world_size, stage=stage, precision=precision).bytes.values())


def share_saved(world_size: int, stage: int, precision: str) -> float:
    """How much less than data parallel a stage holds."""
    return 1 - rank_bytes(1, world_size, stage, precision) / rank_bytes(1, world_size, 0, precision)


def passes_over_the_ring(micro_batches: int) -> int:
    """How often all elements go round in a step of stage 2: a reduce-scatter for each backward, and one all-gather."""
    return micro_batches + 1


def bytes_in_mixed_precision(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([(7, 8), (13, 16), (30, 32), (70, 64)])
    return Numeric(
        prompt=f"{billions}B parameters in mixed precision with Adam on {world_size} GPUs, under ZeRO-2. How much do "
        "the model states take on each? (Gradients are kept in 16 bits, as in the paper.)",
        expected=rank_bytes(billions, world_size, 2, "mixed"),
        unit="GB",
        right="2 bytes for each parameter are whole; 2 of gradients and 12 of the optimizer are divided.",
        wrong="Write down 2 + 2 + 12 bytes for each parameter, and divide what ZeRO-2 shards.",
        mistakes=(
            Mistake.near(rank_bytes(billions, world_size, 1, "mixed"), "That is ZeRO-1: the gradients are whole."),
            Mistake.near(rank_bytes(billions, world_size, 3, "mixed"), "That is ZeRO-3: parameters are cut, too."),
            Mistake.near(rank_bytes(billions, world_size, 2, "fp32"), "That is fp32: 4 bytes stay whole there."),
            Mistake.near(
                billions * 10**9 * (2 + 10 / world_size),
                "You sharded 2 + 8 bytes. The fp32 master weights are sharded too.",
            ),
        ),
    )


def saved_in_fp32(rng: random.Random) -> Numeric:
    world_size = rng.choice([2, 4, 8, 16])
    return Numeric(
        prompt=f"All in fp32 with Adam, on {world_size} ranks: by how many percent does ZeRO-2 cut the model states of "
        "a rank, compared with data parallel?",
        expected=share_saved(world_size, 2, "fp32"),
        unit="%",
        right="12 of 16 bytes are cut to 1/N.",
        wrong="4 of the 16 bytes for each parameter stay, and 12 are divided by N.",
        mistakes=(
            Mistake.near(0.75, "That is the limit, with infinitely many ranks."),
            Mistake.near(share_saved(world_size, 1, "fp32"), "That is ZeRO-1."),
            Mistake.near(share_saved(world_size, 2, "mixed"), "That is mixed precision, where 2 of 16 bytes stay."),
            Mistake.near(1 - share_saved(world_size, 2, "fp32"), "That is what is left."),
        ),
    )


def sent_with_micro_batches(rng: random.Random) -> Numeric:
    world_size, micro_batches, megabytes = rng.choice([4, 8]), rng.choice([3, 4, 8]), rng.choice([80, 400])
    each = Fraction(world_size - 1, world_size) * megabytes * 10**6
    return Numeric(
        prompt=f"{world_size} ranks train a model whose fp32 parameters take {megabytes} MB, with your ZeRO-2 and "
        f"{micro_batches} micro-batches a step. How much does a rank send in each step?",
        expected=passes_over_the_ring(micro_batches) * each,
        unit="MB",
        right="A reduce-scatter for each micro-batch and one all-gather, each (N − 1)/N of the bytes.",
        wrong="Count the reduce-scatters and the all-gathers of a step; each sends (N − 1)/N of the bytes.",
        mistakes=(
            Mistake.near(float(2 * each), "That is with one micro-batch. ZeRO-2 reduces in each of them."),
            Mistake.near(float(micro_batches * each), "The all-gather of the step is missing."),
            Mistake.near(float(2 * micro_batches * each), "Parameters are gathered once, in the step."),
            Mistake.near(
                float((micro_batches + 1) * megabytes * 10**6), "Each rank sends (N − 1)/N of the bytes, not all."
            ),
        ),
    )


def norm_of_all(rng: random.Random) -> Numeric:
    norms = rng.choice([(3, 4, 12), (2, 3, 6), (1, 4, 8), (4, 4, 7)])
    return Numeric(
        prompt=f"Under ZeRO-2, the gradient shards of three ranks have the norms {norms[0]}, {norms[1]} and "
        f"{norms[2]}. What is the norm of the whole gradient?",
        expected=hypot(*norms),
        right="The root of the sum of the squares.",
        wrong="Squares add up. Add them, and take the root.",
        mistakes=(
            Mistake.near(sum(norms), "Norms do not add up; their squares do."),
            Mistake.near(max(norms), "That is the largest of them. The others count as well."),
            Mistake.near(hypot(*norms) ** 2, "That is the square of it."),
            Mistake.near(sum(norms) / 3, "That is the mean of the norms. Each rank has another part of one gradient."),
        ),
    )


QUIZ = register(
    Quiz(
        name="zero2",
        title="ZeRO-2: gradients",
        questions=(
            Question(id="bytes-in-mixed-precision", ask=bytes_in_mixed_precision),
            Question(
                id="zeroed-is-not-freed",
                ask=Choice(
                    prompt="```python\ndef hook(param):\n    send(param.grad)\n    param.grad.zero_()\n```\n\n"
                    "`send` waits until the gradient has been sent. How much memory does this hook free?",
                    options=(
                        Option(
                            text="None",
                            right=True,
                            feedback="A tensor of zeros is as large as any other. `param.grad = None` frees it.",
                        ),
                        Option(text="All of the gradient", feedback="A zero takes 4 bytes in fp32, like any number."),
                        Option(
                            text="(N − 1)/N of it",
                            feedback="So much would be free if the rank kept its shard alone. Here it keeps the whole.",
                        ),
                    ),
                ),
            ),
            Question(id="saved-in-fp32", ask=saved_in_fp32),
            Question(
                id="why-in-backward",
                ask=Choice(
                    prompt="Why does ZeRO-2 reduce during backward, and not right after it?",
                    options=(
                        Option(
                            text="After backward the whole gradient is in memory",
                            right=True,
                            feedback="That moment is what has to be avoided. What can be freed must be gone before.",
                        ),
                        Option(
                            text="After backward the gradients are not there any more",
                            feedback="They stay in `param.grad` until someone frees them.",
                        ),
                        Option(
                            text="Fewer bytes have to be sent",
                            feedback="As many. They can travel while backward computes, which is a welcome addition.",
                        ),
                        Option(
                            text="Adam needs them there",
                            feedback="The optimizer is not asked before `step`.",
                        ),
                    ),
                ),
            ),
            Question(id="sent-with-micro-batches", ask=sent_with_micro_batches),
            Question(
                id="more-than-stage-1",
                ask=Choice(
                    prompt="A training with large activations has a higher peak with ZeRO-2 than with ZeRO-1. What "
                    "helps?",
                    options=(
                        Option(
                            text="Smaller buckets",
                            right=True,
                            feedback="The first bucket is made in its full size, when all activations are there.",
                        ),
                        Option(
                            text="Larger buckets",
                            feedback="Two of them are in memory during backward: larger ones take more.",
                        ),
                        Option(
                            text="More buckets under way at a time",
                            feedback="Each keeps its whole gradient until it has been sent.",
                        ),
                        Option(
                            text="More micro-batches of the same size",
                            feedback="Each has the same peak.",
                        ),
                    ),
                ),
            ),
            Question(id="norm-of-all", ask=norm_of_all),
            Question(
                id="no-gradient-on-one-rank",
                ask=Choice(
                    prompt="On rank 2, no parameter of a bucket has been used, so it has no gradient. What does rank 2 "
                    "do about this bucket?",
                    options=(
                        Option(
                            text="It calls the reduce-scatter in its turn, with zeros",
                            right=True,
                            feedback="A collective needs everyone. And if rank 2 owns a shard of it, its optimizer "
                            "needs what the others have.",
                        ),
                        Option(text="Nothing", feedback="Then the others wait for it for ever."),
                        Option(
                            text="It calls the reduce-scatter of the next bucket",
                            feedback="Then its next bucket meets this one of the others.",
                        ),
                        Option(
                            text="It sends its parameters instead",
                            feedback="These would be added to the gradients of the others.",
                        ),
                    ),
                ),
            ),
            Question(
                id="what-is-whole",
                ask=Choice(
                    prompt="Which of these does a rank hold whole at some moment of a step with ZeRO-2?",
                    several=True,
                    options=(
                        Option(text="Its parameters", right=True, feedback="Always."),
                        Option(
                            text="The gradients of a bucket",
                            right=True,
                            feedback="From the first gradient until the reduce-scatter is finished.",
                        ),
                        Option(
                            text="The gradients of the model",
                            feedback="Only if one bucket holds all parameters.",
                        ),
                        Option(
                            text="Adam's moments", feedback="A rank has those of its shards, from the first step on."
                        ),
                    ),
                ),
            ),
        ),
    )
)
