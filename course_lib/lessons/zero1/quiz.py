"""The quiz of lesson 04."""

import random

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz


def rank_bytes(billions: int, world_size: int, stage: int, precision: str) -> int:
    """Return the bytes of the model states on each rank."""
    return sum(plan(params=billions * 10**9, world_size=world_size, stage=stage, precision=precision).bytes.values())


def ring_bytes(billions: int, world_size: int, passes: int, element_bytes: int) -> int:
    """Return the bytes that a rank sends when all elements go round the ring `passes` times: 2 for an all-reduce."""
    return passes * billions * 10**9 * element_bytes * (world_size - 1) // world_size


def bytes_in_fp32(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 7, 13]), rng.choice([4, 8, 16])
    whole = rank_bytes(billions, world_size, 0, "fp32")
    return Numeric(
        prompt=f"A model of {billions}B parameters trains in fp32 with Adam on {world_size} GPUs, under ZeRO-1. How "
        "many GB do parameters, gradients and optimizer state take on each GPU?",
        expected=rank_bytes(billions, world_size, 1, "fp32"),
        unit="GB",
        right="4 + 4 bytes for each parameter are whole, and 8 are divided by the number of GPUs.",
        wrong="Write down 4 + 4 + 8 bytes for each parameter, and divide what ZeRO-1 shards.",
        mistakes=(
            (whole, "That is data parallel: nothing is sharded."),
            (whole / world_size, "That divides everything. ZeRO-1 divides only the optimizer state."),
            (rank_bytes(billions, world_size, 2, "fp32"), "That shards the gradients as well: ZeRO-2."),
            (12e9 * billions, "That halves Adam's 8 bytes. They are divided by the number of GPUs."),
        ),
    )


def bytes_in_mixed_precision(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 30]), rng.choice([8, 16])
    moments_only = billions * 10**9 * (8 + 8 / world_size)
    return Numeric(
        prompt=f"{billions}B parameters in mixed precision with Adam, on {world_size} GPUs under ZeRO-1: how many GiB "
        "do the model states take on each GPU? The 16-bit gradients are not accumulated in fp32.",
        expected=rank_bytes(billions, world_size, 1, "mixed"),
        unit="GiB",
        right="2 + 2 bytes are whole. Of the optimizer's 12, 4 are the fp32 master weights: they are sharded too.",
        wrong="2 + 2 bytes for each parameter are whole, and 12 belong to the optimizer. Answer in GiB.",
        mistakes=(
            (moments_only, "You sharded 8 bytes. The fp32 master weights are sharded too."),
            (16e9 * billions, "That is data parallel: nothing is sharded."),
            (rank_bytes(billions, world_size, 2, "mixed"), "That shards the gradients as well: ZeRO-2."),
        ),
    )


def share_saved(rng: random.Random) -> Numeric:
    world_size = rng.choice([2, 4, 8, 16])
    saved = 1 - rank_bytes(1, world_size, 1, "fp32") / rank_bytes(1, world_size, 0, "fp32")
    state_saved = 1 - 1 / world_size
    return Numeric(
        prompt=f"By what percentage does ZeRO-1 on {world_size} ranks cut a rank's parameters, gradients and "
        "optimizer state together, in fp32 with Adam?",
        expected=saved,
        unit="%",
        tolerance=0.005,
        right="The optimizer state is half of the 16 bytes, and ZeRO-1 saves (N − 1)/N of it.",
        wrong="Find the part of the 16 bytes that is optimizer state, and the share of it that a rank gives up.",
        mistakes=(
            (state_saved, "The optimizer state shrinks by this much. It is half of the whole."),
            (1.0, "That would be all of it. Parameters and gradients stay whole."),
        ),
    )


