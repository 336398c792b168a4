"""The quiz of lesson 03."""

import random
from fractions import Fraction

from ...quizzes import Choice, Numeric, Question, Quiz


def gradient_bytes_sent(params: int, world_size: int, bytes_per_gradient: int, all_reduces: int = 1) -> Fraction:
    """Return what each rank sends in a step: a ring all-reduce of the gradients, 2(N − 1)/N of their bytes."""
    return all_reduces * 2 * Fraction(world_size - 1, world_size) * params * bytes_per_gradient


def bucket_count(layers: int, layer_bytes: int, bucket_bytes: int) -> int:
    """Return the number of buckets for `layers` parameters of one size."""
    in_one = -(-bucket_bytes // layer_bytes)
    return -(-layers // in_one)


def averaged_value(rng: random.Random) -> Numeric:
    gradients = rng.sample(range(-9, 10), 4)
    while not _distinct(gradients):
        gradients = rng.sample(range(-9, 10), 4)
    mean, own = Fraction(sum(gradients), 4), gradients[1]
    return Numeric(
        prompt=f"On ranks 0 to 3 a parameter has the gradients {', '.join(map(str, gradients))}. What does "
        "`param.grad` hold on rank 1 after the gradients were averaged?",
        expected=mean,
        tolerance=0,
        right="The mean of all four, and the same on every rank.",
        wrong="Add up the four gradients, and divide by the number of ranks.",
        mistakes=(
            (sum(gradients), "That is the sum. The loss of the batch is a mean, and so is its gradient."),
            (own, "That is rank 1's own gradient, as before."),
            (own / 4, "That is rank 1's own gradient, divided. Add the other ranks' gradients first."),
        ),
    )


def _distinct(gradients: list[int]) -> bool:
    """Return whether the answer is no whole number, and differs from the answers of mistakes, which differ, too."""
    total, own = sum(gradients), gradients[1]
    return total % 4 != 0 and total not in gradients and len({total / 4, total, own, own / 4}) == 4


def bytes_a_step(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([1, 3, 7]), rng.choice([4, 8, 16])
    sent = gradient_bytes_sent(billions * 10**9, world_size, 4)
    return Numeric(
        prompt=f"A model of {billions} B parameters trains on {world_size} ranks, with gradients in fp32. How much "
        "does each rank send in a step, on a ring?",
        expected=sent,
        unit="GB",
        right="2(N − 1)/N of the gradients' bytes, however they are cut into buckets.",
        wrong="All gradients are all-reduced once: 2(N − 1)/N of their bytes.",
        mistakes=(
            (sent / 2, "A reduce-scatter sends this much. An all-reduce sends twice as much."),
            (sent / 4, "A gradient in fp32 has 4 bytes, and an all-reduce has two phases."),
            (billions * 4e9, "The gradients have this many bytes. A ring sends 2(N − 1)/N of them."),
            (billions * 8e9, "Nearly: in each of the two phases, a rank sends N − 1 of the N chunks."),
        ),
    )


def bytes_with_accumulation(rng: random.Random) -> Numeric:
    millions, world_size, micro_batches = rng.choice([100, 250, 500]), rng.choice([4, 8]), rng.choice([4, 5, 8])
    sent = gradient_bytes_sent(millions * 10**6, world_size, 4)
    return Numeric(
        prompt=f"{world_size} ranks train a model of {millions} M parameters with fp32 gradients, and accumulate "
        f"{micro_batches} micro-batches before each step. `no_sync()` is forgotten. How much *more* does each rank "
        "send in a step than is needed?",
        expected=(micro_batches - 1) * sent,
        unit="GB",
        right="One all-reduce of the accumulated gradients is enough; the others are not needed.",
        wrong="Count the micro-batches that communicate, and subtract the one that has to.",
        mistakes=(
            (micro_batches * sent, "Each rank sends this much. One of these all-reduces is needed."),
            (sent, "One all-reduce sends this much, and it is needed. The others are not."),
            ((micro_batches - 1) * sent / 2, "An all-reduce has two phases: 2(N − 1)/N."),
        ),
    )


def buckets(rng: random.Random) -> Numeric:
    layers, megabytes, bucket = rng.choice([(24, 10, 25), (30, 9, 25), (48, 10, 25), (36, 11, 25), (20, 15, 40)])
    count = bucket_count(layers, megabytes, bucket)
    return Numeric(
        prompt=f"A model has {layers} parameters of {megabytes} MB each. A bucket is closed as soon as it has {bucket} "
        "MB or more. How many all-reduces does one backward pass make?",
        expected=count,
        tolerance=0,
        right="A bucket takes parameters until it is full, and a parameter is never cut.",
        wrong="How many parameters have that many MB or more together?",
        mistakes=tuple(
            mistake
            for mistake in (
                (layers, "That is one for each parameter, as without buckets."),
                (-(-layers // (bucket // megabytes)), "Right if a bucket stays below its size. Here it reaches it."),
                (-(-layers * megabytes // bucket), "Right if parameters were cut. Here they stay whole."),
            )
            if mistake[0] != count
        ),
    )


QUIZ = Quiz(name="data_parallel", title="Data parallel", questions=(
    Question(id="averaged-value", ask=averaged_value),
    Question(id="sum-with-sgd", ask=Choice.read("""
        Eight ranks forget to divide: they step with the sum of the gradients. The optimizer is SGD with learning rate
        0.1. Which run in one process does the same?

        - [x] SGD with learning rate 0.8, on the whole batch
          > The sum is eight times the mean, and an SGD step is the gradient times the rate.
        - [ ] SGD with learning rate 0.1, on the whole batch
          > The mean gives this step. The sum is eight times as long.
        - [ ] SGD with learning rate 0.0125, on the whole batch
          > The step becomes longer, not shorter.
        - [ ] SGD with learning rate 0.1, on rank 0's part of the batch
          > The sum contains all parts of the batch. Only the length of the step is wrong.""")),
    Question(id="sum-with-adam", ask=Choice.read("""
        They use Adam, and still step with the sum. Why may the loss curve look right?

        - [x] Adam divides by the size of past gradients, so a constant factor nearly cancels
          > But gradient clipping and your logs see gradients that are N times as long.
        - [ ] Adam averages over ranks by itself
          > An optimizer does not know about ranks. It reads `param.grad`.
        - [ ] Adam's momentum is an average, so sums become means
          > It is an average over steps. A factor in every step stays in the average.
        - [ ] It cannot: the loss would explode as with SGD
          > The length of an Adam step hardly depends on the length of the gradient.""")),
    Question(id="what-is-broadcast", ask=Choice.read("""
        Each rank set a different seed. Which of these have to be made equal at the start?

        - [x] Trainable parameters
          > Equal gradients keep a difference between ranks; they never remove it.
        - [x] Frozen parameters
          > Forward uses them, and nothing changes them later.
        - [x] Buffers that were drawn at random
          > The model computes with them, and no gradient ever makes them equal.
        - [ ] Gradients
          > There are none yet, and later they are averaged in every step.
        - [ ] The state of an optimizer that was just made
          > It is empty or zero. From equal gradients every rank computes equal states.""", several=True)),
    Question(id="bytes-a-step", ask=bytes_a_step),
    Question(id="bytes-with-accumulation", ask=bytes_with_accumulation),
    Question(id="bucket-count", ask=buckets),
    Question(id="unused-parameter", ask=Choice.read("""
        In one step, one of four ranks has no gradient for a parameter. What is right?

        - [x] It takes part in the all-reduce with zeros, and uses the average like the others
          > Its part of the batch does not depend on the parameter: its gradient is 0.
        - [ ] It skips the all-reduce, because it has no gradient
          > The others wait, or are matched with its next call: a hang, or wrong numbers.
        - [ ] It takes part with zeros, and leaves its own parameter as it is
          > Then its parameter is the only one that does not change: the ranks drift apart.
        - [ ] The others divide by three
          > The loss is a mean over all four parts, even if one gradient is 0.""")),
    Question(id="bitwise", ask=Choice.read("""
        Your data-parallel run and one process on the whole batch differ by 1e-7 of a gradient in fp32. How do you find
        out whether that is rounding or a mistake?

        - [x] Run both in float64: rounding shrinks with the dtype, and a mistake stays
          > fp32 has about 7 digits, float64 about 16. Only rounding follows the dtype.
        - [ ] Raise the tolerance until the test passes
          > Then the test passes with a mistake of that size, too.
        - [ ] It is a mistake: the same mathematics gives the same bits
          > A sum in a different order is rounded differently, so its bits can differ.
        - [ ] It is rounding: so small a difference cannot be a mistake
          > A mistake in a rare branch can be very small at first. Measure it.""")),
))
