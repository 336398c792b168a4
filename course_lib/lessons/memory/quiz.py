"""The quiz of lesson 02."""

import random
from fractions import Fraction

from ...quizzes import Choice, Numeric, Question, Quiz
from .data import OPTIMIZER, training_bytes
from .rank_bytes import rank_bytes

GIB = 2**30


def total(psi: int, precision: str) -> int:
    """Return the bytes of all model states."""
    return sum(training_bytes(psi, precision).values())


def copied_share(world_size: int) -> Fraction:
    """Return the share of copies in what all ranks of data parallel hold together."""
    return Fraction(world_size - 1, world_size)


def state_of_adam(rng: random.Random) -> Numeric:
    billions = rng.choice([1, 3, 7, 13, 30])
    states = training_bytes(billions * 10**9, "fp32")
    return Numeric(
        prompt=f"A model of {billions}B parameters trains in fp32 with AdamW. How much does the optimizer keep?",
        expected=states["first moment"] + states["second moment"],
        unit="GB",
        right="AdamW keeps two moments of 4 bytes for each parameter: twice the model.",
        wrong="Multiply the numbers that AdamW keeps for each parameter by the bytes of each number.",
        mistakes=(
            (sum(states.values()), "That is the total. It contains parameters and gradients, too."),
            (states["first moment"], "That is only one of the two moments."),
            (12e9 * billions, "Mixed precision keeps 12 bytes, with master weights. fp32 has none."),
            (2e9 * billions, "AdamW keeps two numbers for each parameter, and each takes 4 bytes."),
        ),
    )


def calculator(rng: random.Random) -> Numeric:
    billions = rng.choice([2, 7, 13, 40, 70])
    psi = billions * 10**9
    return Numeric(
        prompt=f"A model of {billions}B parameters trains in mixed precision with Adam. It also sums its gradients in "
        "fp32, in addition to the gradients of 16 bits. How much do the model states take?",
        expected=total(psi, "mixed_fp32_accumulation"),
        unit="GB",
        right="2 + 2 + 4 + 4 + 4 + 4 = 20 bytes for each parameter.",
        wrong="Write down the bytes of each of the six parts for one parameter, and add them.",
        mistakes=(
            (16 * psi, "That is plain mixed precision. The sums in fp32 add 4 bytes."),
            (18 * psi, "The sums do not replace the gradients of 16 bits. A rank holds both."),
            (12 * psi, "The optimizer keeps 12 bytes. Add parameters, gradients and sums."),
            (8 * psi, "8 bytes are only parameters and gradients. Add what the optimizer keeps."),
        ),
    )


def in_gib(rng: random.Random) -> Numeric:
    gigabytes = rng.choice([16, 24, 40, 80, 112, 140])
    nbytes = gigabytes * 10**9
    return Numeric(
        prompt=f"A calculation says {gigabytes} GB. How many GiB is that?",
        expected=Fraction(nbytes),
        unit="GiB",
        right="A GiB is 2³⁰ bytes, so the number of GiB is about 7 % smaller.",
        wrong="Convert the GB to bytes, 10⁹ each, then divide by 2³⁰.",
        mistakes=(
            (gigabytes * GIB, "That is the same number. A GiB is 2³⁰ bytes, and not 10⁹."),
            (gigabytes * GIB**2 / 10**9, "A GiB is the larger unit, so the number is smaller: divide."),
            (gigabytes * GIB / 1.024, "A GiB is 1024³ bytes: apply the factor 1.024 three times."),
        ),
    )


def copies(rng: random.Random) -> Numeric:
    world_size = rng.choice([4, 5, 8, 10, 16, 20])
    return Numeric(
        prompt=f"{world_size} ranks train in plain data parallel. Of the model states that they hold together, what "
        "share is copies?",
        expected=copied_share(world_size),
        unit="%",
        right="The model states of one rank are enough. The states of the other N − 1 ranks are copies.",
        wrong="All ranks hold the same. Count the ranks that hold nothing but copies.",
        mistakes=(
            (1 / world_size, "That is the share of originals."),
            (1.0, "One rank holds originals, so not everything is a copy."),
        ),
    )


