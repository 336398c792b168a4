"""The quiz of lesson 10."""

from __future__ import annotations

import random

from ...planner import plan
from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register
from .smallest_world import smallest_world


def ranks_needed(rng: random.Random) -> Numeric:
    billions, stage, gigabytes = rng.choice([(13, 2, 40), (7, 1, 40), (30, 2, 80)])
    psi, memory_bytes = billions * 10**9, gigabytes * 10**9
    ranks = smallest_world(psi, stage, memory_bytes)
    return Numeric(
        prompt=f"{billions} billion parameters, Adam in mixed precision, stage {stage}, {gigabytes} GB for model "
        "states on each rank. How many ranks does it take at least?",
        expected=ranks,
        unit="ranks",
        tolerance=0.0,
        right="What stays whole has to fit first; the rest is shared until it fits into what is left.",
        wrong="How much stays whole on every rank? What is left of the memory, and how often does the rest fill it?",
        mistakes=(
            exactly(ranks - 1, "Round up: with one rank less, each holds a little too much."),
            exactly(1 << (ranks - 1).bit_length(), "It need not be a power of two."),
            exactly(-(-16 * psi // memory_bytes), "You share all 16 bytes. This stage keeps some of them whole."),
        ),
    )


def held_by_stage_3(rng: random.Random) -> Numeric:
    billions, ranks = rng.choice([(7, 8), (13, 16), (70, 64), (7.5, 64)])
    planned = plan(params=billions * 1e9, world_size=ranks, stage=3, precision="mixed")
    held = sum(planned.bytes.values())
    return Numeric(
        prompt=f"What does a rank hold of the model states of {billions} billion parameters, at stage 3 on {ranks} "
        "ranks, Adam in mixed precision?",
        expected=held,
        unit="GB",
        right="16 bytes for each parameter, shared by all.",
        wrong="How many bytes for each parameter, and by how many ranks are they shared?",
        mistakes=(
            Mistake.near(held * ranks, "That is all ranks together. A rank has its share."),
            Mistake.near(held / 4, "That is 4 bytes for each parameter. There are 16."),
            Mistake.near(held * 8 / 16, "You left out the fp32 masters, or the parameters and gradients: 16 bytes."),
            Mistake.near(held + 2e9 * billions * (1 - 1 / ranks), "At stage 3 the parameters are shared as well."),
        ),
    )


def shard_length(rng: random.Random) -> Numeric:
    numel, before, after = rng.choice([(1_005, 4, 3), (10_005, 8, 5), (1_001, 4, 7)])
    padded = -(-numel // before) * before
    return Numeric(
        prompt=f"{numel:,} elements were saved as {before} equal shards, with padding. They are cut again for {after} "
        "ranks. How many elements has a shard now?",
        expected=-(-numel // after),
        unit="elements",
        tolerance=0.0,
        right="The elements without the old padding, divided and rounded up.",
        wrong="Join the shards, and take the padding off. What is the smallest equal length that holds the rest?",
        mistakes=(
            exactly(-(-numel // before), "That is the length for the old number of ranks."),
            exactly(-(-padded // after), "You kept the old padding, which belonged to the old number of ranks."),
            exactly(numel, "Each rank has its part of them, not all."),
        ),
    )


def exactly(value: int, feedback: str) -> Mistake:
    return Mistake.near(value, feedback, tolerance=0.0)


QUIZ = register(
    Quiz(
        name="capstone",
        title="Capstone",
        questions=(
            Question(id="ranks-needed", ask=ranks_needed),
            Question(id="held-by-stage-3", ask=held_by_stage_3),
            Question(
                id="which-stage",
                ask=Choice(
                    prompt="Stages 1, 2 and 3 all fit, and their steps take the same time within the error of the "
                    "estimate. Which one do you run, and why?",
                    options=(
                        Option(
                            text="Stage 1: as fast, and the simplest",
                            right=True,
                            feedback="Memory that is free earns nothing, and each stage is more that can go wrong.",
                        ),
                        Option(
                            text="Stage 3: it holds least",
                            feedback="Only if you have a use for the memory: a larger batch, a longer sequence.",
                        ),
                        Option(
                            text="Stage 2: the middle is a compromise",
                            feedback="Between what? It must be better at something that you need.",
                        ),
                        Option(
                            text="Plain data parallel",
                            feedback="It is not among those that fit.",
                        ),
                    ),
                ),
            ),
            Question(
                id="what-a-dry-run-proves",
                ask=Choice(
                    prompt="What does a dry run of your code on one of 64 ranks tell you?",
                    several=True,
                    options=(
                        Option(
                            text="How many bytes the rank will hold, at each moment",
                            right=True,
                            feedback="Fake tensors have the sizes of real ones, and live as long.",
                        ),
                        Option(
                            text="How many bytes it will send, in which collectives",
                            right=True,
                            feedback="Each call is recorded, though nobody answers.",
                        ),
                        Option(
                            text="Whether the losses are right",
                            feedback="There are no numbers in it. That takes a small world, and real ones.",
                        ),
                        Option(
                            text="How long a step will take",
                            feedback="Nothing is computed. Ask the planner, or measure.",
                        ),
                    ),
                ),
            ),
            Question(
                id="loss-jumps",
                ask=Choice(
                    prompt="After a resume the first loss is exactly as expected, and from the second on they are a "
                    "little off. What was most likely forgotten?",
                    options=(
                        Option(
                            text="The optimizer's state",
                            right=True,
                            feedback="The first loss is computed before the first step, from weights and data alone.",
                        ),
                        Option(
                            text="The weights",
                            feedback="Then the first loss would be that of a model that has learned nothing.",
                        ),
                        Option(
                            text="The position in the data",
                            feedback="Then the first loss would be that of another batch.",
                        ),
                        Option(
                            text="Nothing: it runs on another number of ranks",
                            feedback="That changes the order of sums, in the last digits: not by what you can see.",
                        ),
                    ),
                ),
            ),
            Question(id="shard-length", ask=shard_length),
            Question(
                id="losses-differ",
                ask=Choice(
                    prompt="Stage 2 and plain data parallel train the same model on the same batches, and after ten "
                    "steps their losses differ in the third digit. What do you conclude?",
                    options=(
                        Option(
                            text="There is a mistake in one of them: look for it",
                            right=True,
                            feedback="Sharding moves bytes. What is computed is the same, up to the order of sums.",
                        ),
                        Option(
                            text="Sharding costs a little accuracy",
                            feedback="It does not: every rank steps with the same averaged gradients.",
                        ),
                        Option(
                            text="It is rounding",
                            feedback="In fp32, after ten steps of a small model, rounding is in the sixth digit or so.",
                        ),
                        Option(
                            text="Stage 2 needs another learning rate",
                            feedback="The gradients are the same, so the same rate is right.",
                        ),
                    ),
                ),
            ),
            Question(
                id="checkpoint-memory",
                ask=Choice(
                    prompt="A 70 B model trains at stage 3. To save it, each rank calls `state_dict()` and keeps the "
                    "whole. Why is that no way to save it, and what is?",
                    options=(
                        Option(
                            text="The whole fits on no rank; each writes its own shards",
                            right=True,
                            feedback="And who loads reads those ranges that it needs: `zero.save_checkpoint`.",
                        ),
                        Option(
                            text="It takes too long; only rank 0 should call it",
                            feedback="It is a collective: rank 0 alone would wait for ever. And it would be full.",
                        ),
                        Option(
                            text="The shards would be saved twice",
                            feedback="More often than that, but the memory gives out first.",
                        ),
                        Option(
                            text="There is nothing wrong with it",
                            feedback="Its parameters alone are 140 GB in 16 bits, on each rank.",
                        ),
                    ),
                ),
            ),
        ),
    )
)
