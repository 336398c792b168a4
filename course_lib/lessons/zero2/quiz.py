"""The quiz of lesson 05."""

import random
from fractions import Fraction
from math import hypot

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz


def rank_bytes(billions: int, world_size: int, stage: int, precision: str) -> int:
    """Return the bytes of the model states on each rank."""
    return sum(plan(params=billions * 10**9, world_size=world_size, stage=stage, precision=precision).bytes.values())


def share_saved(world_size: int, stage: int, precision: str) -> float:
    """Return the part of data parallel's bytes that a stage saves."""
    return 1 - rank_bytes(1, world_size, stage, precision) / rank_bytes(1, world_size, 0, precision)


def passes_over_the_ring(micro_batches: int) -> int:
    """Return how often a ring passes all elements in a step of stage 2: once for each backward, and once in `step`."""
    return micro_batches + 1


def bytes_in_mixed_precision(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([(7, 8), (13, 16), (30, 32), (70, 64)])
    return Numeric(
        prompt=f"{billions}B parameters in mixed precision with Adam on {world_size} GPUs, under ZeRO-2. How much do "
        "the model states take on each GPU? Gradients are kept in 16 bits, as in the paper.",
        expected=rank_bytes(billions, world_size, 2, "mixed"),
        unit="GB",
        right="For each parameter, 2 bytes stay whole; 2 of gradient and 12 of optimizer state are sharded.",
        wrong="Write down 2 + 2 + 12 bytes for each parameter, and divide the bytes that ZeRO-2 shards.",
        mistakes=(
            (rank_bytes(billions, world_size, 1, "mixed"), "This is ZeRO-1 in mixed precision, or ZeRO-2 in fp32."),
            (rank_bytes(billions, world_size, 3, "mixed"), "This is ZeRO-3: it shards parameters, too."),
            (
                billions * 10**9 * (2 + 10 / world_size),
                "You count no fp32 master weights. They take 4 bytes, and are sharded, too.",
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
        right="12 of the 16 bytes shrink to 1/N.",
        wrong="Of the 16 bytes for each parameter, 4 stay and 12 are divided by N.",
        mistakes=(
            (0.75, "This is the limit for infinitely many ranks."),
            (share_saved(world_size, 1, "fp32"), "This is ZeRO-1."),
            (share_saved(world_size, 2, "mixed"), "This is mixed precision, where 2 of the 16 bytes stay."),
            (1 - share_saved(world_size, 2, "fp32"), "This is the part that is left, not the saving."),
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
        right="There is a reduce-scatter for each micro-batch, and one all-gather. In each, a rank sends (N − 1)/N of "
        "the bytes.",
        wrong="Count the reduce-scatters and the all-gathers of a step. In each, a rank sends (N − 1)/N of the bytes.",
        mistakes=(
            (2 * each, "This is for one micro-batch. ZeRO-2 reduces in each micro-batch."),
            (micro_batches * each, "The all-gather of the step is missing."),
            (2 * micro_batches * each, "The parameters are gathered only once in each step."),
            ((micro_batches + 1) * megabytes * 10**6, "A rank sends (N − 1)/N of the bytes, not all."),
        ),
    )


def norm_of_all(rng: random.Random) -> Numeric:
    norms = rng.choice([(3, 4, 12), (2, 3, 6), (1, 4, 8), (4, 4, 7)])
    return Numeric(
        prompt=f"Under ZeRO-2, the gradient shards of three ranks have the norms {norms[0]}, {norms[1]} and "
        f"{norms[2]}. What is the norm of the whole gradient?",
        expected=hypot(*norms),
        right="The norm of all is the root of the sum of the squares.",
        wrong="The squares of the norms add up. Add them, and take the root.",
        mistakes=(
            (sum(norms), "Norms do not add up; their squares do."),
            (max(norms), "This is the largest of the three norms. The others count, too."),
            (hypot(*norms) ** 2, "This is the square of the norm."),
            (sum(norms) / 3, "This is the mean. Each rank has a different part of one gradient."),
        ),
    )


QUIZ = Quiz(name="zero2", title="ZeRO-2: gradients", questions=(
    Question(id="bytes-in-mixed-precision", ask=bytes_in_mixed_precision),
    Question(id="zeroed-is-not-freed", ask=Choice.read("""
        ```python
        def hook(param):
            send(param.grad)
            param.grad.zero_()
        ```

        `send` waits until the gradient has been sent. How much memory does this hook free?

        - [x] None
          > A tensor of zeros is as large as any other. `param.grad = None` frees it.
        - [ ] All of the gradient
          > The tensor stays: a zero takes 4 bytes in fp32, like any number.
        - [ ] (N − 1)/N of it
          > It would be, if the rank kept only its shard. Here it keeps the whole tensor.""")),
    Question(id="saved-in-fp32", ask=saved_in_fp32),
    Question(id="why-in-backward", ask=Choice.read("""
        Why does ZeRO-2 reduce during backward, and not right after it?

        - [x] After backward the whole gradient is in memory
          > ZeRO-2 avoids this moment: it frees each gradient during backward.
        - [ ] After backward the gradients do not exist any more
          > They stay in `param.grad` until the program frees them.
        - [ ] Fewer bytes have to be sent
          > The bytes are the same. Sending them while backward computes saves time.
        - [ ] Adam needs the gradients during backward
          > The optimizer runs only in `step`.""")),
    Question(id="sent-with-micro-batches", ask=sent_with_micro_batches),
    Question(id="more-than-stage-1", ask=Choice.read("""
        A training with large activations has a higher peak with ZeRO-2 than with ZeRO-1. What helps?

        - [x] Smaller buckets
          > The first bucket gets its full size while all activations are in memory.
        - [ ] Larger buckets
          > Two or three buckets are in memory during backward, and larger buckets take more.
        - [ ] More buckets being sent at a time
          > Each bucket keeps its whole gradient until it has been sent.
        - [ ] More micro-batches of the same size
          > Each micro-batch has the same peak.""")),
    Question(id="norm-of-all", ask=norm_of_all),
    Question(id="no-gradient-on-one-rank", ask=Choice.read("""
        On rank 2, no parameter of a bucket was used, so the bucket has no gradient there. What does rank 2 do about
        this bucket?

        - [x] It calls the reduce-scatter in its turn, with zeros
          > Every rank has to call a collective. And the optimizer on rank 2 needs the average of its shard, to which
            the other ranks contribute.
        - [ ] Nothing
          > Then rank 2 makes one call too few, and its later calls meet the wrong calls of the other ranks, or none.
        - [ ] It calls the reduce-scatter of the next bucket
          > Then its next bucket is summed with this bucket of the other ranks.
        - [ ] It sends its parameters instead
          > The parameters would be added to the gradients of the other ranks.""")),
    Question(id="what-is-whole", ask=Choice.read("""
        Which of these does a rank hold whole at some moment of a step with ZeRO-2?

        - [x] Its parameters
          > ZeRO-2 does not shard the parameters.
        - [x] The gradients of a bucket
          > From the first gradient until the reduce-scatter is finished.
        - [ ] The gradients of the model
          > A rank holds them whole only if the buckets that are in memory at one time contain all parameters.
        - [ ] Adam's moments
          > A rank has only the moments of its shards.""", several=True)),
))
