"""The quiz of lesson 03."""

from __future__ import annotations

import random
from fractions import Fraction

from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register


def gradient_bytes_sent(params: int, world_size: int, bytes_per_gradient: int, all_reduces: int = 1) -> Fraction:
    """What each rank sends in a step: a ring all-reduce of the gradients, 2(N − 1)/N of their bytes."""
    return all_reduces * 2 * Fraction(world_size - 1, world_size) * params * bytes_per_gradient


def bucket_count(layers: int, layer_bytes: int, bucket_bytes: int) -> int:
    """How many buckets hold `layers` parameters of one size, each closed as soon as it has `bucket_bytes`."""
    in_one = -(-bucket_bytes // layer_bytes)
    return -(-layers // in_one)


def averaged_value(rng: random.Random) -> Numeric:
    gradients = rng.sample(range(-9, 10), 4)
    while sum(gradients) in (0, *gradients) or sum(gradients) % 4 == 0:
        gradients = rng.sample(range(-9, 10), 4)
    mean = Fraction(sum(gradients), 4)
    own = gradients[1]
    return Numeric(
        prompt=f"On ranks 0 to 3 a parameter has the gradients {', '.join(map(str, gradients))}. What does "
        "`param.grad` hold on rank 1 after the gradients were averaged?",
        expected=mean,
        tolerance=0,
        right="The mean of all four, and the same on every rank.",
        wrong="Add up the four gradients, and divide by the number of ranks.",
        mistakes=tuple(
            Mistake.near(value, feedback)
            for value, feedback in (
                (sum(gradients), "That is the sum. The loss of the batch is a mean, and so is its gradient."),
                (own, "That is rank 1's own gradient, as before."),
                (own / 4, "That is rank 1's own gradient, divided. The others' have to be added first."),
            )
            if value != mean and value != 0
        ),
    )


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
            Mistake.near(float(sent / 2), "That is a reduce-scatter. An all-reduce sends as much again to gather."),
            Mistake.near(float(sent / 4), "A gradient in fp32 has 4 bytes, and an all-reduce has two phases."),
            Mistake.near(
                billions * 4e9, "That is how large the gradients are. A ring all-reduce sends 2(N − 1)/N of it."
            ),
            Mistake.near(billions * 8e9, "Nearly: each of the two phases leaves out one of the N chunks."),
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
        right="One all-reduce of the accumulated gradients is enough; all others are for nothing.",
        wrong="How many backwards communicate, and how many would have to?",
        mistakes=(
            Mistake.near(float(micro_batches * sent), "That is all that it sends. One of these is needed."),
            Mistake.near(
                float(sent), "That is what one all-reduce sends, which is needed. The question is what is too much."
            ),
            Mistake.near(
                float((micro_batches - 1) * sent / 2),
                "An all-reduce sends 2(N − 1)/N of its tensor: it has two phases.",
            ),
        ),
    )


def buckets(rng: random.Random) -> Numeric:
    layers, megabytes, bucket = rng.choice([(24, 10, 25), (30, 8, 25), (48, 10, 25), (36, 16, 25), (20, 15, 40)])
    count = bucket_count(layers, megabytes, bucket)
    return Numeric(
        prompt=f"A model has {layers} parameters of {megabytes} MB each. A bucket is closed as soon as it has {bucket} "
        "MB or more. How many all-reduces does a backward make?",
        expected=count,
        tolerance=0,
        right="A bucket takes parameters until it has enough, and a parameter is never cut.",
        wrong="How many parameters does it take to have that many MB or more?",
        mistakes=tuple(
            Mistake.near(value, feedback)
            for value, feedback in (
                (layers, "That is one for each parameter, as without buckets."),
                (
                    -(-layers // (bucket // megabytes)),
                    "So many if a bucket may not grow past its size. Here it is closed as soon as it *has* its size.",
                ),
                (-(-layers * megabytes // bucket), "So many if parameters were cut at the boundary. They stay whole."),
            )
            if value != count
        ),
    )


QUIZ = register(
    Quiz(
        name="data_parallel",
        title="Data parallel",
        questions=(
            Question(id="averaged-value", ask=averaged_value),
            Question(
                id="sum-with-sgd",
                ask=Choice(
                    prompt="Eight ranks forget to divide: they step with the sum of the gradients. The optimizer is "
                    "SGD with learning rate 0.1. Which run in one process does the same?",
                    options=(
                        Option(
                            text="SGD with learning rate 0.8, on the whole batch",
                            right=True,
                            feedback="The sum is eight times the mean, and an SGD step is the gradient times the rate.",
                        ),
                        Option(
                            text="SGD with learning rate 0.1, on the whole batch",
                            feedback="That is what the mean does. The sum is eight times as long.",
                        ),
                        Option(
                            text="SGD with learning rate 0.0125, on the whole batch",
                            feedback="The step becomes longer, not shorter.",
                        ),
                        Option(
                            text="SGD with learning rate 0.1, on rank 0's part of the batch",
                            feedback="All parts are in the sum. It is the length of the step that is wrong.",
                        ),
                    ),
                ),
            ),
            Question(
                id="sum-with-adam",
                ask=Choice(
                    prompt="The same with Adam: sums in place of means. Why may the loss curve look as it should?",
                    options=(
                        Option(
                            text="Adam divides by the size of past gradients, so a constant factor nearly cancels",
                            right=True,
                            feedback="Up to its epsilon. Clipping by a norm, though, sees gradients that are N times "
                            "as long, and so does whatever you log.",
                        ),
                        Option(
                            text="Adam averages over ranks by itself",
                            feedback="An optimizer knows nothing of ranks. It sees `param.grad`.",
                        ),
                        Option(
                            text="Adam's momentum is an average, so sums become means",
                            feedback="It is an average over steps. A factor that every step has stays in it.",
                        ),
                        Option(
                            text="It cannot: the loss would explode as with SGD",
                            feedback="The lesson measured it. The length of an Adam step hardly depends on the length "
                            "of the gradient.",
                        ),
                    ),
                ),
            ),
            Question(
                id="what-is-broadcast",
                ask=Choice(
                    prompt="Which of these have to be made equal on all ranks at the start, if each rank set another "
                    "seed?",
                    several=True,
                    options=(
                        Option(
                            text="Trainable parameters",
                            right=True,
                            feedback="Equal gradients keep a difference as it is; they never remove it.",
                        ),
                        Option(
                            text="Frozen parameters",
                            right=True,
                            feedback="They take part in forward, and nothing changes them later.",
                        ),
                        Option(
                            text="Buffers, such as running statistics",
                            right=True,
                            feedback="They are part of what the model computes.",
                        ),
                        Option(
                            text="Gradients",
                            feedback="There are none yet, and later they are averaged in every step.",
                        ),
                        Option(
                            text="The state of an optimizer that was just made",
                            feedback="It is empty or zero. From equal gradients every rank computes equal states.",
                        ),
                    ),
                ),
            ),
            Question(id="bytes-a-step", ask=bytes_a_step),
            Question(id="bytes-with-accumulation", ask=bytes_with_accumulation),
            Question(id="bucket-count", ask=buckets),
            Question(
                id="unused-parameter",
                ask=Choice(
                    prompt="In one step, one of four ranks has no gradient for a parameter. What is right?",
                    options=(
                        Option(
                            text="It takes part in the all-reduce with zeros, and uses the average like the others",
                            right=True,
                            feedback="Its part of the batch does not depend on the parameter: its gradient is 0.",
                        ),
                        Option(
                            text="It skips the all-reduce, since it has nothing to bring",
                            feedback="The others wait for it, or meet it in its next call: a hang, or wrong numbers.",
                        ),
                        Option(
                            text="It takes part with zeros, and leaves its own parameter as it is",
                            feedback="Then it is the only rank whose parameter does not move, and the ranks drift "
                            "apart.",
                        ),
                        Option(
                            text="The others divide by three",
                            feedback="The loss is a mean over all four parts. That one of them has the gradient 0 does "
                            "not change the divisor.",
                        ),
                    ),
                ),
            ),
            Question(
                id="bitwise",
                ask=Choice(
                    prompt="Your data-parallel run and one process on the whole batch differ by 1e-7 of a gradient in "
                    "fp32. How do you find out whether that is rounding or a mistake?",
                    options=(
                        Option(
                            text="Run both in float64: rounding shrinks with the dtype, and a mistake stays",
                            right=True,
                            feedback="fp32 has about 7 digits, float64 about 16. Only rounding follows the dtype.",
                        ),
                        Option(
                            text="Raise the tolerance until the test passes",
                            feedback="Then the test says whatever you want, and a mistake of that size passes as well.",
                        ),
                        Option(
                            text="It is a mistake: the same mathematics gives the same bits",
                            feedback="Sums in another order are rounded in other places. In floating point that is "
                            "other bits from the same mathematics.",
                        ),
                        Option(
                            text="It is rounding: so small a difference cannot be a mistake",
                            feedback="A mistake in a rare branch can be as small as you like at first. Measure it.",
                        ),
                    ),
                ),
            ),
        ),
    )
)
