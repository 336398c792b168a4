"""The quiz of lesson 13."""

import math
import random
from fractions import Fraction

from ...quizzes import Choice, Numeric, Question, Quiz


def block_sent_bytes(tokens: int, width: int, world_size: int, element_bytes: int) -> Fraction:
    """Return the bytes that a rank sends for a block, forward and backward: four all-reduces of its activations."""
    return 4 * 2 * Fraction(world_size - 1, world_size) * tokens * width * element_bytes


def zero3_sent_elements(width: int, world_size: int) -> Fraction:
    """Return the elements that a rank sends for the same block under ZeRO-3: three times its 12 · width² weights."""
    return 3 * Fraction(world_size - 1, world_size) * 12 * width**2


def kept_bytes(tokens: int, width: int, world_size: int, *, sequence_parallel: bool) -> int:
    """Return the bytes of 16-bit activations, with dropout, that a block keeps without the core of the attention."""
    if sequence_parallel:
        return 34 * tokens * width // world_size
    return 10 * tokens * width + 24 * tokens * width // world_size


def least_width(world_size: int, flops_per_byte: int) -> Fraction:
    """Return the width from which a block computes as long as its all-reduces take, in 16 bits: 12 · width² weights."""
    return Fraction(world_size - 1, 3) * flops_per_byte


def volume(rng: random.Random) -> Numeric:
    tokens, width, world_size = rng.choice([2048, 4096]), rng.choice([4096, 8192]), rng.choice([4, 8])
    expected = block_sent_bytes(tokens, width, world_size, 2)
    return Numeric(
        prompt=f"A block of width {width} works on {tokens} tokens in bf16, tensor parallel on {world_size} ranks. How "
        "much does each rank send for this block in forward and backward together, on a ring?",
        expected=expected,
        unit="MB",
        right="There are two all-reduces in each pass, and a ring all-reduce sends 2(N − 1)/N of its tensor.",
        wrong="Attention and MLP make one all-reduce each in forward, and one each in backward, of [tokens, width].",
        mistakes=(
            (expected / 2, "That is forward only, one all-reduce in each pass, or sending each tensor once."),
            (expected / 4, "That is what a single all-reduce sends. Attention and MLP make one each, in each pass."),
            (expected * 2, "In bf16 an element has 2 bytes, not 4."),
            (16 * tokens * width, "Nearly: a ring sends (N − 1)/N of it."),
        ),
    )


def break_even(rng: random.Random) -> Numeric:
    width = rng.choice([1024, 2048, 4096, 8192])
    expected = zero3_sent_elements(width, 8) / block_sent_bytes(1, width, 8, 1)
    return Numeric(
        prompt=f"The matrices of a block of width {width} have 12 · {width}² elements. With how many tokens does "
        "tensor parallel send as much for this block as ZeRO-3 does, on the same number of ranks, with elements of the "
        "same size?",
        expected=expected,
        unit="tokens",
        right="4 · 2 · tokens · width = 3 · 12 · width². With more tokens, ZeRO-3 sends less.",
        wrong="ZeRO-3 sends the weights three times. Tensor parallel makes four all-reduces of [tokens, width]; each "
        "sends its tensor twice. Both times (N − 1)/N.",
        mistakes=(
            (9 * width, "You count each all-reduce once. A ring all-reduce sends its tensor twice."),
            (3 * width, "ZeRO-3 sends two all-gathers and one reduce-scatter: three times the weights."),
            (1.5 * width, "You count the weights once. ZeRO-3 sends them three times."),
        ),
    )


