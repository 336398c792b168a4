"""The quiz of lesson 02."""

from __future__ import annotations

import random
from fractions import Fraction

from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register
from .mixed_precision import training_bytes
from .rank_bytes import OPTIMIZER, rank_bytes

GIB = 2**30


def total(psi: int, precision: str) -> int:
    """Bytes of all model states."""
    return sum(training_bytes(psi, precision).values())


def copied_share(world_size: int) -> Fraction:
    """The share of what all ranks of data parallel hold that is a copy."""
    return Fraction(world_size - 1, world_size)


def state_of_adam(rng: random.Random) -> Numeric:
    billions = rng.choice([1, 3, 7, 13, 30])
    states = training_bytes(billions * 10**9, "fp32")
    return Numeric(
        prompt=f"A model of {billions}B parameters trains all in fp32 with AdamW. How much does the optimizer keep?",
        expected=states["momentum"] + states["variance"],
        unit="GB",
        right="Two moments of 4 bytes for each parameter: twice the model.",
        wrong="How many numbers does AdamW keep for each parameter, and how many bytes has each?",
        mistakes=(
            Mistake.near(sum(states.values()), "That is all: parameters and gradients are in it, too."),
            Mistake.near(states["momentum"], "That is one of the two moments."),
            Mistake.near(12e9 * billions, "12 bytes are those of mixed precision: there master weights come on top."),
            Mistake.near(2e9 * billions, "Two numbers for each parameter, but each has 4 bytes."),
        ),
    )


def calculator(rng: random.Random) -> Numeric:
    billions = rng.choice([2, 7, 13, 40, 70])
    psi = billions * 10**9
    return Numeric(
        prompt=f"A model of {billions}B parameters trains in mixed precision with Adam, and sums its gradients in fp32 "
        "beside those of 16 bits. How much do the model states take?",
        expected=total(psi, "mixed_fp32_accumulation"),
        unit="GB",
        right="2 + 2 + 4 + 4 + 4 + 4 = 20 bytes for each parameter.",
        wrong="Write down the bytes of each part for one parameter: there are six parts.",
        mistakes=(
            Mistake.near(16 * psi, "That is plain mixed precision. The sums in fp32 are another 4 bytes."),
            Mistake.near(18 * psi, "The sums do not replace the gradients of 16 bits: both are held."),
            Mistake.near(12 * psi, "12 bytes are the optimizer's share: masters, momentum and variance."),
            Mistake.near(8 * psi, "8 bytes are parameters and gradients alone. Add what the optimizer keeps."),
        ),
    )


def in_gib(rng: random.Random) -> Numeric:
    gigabytes = rng.choice([16, 24, 40, 80, 112, 140])
    nbytes = gigabytes * 10**9
    return Numeric(
        prompt=f"A calculation says {gigabytes} GB. How many GiB is that?",
        expected=Fraction(nbytes),
        unit="GiB",
        right="A GiB is 2³⁰ bytes, so there are about 7 % fewer of them.",
        wrong="Turn the GB into bytes, 10⁹ each, then divide by 2³⁰.",
        mistakes=(
            Mistake.near(gigabytes * GIB, "The same number would do only if a GiB were 10⁹ bytes. It is 2³⁰."),
            Mistake.near(
                gigabytes * GIB**2 / 10**9, "A GiB is the larger unit, so there are fewer: divide, do not multiply."
            ),
            Mistake.near(gigabytes * GIB / 1.024, "A GiB is 1024³ bytes: the factor 1.024 comes three times."),
        ),
    )


def copies(rng: random.Random) -> Numeric:
    world_size = rng.choice([4, 5, 8, 10, 16, 20])
    return Numeric(
        prompt=f"{world_size} ranks train in plain data parallel. Which share of the model states that they hold "
        "together is copies?",
        expected=copied_share(world_size),
        unit="%",
        right="One rank's would be enough; those of the other N − 1 are copies.",
        wrong="All ranks hold the same. How many of them hold it for nothing?",
        mistakes=(
            Mistake.near(1 / world_size, "That is the share that is needed."),
            Mistake.near(1.0, "One rank holds originals.", tolerance=0.005),
        ),
    )