def stage_1(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 7, 13, 20]), rng.choice([4, 8, 16])
    psi = billions * 10**9
    moments_only = rank_bytes(psi, "mixed", world_size, ["first moment", "second moment"])
    return Numeric(
        prompt=f"{world_size} ranks train {billions}B parameters in mixed precision with Adam, and shard everything "
        "that the optimizer keeps. How large are the model states on one rank?",
        expected=sum(rank_bytes(psi, "mixed", world_size, OPTIMIZER).values()),
        unit="GiB",
        right="For each parameter, each rank holds 4 bytes of parameters and gradients, and 12/N bytes of the rest.",
        wrong="Every rank holds some parts whole, and 1/N of the others. Check the unit: GiB.",
        mistakes=(
            (
                sum(moments_only.values()),
                "That is 8 + 8/N bytes, as in fp32. In mixed precision the masters belong to the optimizer, "
                "and are sharded, too: 4 + 12/N.",
            ),
            (total(psi, "mixed"), "That is data parallel, where nothing is sharded."),
            (total(psi, "mixed") / world_size, "You shard everything. Parameters and gradients are whole."),
        ),
    )


QUIZ = Quiz(name="memory", title="Where the memory goes", questions=(
    Question(id="when-state-comes", ask=Choice.read("""
        When does Adam allocate its moments?

        - [x] In the first `optimizer.step()`
          > Adam makes them when it sees the first gradient. So the second step can have a higher peak than the
            first.
        - [ ] When `torch.optim.Adam(...)` is made
          > At that point it only remembers which parameters it updates. In your run, the optimizer held 0 bytes until
            the first step.
        - [ ] In the first `loss.backward()`
          > Backward makes gradients, and does not call the optimizer.
        - [ ] In every step, again
          > Moments are running averages, so the optimizer keeps them from step to step.""")),
    Question(id="state-of-adam", ask=state_of_adam),
    Question(id="what-grows-with-the-batch", ask=Choice.read("""
        You double the batch. Which of these take more memory?

        - [x] Activations
          > Forward keeps activations for each sequence of the batch.
        - [ ] Gradients of the parameters
          > They are summed over the batch, so they are always as large as the parameters.
        - [x] The inputs
          > They double, though they are small.
        - [ ] Adam's moments
          > Adam keeps two numbers for each parameter, for any batch.""", several=True)),
    Question(id="calculator", ask=calculator),
    Question(id="what-mixed-precision-saves", ask=Choice.read("""
        A model trained in fp32, and now trains in mixed precision, with Adam and no fp32 sums of gradients. How do the
        bytes of its model states change?

        - [x] They stay the same
          > They stay at 16 bytes for each parameter: the master weights cost what the 16-bit parameters and gradients
            save. Activations do shrink.
        - [ ] They are halved
          > That needs 16 bits for everything. The optimizer keeps fp32 masters and moments.
        - [ ] They shrink by a quarter
          > Parameters and gradients save 4 bytes of 16, and the masters add 4.
        - [ ] They grow by a quarter
          > Sums of gradients in fp32 do that: 20 bytes.""")),
    Question(id="in-gib", ask=in_gib),
    Question(id="what-is-no-copy", ask=Choice.read("""
        Ranks of plain data parallel have just made a step. Which of these differed from rank to rank during the step?

        - [x] The part of the batch
          > Each rank trains on its own part.
        - [x] The activations
          > Each rank computes them from its own part of the batch.
        - [ ] The gradients after the all-reduce
          > The gradients differ before it. After it, all ranks have the same mean.
        - [ ] Adam's moments
          > Each rank computes them from the same averaged gradients, so they are equal.
        - [ ] The parameters
          > The parameters were equal at the beginning, and all ranks made the same steps.""", several=True)),
    Question(id="copies", ask=copies),
    Question(id="stage-1", ask=stage_1),
))