def activations(rng: random.Random) -> Numeric:
    tokens, width, world_size = rng.choice([2048, 4096]), rng.choice([4096, 8192]), rng.choice([2, 4, 8])
    expected = kept_bytes(tokens, width, world_size, sequence_parallel=False)
    return Numeric(
        prompt=f"Apart from the core of its attention, a block keeps 34 bytes for each element of its input. Tensor "
        f"parallel divides 24 of them by the number of ranks. How much of this does a block of width {width} keep for "
        f"{tokens} tokens on each of {world_size} ranks, without sequence parallel?",
        expected=expected,
        unit="MB",
        right="(10 + 24/N) bytes for each element. The 10 are the inputs of norms, the masks of dropout and the like.",
        wrong="Ten bytes for each element stay on every rank. The other 24 are divided.",
        mistakes=(
            (
                kept_bytes(tokens, width, world_size, sequence_parallel=True),
                "You divide all 34 bytes. This needs sequence parallel.",
            ),
            (34 * tokens * width, "Nothing is divided here. Tensor parallel divides 24 of the 34 bytes."),
            (24 * tokens * width / world_size, "Add the 10 bytes that every rank keeps."),
        ),
    )


def scores(rng: random.Random) -> Numeric:
    tokens, vocab, world_size = rng.choice([4096, 8192]), rng.choice([32_000, 128_000]), rng.choice([4, 8])
    expected = Fraction(4 * tokens * vocab, world_size)
    return Numeric(
        prompt=f"The head and the loss are cut along a vocabulary of {vocab:,}. How much do the fp32 scores of "
        f"{tokens} tokens take on each of {world_size} ranks?",
        expected=expected,
        unit="MB",
        right="Each rank has the scores of 1/N of the vocabulary, and no rank gathers them.",
        wrong="Each rank has [tokens, vocabulary / N] scores, of 4 bytes.",
        mistakes=(
            (4 * tokens * vocab, "Those are all scores. A rank has only its part of the vocabulary."),
            (expected / 2, "In fp32 a score has 4 bytes."),
            (12 * tokens, "That is what travels, three numbers for each token. The scores stay."),
        ),
    )


def clipped_norm(rng: random.Random) -> Numeric:
    cut, whole, expected = rng.choice([(3, 4, 5), (12, 5, 13), (8, 6, 10), (15, 8, 17)])
    tensor = rng.choice([2, 4, 8])
    return Numeric(
        prompt=f"On a mesh with {tensor} tensor ranks, all gradients of cut matrices together have the norm {cut}, "
        f"and all gradients of norms and biases, which the tensor ranks have whole, {whole}. What is the norm for "
        "clipping?",
        expected=expected,
        tolerance=0.001,
        right="It is the root of the sum of both squares. The copies on the tensor ranks count once.",
        wrong="Add the two squares. How often does a gradient count that several ranks have?",
        mistakes=(
            (
                math.sqrt(cut**2 + tensor * whole**2),
                "This is what a sum over all ranks gives. It counts the copies on every tensor rank.",
            ),
            (cut + whole, "Norms do not add up; their squares do."),
            (cut, "The parameters that every tensor rank has count as well."),
        ),
    )


def width(rng: random.Random) -> Numeric:
    world_size, flops_per_byte = rng.choice([8, 16, 32]), rng.choice([900, 1500, 2100])
    expected = least_width(world_size, flops_per_byte)
    return Numeric(
        prompt=f"A GPU computes {flops_per_byte:,} FLOPs while a link carries one byte: that is η · C / B. "
        "From which width on does computing a block take as long as its two all-reduces in forward, on a ring of "
        f"{world_size} tensor ranks, in 16 bits?",
        expected=expected,
        right="Both sides grow with the tokens, so only the width decides: h = (N − 1)/3 · η · C / B.",
        wrong="Two all-reduces send 8(N − 1)/N · h bytes for each token, and 12h² weights cost 24h²/N FLOPs.",
        mistakes=(
            (flops_per_byte, "That is the limit in tokens, for the gathers of ZeRO-3."),
            (world_size * flops_per_byte / 3, "Nearly: a ring sends (N − 1)/N of the bytes."),
            (expected / 2, "An all-reduce sends its tensor twice, in its two halves."),
            (expected / world_size, "A rank computes only 1/N of the block."),
        ),
    )