def stage_1(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 7, 13, 20]), rng.choice([4, 8, 16])
    psi = billions * 10**9
    moments_only = rank_bytes(psi, "mixed", world_size, ["momentum", "variance"])
    return Numeric(
        prompt=f"{world_size} ranks train {billions}B parameters in mixed precision with Adam, and share among them "
        "all that the optimizer keeps. How much does one rank hold?",
        expected=sum(rank_bytes(psi, "mixed", world_size, OPTIMIZER).values()),
        unit="GiB",
        right="4 bytes for each parameter are whole, and 12/N of a share.",
        wrong="Which bytes does every rank still hold, and which are divided by N? Mind the unit: GiB.",
        mistakes=(
            Mistake.near(
                sum(moments_only.values()),
                "You sharded 8 bytes; the fp32 master weights belong to the optimizer and are sharded too: 12.",
            ),
            Mistake.near(total(psi, "mixed"), "That is without sharing."),
            Mistake.near(total(psi, "mixed") / world_size, "You divided everything. Parameters and gradients stay."),
            Mistake.near(
                sum(rank_bytes(psi, "fp32", world_size, OPTIMIZER).values()),
                "You used the bytes of fp32: 4 + 4 + 8/N. Mixed precision has 2 + 2 + 12/N.",
            ),
        ),
    )


QUIZ = register(
    Quiz(
        name="memory",
        title="Where the memory goes",
        questions=(
            Question(
                id="when-state-comes",
                ask=Choice(
                    prompt="When does Adam take the memory of its moments?",
                    options=(
                        Option(
                            text="In the first `optimizer.step()`",
                            right=True,
                            feedback="It makes them when it meets a gradient for the first time. So the second step "
                            "needs more at its peak than the first.",
                        ),
                        Option(
                            text="When `torch.optim.Adam(...)` is made",
                            feedback="Then it only remembers which parameters it is for. In your run, the optimizer "
                            "held 0 bytes until the first step.",
                        ),
                        Option(
                            text="In the first `loss.backward()`",
                            feedback="That makes gradients. The optimizer has no part in backward.",
                        ),
                        Option(
                            text="In every step anew",
                            feedback="They have to be remembered from step to step: that is what they are for.",
                        ),
                    ),
                ),
            ),
            Question(id="state-of-adam", ask=state_of_adam),
            Question(
                id="what-grows-with-the-batch",
                ask=Choice(
                    prompt="You double the batch. Which of these take more memory?",
                    several=True,
                    options=(
                        Option(
                            text="Activations",
                            right=True,
                            feedback="Forward keeps them for each line of the batch.",
                        ),
                        Option(
                            text="Gradients of the parameters",
                            feedback="They are summed over the batch: always as large as the parameters.",
                        ),
                        Option(text="The inputs", right=True, feedback="Twice as many, though they are small."),
                        Option(
                            text="Adam's moments",
                            feedback="Two numbers for each parameter, whatever it is trained on.",
                        ),
                    ),
                ),
            ),
            Question(id="calculator", ask=calculator),
            Question(
                id="what-mixed-precision-saves",
                ask=Choice(
                    prompt="Instead of all in fp32, a model trains in mixed precision, with Adam and no fp32 sums of "
                    "gradients. What becomes of the bytes of its model states?",
                    options=(
                        Option(
                            text="They stay the same",
                            right=True,
                            feedback="16 bytes for each parameter: the master weights cost what the 16-bit parameters "
                            "and gradients save. Activations do shrink.",
                        ),
                        Option(
                            text="They are halved",
                            feedback="Only if everything had 16 bits. The optimizer keeps fp32 masters and moments.",
                        ),
                        Option(
                            text="They shrink by a quarter",
                            feedback="Parameters and gradients shrink by 4 bytes of 16, and 4 bytes of masters come.",
                        ),
                        Option(
                            text="They grow by a quarter",
                            feedback="That is with sums of gradients in fp32: 20 bytes.",
                        ),
                    ),
                ),
            ),
            Question(id="in-gib", ask=in_gib),
            Question(
                id="what-is-no-copy",
                ask=Choice(
                    prompt="Ranks of plain data parallel have just made a step. What does each hold, or has it held in "
                    "this step, that the others did not?",
                    several=True,
                    options=(
                        Option(text="Its part of the batch", right=True, feedback="That is what makes it useful."),
                        Option(
                            text="Its activations",
                            right=True,
                            feedback="They come of its own part of the batch.",
                        ),
                        Option(
                            text="Its gradients after the all-reduce",
                            feedback="Before it they are its own; afterwards all ranks have the same mean.",
                        ),
                        Option(
                            text="Adam's moments",
                            feedback="They come of the same gradients on each rank, so they are the same.",
                        ),
                        Option(
                            text="Its parameters",
                            feedback="They began alike and made the same steps.",
                        ),
                    ),
                ),
            ),
            Question(id="copies", ask=copies),
            Question(id="stage-1", ask=stage_1),
        ),
    )
)
