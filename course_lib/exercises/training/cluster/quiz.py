"""The quiz of the lesson from notebook to cluster."""

from __future__ import annotations

import random

from ....quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register


def global_batch(rng: random.Random) -> Numeric:
    micro, steps, ranks = rng.choice([(4, 8, 16), (2, 4, 64), (1, 16, 32)])
    return Numeric(
        prompt=f"{ranks} ranks, batches of {micro} sequences, and {steps} batches accumulated before each step. How "
        "many sequences does one update see?",
        expected=micro * steps * ranks,
        tolerance=0,
        right="Batch times accumulated batches times ranks.",
        wrong="Each rank sees its own sequences. Multiply the three.",
        mistakes=(
            Mistake.near(micro * ranks, "That leaves out the accumulated batches."),
            Mistake.near(micro * steps, "That is one rank. All ranks' gradients are averaged."),
        ),
    )


QUIZ = register(
    Quiz(
        name="cluster",
        title="From notebook to cluster",
        questions=(
            Question(
                id="local-rank",
                ask=Choice(
                    prompt="What is LOCAL_RANK for?",
                    options=(
                        Option(
                            text="To choose this process's GPU on its machine",
                            right=True,
                            feedback="RANK counts over all machines, LOCAL_RANK on one.",
                        ),
                        Option(text="To choose this process's share of the data", feedback="That is RANK."),
                        Option(text="To find the address of rank 0", feedback="That is MASTER_ADDR."),
                    ),
                ),
            ),
            Question(
                id="set-epoch",
                ask=Choice(
                    prompt="A program never calls `sampler.set_epoch`. What happens?",
                    options=(
                        Option(
                            text="Every epoch has the same order",
                            right=True,
                            feedback="The sampler shuffles by seed and epoch number, which stays 0.",
                        ),
                        Option(text="The examples are not shuffled", feedback="They are, alike in each epoch."),
                        Option(
                            text="Ranks see each other's examples",
                            feedback="All ranks use the same order, and each takes every N-th of it.",
                        ),
                    ),
                ),
            ),
            Question(id="global-batch", ask=global_batch),
            Question(
                id="after-sharding",
                ask=Choice(
                    prompt="Why is the optimizer made after `fully_shard`?",
                    options=(
                        Option(
                            text="Because `fully_shard` replaces the parameters",
                            right=True,
                            feedback="An optimizer that is made before updates tensors that nobody uses.",
                        ),
                        Option(
                            text="Because the optimizer would be too large",
                            feedback="Its state appears in the first step, wherever it is made.",
                        ),
                        Option(text="Because `fully_shard` changes the learning rate", feedback="It does not."),
                    ),
                ),
            ),
            Question(
                id="who-saves",
                ask=Choice(
                    prompt="Which ranks call `dcp.save`?",
                    options=(
                        Option(
                            text="All of them",
                            right=True,
                            feedback="Each writes its shards; and it is a collective.",
                        ),
                        Option(text="Rank 0", feedback="It has only its own shards, and it would wait for the others."),
                        Option(text="One per machine", feedback="Each rank has shards that no other rank has."),
                    ),
                ),
            ),
            Question(
                id="reserved",
                ask=Choice(
                    prompt="`torch.cuda.memory_reserved()` is 31 GiB, `memory_allocated()` at most 23 GiB. What are "
                    "the other 8?",
                    options=(
                        Option(
                            text="Memory that the allocator keeps, in blocks that did not fit what was asked for",
                            right=True,
                            feedback="Fragmentation and cached blocks. `expandable_segments:True` often lowers it.",
                        ),
                        Option(text="Gathered parameters", feedback="They are allocated while they exist."),
                        Option(text="Other processes on the GPU", feedback="Reserved counts this process only."),
                    ),
                ),
            ),
            Question(
                id="gpus-differ",
                ask=Choice(
                    prompt="The loss falls on 8 GPUs. What shows that the program trains as one process would?",
                    options=(
                        Option(
                            text="Equal gradients of a small model, here and in one process",
                            right=True,
                            feedback="Five faults of this lesson let the loss fall.",
                        ),
                        Option(text="A lower loss than on one GPU", feedback="It may be lower for many reasons."),
                        Option(text="No error and no warning", feedback="None of the five faults raises one."),
                    ),
                ),
            ),
        ),
    )
)
