"""The quiz of lesson 12."""

import random

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz
from .smallest_world import smallest_world


def ranks_needed(rng: random.Random) -> Numeric:
    billions, stage, gigabytes = rng.choice([(13, 2, 40), (7, 1, 40), (30, 2, 80)])
    psi, memory_bytes = billions * 10**9, gigabytes * 10**9
    ranks = smallest_world(psi, stage, memory_bytes)
    return Numeric(
        prompt=f"{billions} billion parameters train at stage {stage} with Adam in mixed precision. Each rank has "
        f"{gigabytes} GB for model states. How many ranks do you need at least?",
        expected=ranks,
        unit="ranks",
        tolerance=0.0,
        right="The part that stays whole has to fit first. A shard of the rest has to fit in what is left.",
        wrong="Subtract from the memory what stays whole on each rank. Over how many ranks is the rest sharded then?",
        mistakes=(
            (ranks - 1, "Round up: with one rank fewer, each rank holds a little too much."),
            (1 << (ranks - 1).bit_length(), "The number of ranks does not have to be a power of two."),
            (-(-16 * psi // memory_bytes), "You shard all 16 bytes. This stage keeps some of them whole."),
        ),
    )


def held_by_stage_3(rng: random.Random) -> Numeric:
    billions, ranks = rng.choice([(7, 8), (13, 16), (70, 64), (7.5, 64)])
    planned = plan(params=billions * 1e9, world_size=ranks, stage=3, precision="mixed")
    held = sum(planned.bytes.values())
    return Numeric(
        prompt=f"Stage 3 trains {billions} billion parameters on {ranks} ranks, with Adam in mixed precision. "
        "How many bytes of model states does a rank hold?",
        expected=held,
        unit="GB",
        right="Each parameter takes 16 bytes, and stage 3 shards all of them over all ranks.",
        wrong="How many bytes does each parameter take in all? Over how many ranks are they sharded?",
        mistakes=(
            (held * ranks, "This is the sum over all ranks. Each rank holds its shard."),
            (held / 4, "You count 4 bytes for each parameter. There are 16."),
            (held * 8 / 16, "You count 8 bytes for each parameter. There are 16: 2 + 2 + 12."),
            (held + 2e9 * billions * (1 - 1 / ranks), "Your parameters are whole. Stage 3 shards them."),
        ),
    )


def shard_length(rng: random.Random) -> Numeric:
    numel, before, after = rng.choice([(1_005, 4, 3), (10_005, 8, 5), (1_001, 4, 7)])
    padded = -(-numel // before) * before
    return Numeric(
        prompt=f"{numel:,} elements were saved as {before} equal shards, with padding. You cut them again for {after} "
        "ranks. How many elements does each new shard have?",
        expected=-(-numel // after),
        unit="elements",
        tolerance=0.0,
        right="Divide the elements, without the old padding, by the new number of ranks, and round up.",
        wrong="Join the shards and drop the old padding. Which smallest equal length of the new shards is enough?",
        mistakes=(
            (-(-numel // before), "This is the length for the old number of ranks."),
            (-(-padded // after), "You kept the old padding, which belongs to the old number of ranks."),
            (numel, "These are all elements. Each rank has only a part of them."),
        ),
    )


QUIZ = Quiz(name="capstone", title="Capstone", questions=(
    Question(id="ranks-needed", ask=ranks_needed),
    Question(id="held-by-stage-3", ask=held_by_stage_3),
    Question(id="which-stage", ask=Choice.read("""
        Stages 1, 2 and 3 all fit, and their steps take the same time within the error of the estimate. Which stage do
        you run?

        - [x] Stage 1: it is as fast, and the simplest
          > Free memory has no use by itself, and each higher stage has more that can fail.
        - [ ] Stage 3: it holds the fewest bytes
          > Fewer bytes help only if you have a use for the memory: a larger batch, a longer sequence.
        - [ ] Stage 2: the middle is a compromise
          > Here stage 2 is more complex than stage 1, without an advantage that you use.
        - [ ] Plain data parallel
          > The question does not say that it fits: only stages 1, 2 and 3 do.""")),
    Question(id="what-a-dry-run-proves", ask=Choice.read("""
        What does a dry run of your code, as one of 64 ranks, measure?

        - [x] The bytes that the rank will hold, at each moment
          > Fake tensors have the sizes and the lifetimes of real ones.
        - [x] The bytes that the rank will send, in each collective
          > Each call is recorded, although no other rank answers.
        - [ ] Whether the losses are right
          > Fake tensors contain no numbers. Run a small world with real tensors.
        - [ ] The time of a step
          > A dry run computes nothing. Use the planner, or measure on GPUs.""", several=True)),
    Question(id="loss-jumps", ask=Choice.read("""
        After a resume, the first loss is right, but all later losses are slightly different. What did the resume most
        likely leave out?

        - [x] The optimizer's state
          > The first loss is computed before the first step, only from weights and data.
        - [ ] The weights
          > Then the first loss would be the loss of a model that has learned nothing.
        - [ ] The position in the data
          > Then the first loss would be the loss of a different batch.
        - [ ] Nothing: the training runs on a different number of ranks
          > This changes the order of sums, and so only the last digits of the losses.""")),
    Question(id="slow-network", ask=Choice.read("""
        Stage 3 runs over a slow network, and waits for its gathers. Which changes help?

        - [x] Larger micro-batches
          > The gathers stay the same, and more tokens compute meanwhile: T ≥ η · C / B.
        - [x] Sharding within each node
          > Then the gathers do not cross the slow network.
        - [ ] More micro-batches of the same size
          > Stage 3 gathers again for each of them, so computing and gathers both grow.
        - [ ] A larger model
          > The number of parameters cancels: larger layers take longer to gather and longer to compute.
        """, several=True)),
    Question(id="shard-length", ask=shard_length),
    Question(id="losses-differ", ask=Choice.read("""
        Stage 2 and plain data parallel train the same small model in fp32 on the same batches, and after ten steps
        their losses differ in the third digit. What do you conclude?

        - [x] One of the two programs has a mistake
          > Sharding only moves bytes. Both compute the same, up to the order of sums.
        - [ ] Sharding costs a little accuracy
          > Sharding costs no accuracy: both step with the same averaged gradients.
        - [ ] It is rounding
          > In fp32, rounding changes about the sixth digit in ten steps of a small model.
        - [ ] Stage 2 needs a different learning rate
          > The gradients are the same, so the same rate is right.""")),
    Question(id="checkpoint-memory", ask=Choice.read("""
        A model of 70 billion parameters trains at stage 3, on GPUs of 80 GB. To save it, each rank calls `state_dict()`
        and keeps the whole model. Is this a good way to save it?

        - [x] No: the whole model fits on no rank. Let each rank write its own shards.
          > `zero.save_checkpoint` does this. Each rank then loads only what it needs.
        - [ ] No: it takes too long. Let only rank 0 call it.
          > `state_dict()` is a collective: rank 0 would wait forever for the others.
        - [ ] No: the shards are saved twice
          > Every rank would hold all shards, and run out of memory before it saves them.
        - [ ] Yes
          > In 16 bits, the parameters take 140 GB, on each rank.""")),
))
