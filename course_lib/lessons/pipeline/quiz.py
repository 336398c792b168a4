"""The quiz of the lesson on pipeline parallel."""

import random

from ...quizzes import Choice, Numeric, Question, Quiz


def bubble_percent(rng: random.Random) -> Numeric:
    ranks, micro_batches = rng.choice([(4, 8), (8, 8), (8, 32), (16, 16)])
    share = (ranks - 1) / (micro_batches + ranks - 1)
    return Numeric(
        prompt=f"A pipeline of {ranks} ranks, which all compute equally long, takes {micro_batches} micro-batches a "
        "step through 1F1B. Messages take no time. Which share of the step does a rank wait?",
        expected=share,
        unit="%",
        tolerance=0.02,
        right="A rank waits for P − 1 micro-batches and works for M: (P − 1)/(M + P − 1).",
        wrong="Count in micro-batches: a rank works for M of them, and waits for P − 1.",
        mistakes=(
            ((ranks - 1) / micro_batches, "That is waiting over working. Divide by the whole step."),
            (ranks / (micro_batches + ranks), "A rank does not wait for itself: P − 1, not P."),
        ),
    )


def micro_batches_kept(rng: random.Random) -> Numeric:
    ranks, micro_batches = rng.choice([(4, 16), (8, 32), (8, 64)])
    return Numeric(
        prompt=f"{ranks} ranks take {micro_batches} micro-batches through 1F1B. Of how many micro-batches "
        "does rank 0 keep the activations, at most?",
        expected=ranks,
        tolerance=0,
        right="Rank 0 goes P − 1 forward, and one more before the first gradient is back.",
        wrong="How many micro-batches does rank 0 take forward before the gradient of the first comes back?",
        mistakes=(
            (micro_batches, "So many are kept if all forwards come first."),
            (ranks - 1, "Nearly: one more goes forward before the first backward."),
            (1, "That is the last rank, which can go back at once."),
        ),
    )


def bytes_sent(rng: random.Random) -> Numeric:
    batch, length, width, micro_batches = rng.choice([(1, 4096, 8192, 16), (2, 2048, 4096, 8)])
    one = 2 * batch * length * width
    return Numeric(
        prompt=f"A rank in the middle of a pipeline takes {micro_batches} micro-batches of {batch} × {length} tokens "
        f"through its part, width {width}, in bf16. How much does it send in a step?",
        expected=2 * micro_batches * one,
        unit="MB",
        right="For each micro-batch, it sends activations to the next rank, and gradients to the rank before.",
        wrong="Count the messages of one micro-batch: one forward, one backward. Each is batch × length × width.",
        mistakes=(
            (micro_batches * one, "That is forward only. Gradients of the same size go back."),
            (2 * one, "That is one micro-batch."),
            (4 * micro_batches * one, "bf16 has 2 bytes an element."),
        ),
    )


QUIZ = Quiz(name="pipeline", title="Pipeline parallel", questions=(
    Question(id="what-travels", ask=Choice.read("""
        What travels between the ranks of a pipeline?

        - [x] Activations forward, their gradients back
          > Each parameter stays on its rank, and so does its gradient.
        - [ ] Parameters, before each part computes
          > That is ZeRO-3.
        - [ ] Partial sums of each layer's output
          > That is tensor parallel. A part of a pipeline has whole layers.
        - [ ] Gradients of the parameters
          > They travel only if you add data parallel.""")),
    Question(id="bubble", ask=bubble_percent),
    Question(id="less-bubble", ask=Choice.read("""
        What makes the bubble smaller?

        - [x] More micro-batches
          > Each rank works more, and waits as long as before.
        - [x] Interleaving: several parts a rank
          > Each part is shorter, so the next rank starts sooner. It sends more.
        - [ ] 1F1B instead of all forward, all backward
          > The bubble is the same. 1F1B keeps fewer activations.
        - [ ] More ranks
          > Then more ranks wait for the first micro-batch.""", several=True)),
    Question(id="kept", ask=micro_batches_kept),
    Question(id="memory-of-1f1b", ask=Choice.read("""
        Under 1F1B, with more micro-batches than ranks, you double their number. Each has the same size as before. What
        happens to the peak of rank 0's activations?

        - [x] Nothing
          > It keeps at most P micro-batches.
        - [ ] It doubles
          > It would double if all forwards came first.
        - [ ] It is halved
          > The micro-batches have the same size as before.""")),
    Question(id="sent", ask=bytes_sent),
    Question(id="leaf", ask=Choice.read("""
        A rank receives its input and forgets `x.requires_grad_()`. What follows?

        - [x] `x.grad` is None, and there is nothing to send back
          > A received tensor is a leaf without a history. Ask for its gradient.
        - [ ] The gradients of this rank's parameters are missing
          > They are computed: the parameters ask for theirs.
        - [ ] Backward goes on in the sender
          > Autograd ends where the rank does.""")),
    Question(id="which-axis", ask=Choice.read("""
        Tensor, data and pipeline parallel on nodes with 8 GPUs each: which may cross the slower network between nodes
        with the least loss?

        - [x] Pipeline: few bytes, between two ranks only
          > There is one message of activations for each border and micro-batch.
        - [ ] Tensor: its messages are smallest
          > It has two collectives a block in each pass, and nothing computes meanwhile.
        - [ ] It makes no difference
          > The three differ in bytes a step, and in what can be hidden under computing.""")),
))