def without_owner(rng: random.Random) -> Numeric:
    count, world_size = rng.choice([(30, 8), (29, 4), (31, 8), (149, 8), (148, 16), (77, 16)])
    return Numeric(
        prompt=f"A model has {count} parameter tensors. An optimizer gives each of {world_size} ranks the next "
        "`len(params) // world_size` of them. How many are never updated?",
        expected=count % world_size,
        tolerance=0,
        right="`count % world_size` are left over, and no rank owns them.",
        wrong=f"Find how many each rank gets, and multiply by {world_size}. The rest has no owner.",
        mistakes=(
            (count // world_size, "This many belong to each rank. How many are left over?"),
            (-count % world_size, "This many are missing to the next multiple. How many are left over?"),
        ),
    )


def sent_by_the_recipe(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([1, 2, 7]), rng.choice([4, 8])
    return Numeric(
        prompt=f"DistributedDataParallel with ZeroRedundancyOptimizer, {billions}B parameters in fp32, on {world_size} "
        "ranks. How much does each rank send in a step, on a ring?",
        expected=ring_bytes(billions, world_size, 3, 4),
        unit="GB",
        right="An all-reduce of the gradients, 2Ψ, and a broadcast of the parameters, Ψ; each times (N − 1)/N.",
        wrong="One collective averages the gradients, a second brings the parameters. Add the bytes of the two.",
        mistakes=(
            (ring_bytes(billions, world_size, 2, 4), "The owners also broadcast their updated parameters."),
            (ring_bytes(billions, world_size, 1, 4), "That is only the broadcast, or half an all-reduce."),
            (12e9 * billions, "Nearly: a ring sends (N − 1)/N of it."),
        ),
    )


QUIZ = Quiz(name="zero1", title="ZeRO-1: optimizer states", questions=(
    Question(id="what-is-sharded", ask=Choice.read("""
        Which of these does a rank under ZeRO-1 hold only in part?

        - [x] Adam's two moments
          > Only the update needs them, and only a parameter's owner updates it.
        - [x] The fp32 master weights of a model in bf16
          > They belong to the optimizer: only the update reads and writes them.
        - [ ] The parameters that forward uses
          > They are whole until ZeRO-3.
        - [ ] The gradients, from backward to the step
          > They are whole while backward makes them. ZeRO-2 shards them.""", several=True)),
    Question(id="which-calls", ask=Choice.read("""
        Data parallel makes one all-reduce of the gradients. What does ZeRO-1 with equal flat shards call instead, and
        when?

        - [x] A reduce-scatter of the gradients before the update, an all-gather of the parameters after it
          > The two halves of the all-reduce, with the update between them.
        - [ ] An all-gather of the gradients before the update, a reduce-scatter of the parameters after it
          > Gradients have to be summed, so they are reduced. Every rank needs all parameters, so they are gathered.
        - [ ] An all-reduce of the gradients as before, and a broadcast of each parameter
          > That works, and ZeroRedundancyOptimizer on DDP does it. It sends 3Ψ, not 2Ψ.
        - [ ] A reduce-scatter of the optimizer state
          > Optimizer state never travels during training. It stays with its owner.""")),
    Question(id="activations", ask=Choice.read("""
        Why does ZeRO-1, like every stage after it, leave the activations whole?

        - [x] Each rank computes them from its own part of the batch, so no two ranks hold the same ones
          > ZeRO removes copies, and here there are none. Checkpointing saves activations in a different way.
        - [ ] They are too small to matter
          > With long sequences they can be larger than everything else.
        - [ ] Sharding them would change what the model learns
          > Where a number is kept never changes its value.
        - [ ] Collectives cannot send them
          > They are ordinary tensors, and tensor parallel training sends them.""")),
    Question(id="what-it-costs", ask=Choice.read("""
        Compared with data parallel, how many bytes does a rank send under ZeRO-1 with equal flat shards?

        - [x] As many: both send 2Ψ(N − 1)/N elements in a step
          > ZeRO-3 pays for memory with communication, and ZeRO-1 does not. But the second half travels after the
            update, when backward no longer hides it.
        - [ ] 1.5 times as many
          > That is stage 3, or ZeRO-1 with broadcasts.
        - [ ] Twice as many
          > Two calls replace one, and each of the two sends half as much.
        - [ ] Half as many
          > The gradients take half of the bytes. Then the parameters have to travel, too.""")),
    Question(id="sgd", ask=Choice.read("""
        You replace `SGD(lr=0.1)` with ZeroRedundancyOptimizer around the same SGD, and the memory stays the same. Why?

        - [x] Plain SGD keeps no state, so there is nothing to shard
          > With momentum, SGD keeps one number for each parameter; Adam keeps two.
        - [ ] Two ranks are too few
          > Two ranks halve the state, if any exists.
        - [ ] The state is moved to the ranks at the second step
          > Each rank makes its state at the first step, and keeps it.
        - [ ] The memory is freed, but the allocator keeps it
          > An allocator may keep freed memory. Here no memory was ever allocated.""")),
    Question(id="fp32-bytes", ask=bytes_in_fp32),
    Question(id="mixed-bytes", ask=bytes_in_mixed_precision),
    Question(id="share-saved", ask=share_saved),
    Question(id="without-owner", ask=without_owner),
    Question(id="recipe-volume", ask=sent_by_the_recipe),
))
