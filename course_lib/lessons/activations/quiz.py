"""The quiz of lesson 08."""

import random

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz


def states_bytes(params: int, world_size: int, stage: int, *offload: str) -> int:
    """Return the bytes of model states on a GPU, with Adam in mixed precision."""
    return sum(
        plan(params=params, world_size=world_size, stage=stage, precision="mixed", offload=offload).bytes.values()
    )


def layer_bytes(rng: random.Random) -> Numeric:
    sequence, batch, (hidden, heads) = 2048, rng.choice([1, 2, 4]), rng.choice([(4096, 32), (5120, 40), (2048, 16)])

    def kept(for_input: int, for_score: int) -> int:
        return batch * sequence * (for_input * hidden + for_score * heads * sequence)

    return Numeric(
        prompt=f"On a GPU, a layer of width {hidden} with {heads} heads works on {batch} sequence{'s' * (batch > 1)} "
        f"of {sequence} tokens, in 16 bits, with dropout and without FlashAttention. How much does it keep for "
        "backward?",
        expected=kept(34, 5),
        unit="MB",
        right="The formula is s·b·h·(34 + 5·a·s/h).",
        wrong="Count 34 bytes for each element of the input, and 5 for each score of each head.",
        mistakes=(
            (kept(34, 0), "That is right if the attention core is computed again."),
            (kept(32, 2), "That is right without dropout."),
            (kept(2, 0), "That is only the input, as with full checkpointing."),
            (2 * kept(34, 5), "That is twice as much. Numbers take 2 bytes here, not 4."),
            (kept(66, 9), "That is about twice as much. Numbers take 2 bytes here, not 4."),  # masks take 1 byte
        ),
    )


def flash_attention(rng: random.Random) -> Numeric:
    sequence, heads = rng.choice([4096, 8192, 16384]), rng.choice([16, 32, 40])
    expected = 4 * heads * sequence
    return Numeric(
        prompt=f"A layer with {heads} heads works on one sequence of {sequence} tokens, in 16 bits and without dropout."
        " Its attention core is FlashAttention. How much does the core keep for backward, apart from its inputs and "
        "its output?",
        expected=expected,
        unit="MB",
        right="FlashAttention keeps one number of 4 bytes for each token and head.",
        wrong="FlashAttention does not keep the probabilities. What does it keep for each token and head?",
        mistakes=(
            (2 * heads * sequence**2, "Those are the probabilities, which FlashAttention never writes."),
            (expected / 2, "The numbers are in fp32, and take 4 bytes each."),
            (expected / heads, "Each head keeps a number of its own for each token."),
        ),
    )


def selective_operations(rng: random.Random) -> Numeric:
    sequence, width = rng.choice([2048, 4096, 8192]), rng.choice([2048, 4096, 6144])
    expected = sequence / (3 * (6 * width + sequence))
    return Numeric(
        prompt=f"A layer of width h = {width} works on sequences of s = {sequence} tokens. Its forward takes "
        "s·b·(24h² + 4sh) operations; the attention core takes the 4s²·b·h of them. Backward takes twice as many as "
        "forward. Selective checkpointing computes the whole core a second time. By what share does the total rise?",
        expected=expected,
        unit="%",
        right="The core adds 4sh to 3·(24h² + 4sh) operations, for each token.",
        wrong="Divide the operations of the core by those of forward and backward together.",
        mistakes=(
            (3 * expected, "That is the share of forward. Backward takes twice as many operations."),
            (1 / 3, "That is full checkpointing, which computes the whole layer again."),
        ),
    )


def with_n_ranks(rng: random.Random) -> Numeric:
    gigabytes, few, many = rng.choice([6, 10, 12]), rng.choice([2, 4]), rng.choice([16, 32])
    return Numeric(
        prompt=f"With stage 3 on {few} ranks, forward keeps {gigabytes} GB of activations on each rank. You go to "
        f"{many} ranks, and each rank still has as many sequences as before. How much does forward keep on each rank?",
        expected=gigabytes * 10**9,
        unit="GB",
        right="Activations come from the rank's own sequences, and a rank has as many as before.",
        wrong="Which of a rank's activations does a different rank also hold?",
        mistakes=(
            (
                gigabytes * 10**9 * few / many,
                "Model states are sharded over ranks. No stage shards activations: each rank keeps its own.",
            ),
        ),
    )