QUIZ = Quiz(name="tensor", title="Tensor and sequence parallel", questions=(
    Question(id="column-then-row", ask=Choice.read("""
        Why is the first matrix of an MLP cut by its output features, and the second by its input features?

        - [x] The output features of the first are the input features of the second, so nothing travels between them
          > Each rank has complete features for GELU, and one all-reduce follows the second.
        - [ ] The second matrix is smaller that way
          > Each rank has 1/N of a matrix with either cut.
        - [ ] GELU can be applied to summands, and the sum comes later
          > GELU is not linear: gelu(a + b) is not gelu(a) + gelu(b).
        - [ ] No collective is needed at all
          > The second matrix leaves a summand on each rank. An all-reduce adds them.""")),
    Question(id="no-sum-in-backward", ask=Choice.read("""
        You forget the all-reduce in backward at the entry of the parallel part. What do you see?

        - [x] The first loss is right. Later losses are wrong, and what every rank has whole differs from rank to rank
          > Each rank continues backward with its own part of the gradient.
        - [ ] The ranks wait for each other until the time limit ends the run
          > All ranks leave the same call out, so none of them waits.
        - [ ] The first loss is wrong
          > Forward does not depend on backward.
        - [ ] An error: the shapes do not fit
          > The summand of a gradient has the shape of the gradient.""")),
    Question(id="volume", ask=volume),
    Question(id="break-even", ask=break_even),
    Question(id="sequence-parallel-volume", ask=Choice.read("""
        You switch sequence parallel on. How do the bytes of activations that a rank sends change?

        - [x] They stay the same
          > Each all-reduce becomes a reduce-scatter and an all-gather: its two halves.
            Only if backward gathers again, as Megatron's does, are they a quarter more.
        - [ ] They double
          > There are twice as many calls, of half the bytes each.
        - [ ] They halve
          > A reduce-scatter sends half as much, but an all-gather follows.
        - [ ] They are divided by the number of ranks
          > Only the memory between the matrices is divided. The whole sequence still enters each pair.""")),
    Question(id="gradients-to-sum", ask=Choice.read("""
        Under sequence parallel, which gradients have to be summed over the tensor ranks?

        - [x] Those of a norm's weight
          > Every rank has it whole, and uses it for its own tokens only.
        - [x] Those of the bias after the second matrix of the MLP
          > It is added after the scatter, to this rank's tokens only.
        - [ ] Those of the first matrix of the MLP
          > Each rank has a different part of it, which sees the whole sequence.
        - [ ] Those of a head's query matrix
          > Only one rank has it, and it sees the whole sequence.""", several=True)),
    Question(id="always-shard", ask=Choice.read("""
        Which of these are Shard during the whole step, so that no rank ever has the whole?

        - [x] The matrices under tensor parallel
          > Each rank computes with its part, and the ranks exchange activations.
        - [x] Adam's moments under ZeRO-1
          > The update of a shard needs only the moments of its elements.
        - [ ] The matrices under ZeRO-3
          > An all-gather makes a layer Replicate before each use.
        - [ ] The weight of a norm under tensor parallel
          > It is small, and Replicate on every rank.""", several=True)),
    Question(id="width", ask=width),
    Question(id="activations", ask=activations),
    Question(id="scores", ask=scores),
    Question(id="clipped-norm", ask=clipped_norm),
    Question(id="which-axis-leaves-the-node", ask=Choice.read("""
        A model trains with FSDP and tensor parallel on 64 GPUs, in nodes of 8. Which ranks belong on one node?

        - [x] The ranks of a tensor group
          > Their all-reduces stand between two matrices, where nothing else can be computed. The collectives of FSDP
            overlap with the computation of other layers.
        - [ ] The ranks of a data group
          > Their collectives can wait for slower links: FSDP gathers a layer ahead.
        - [ ] It makes no difference, because the sum of bytes is the same
          > The sum is the same, but the links between nodes are several times slower than those inside.
        - [ ] Half of each group
          > Then both groups cross the slow links.""")),
))