def offload(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 20]), rng.choice([4, 8])
    params = billions * 10**9
    return Numeric(
        prompt=f"{billions} billion parameters are trained in mixed precision with Adam, with stage 2 on "
        f"{world_size} GPUs. The optimizer is offloaded to the CPU. How large are the model states on each GPU?",
        expected=states_bytes(params, world_size, 2, "optimizer"),
        unit="GB",
        right="Only the parameters stay. Optimizer states and gradient shards are on the host.",
        wrong="All parameters stay on each GPU. What moves to the host as soon as it is reduced?",
        mistakes=(
            (states_bytes(params, world_size, 2), "That is without offload."),
            (states_bytes(params, world_size, 1, "optimizer"), "That is stage 1, which does not shard gradients."),
            (states_bytes(params, world_size, 3, "optimizer"), "That is stage 3, which shards the parameters."),
            (12 * params / world_size, "That is what the optimizer takes on the host."),
        ),
    )


def over_the_bus(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 20]), rng.choice([4, 8, 16])
    params = billions * 10**9
    return Numeric(
        prompt=f"{billions} billion parameters are trained in mixed precision with Adam, with stage 2 on "
        f"{world_size} GPUs and the optimizer on the CPU. Gradients and parameters travel in 16 bits. How many bytes "
        "cross the bus of each GPU in a step of one micro-batch, both directions together?",
        expected=4 * params / world_size,
        unit="GB",
        right="The gradient shard travels to the host and the parameter shard back: 2Ψ/N each.",
        wrong="What does the host need for a step, and what does the GPU need back? Of which part of the model?",
        mistakes=(
            (4 * params, "That is a GPU without sharding. Here the host of each rank updates one shard."),
            (2 * params / world_size, "That is one direction. Gradients go and parameters come back."),
            (12 * params / world_size, "Masters and moments stay on the host, and never cross the bus."),
        ),
    )


def everything_over_the_bus(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 20]), rng.choice([4, 8, 16])
    params = billions * 10**9
    return Numeric(
        prompt=f"FSDP2 trains {billions} billion parameters on {world_size} GPUs with `CPUOffloadPolicy`. They are in "
        "fp32, and layers compute in bf16. Every unit is freed after forward. How many bytes cross the bus of each GPU "
        "in a step of one micro-batch, both directions together?",
        expected=12 * params / world_size,
        unit="GB",
        right="The fp32 shard crosses before each of two gathers, and the fp32 shard of the gradient goes back.",
        wrong="Where are the shards, and in which dtype? Count the gathers of a step, then the gradients.",
        mistakes=(
            (4 * params / world_size, "That is an optimizer offload in 16 bits: the parameters stay on the GPU."),
            (8 * params / world_size, "You count one direction only, or one gather. There are two gathers."),
            (6 * params / world_size, "The shards on the host have 4 bytes for each element."),
            (12 * params, "Only this rank's shard crosses its bus."),
        ),
    )


QUIZ = Quiz(name="activations", title="Activations", questions=(
    Question(id="layer-bytes", ask=layer_bytes),
    Question(id="flash-attention", ask=flash_attention),
    Question(id="checkpointing", ask=Choice.read("""
        Every layer is checkpointed. What is in memory while backward goes through layer 7 of 12?

        - [x] The inputs of layers 1 to 7
          > Each input is a checkpoint, from which its layer is computed again.
        - [x] Everything that layer 7 keeps for backward
          > It has just been computed again, this time with autograd.
        - [ ] Everything that layers 1 to 6 keep for backward
          > These layers have not been computed again yet. Only their inputs are in memory.
        - [ ] Everything that layers 8 to 12 keep for backward
          > Backward is done with these layers, and has freed their activations.""", several=True)),
    Question(id="selective", ask=selective_operations),
    Question(id="more-ranks", ask=with_n_ranks),
    Question(id="offload", ask=offload),
    Question(id="over-the-bus", ask=over_the_bus),
    Question(id="everything-over-the-bus", ask=everything_over_the_bus),
))
