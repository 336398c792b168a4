"""The quiz of lesson 09."""

import random

from ...quizzes import Choice, Numeric, Question, Quiz
from .hybrid import leaving_bytes
from .ring import ring_seconds


def bus_bandwidth(op: str, nbytes: float, seconds: float, ranks: int) -> float:
    """Return the bytes a second that each link of a ring carried, as NCCL's tests define it."""
    rounds = 2 if op == "all_reduce" else 1
    return rounds * (ranks - 1) / ranks * nbytes / seconds


def small_all_reduce(rng: random.Random) -> Numeric:
    ranks, alpha, kilobytes = rng.choice([16, 64, 128]), rng.choice([10, 15, 25]), rng.choice([64, 128])
    seconds = ring_seconds("all_reduce", kilobytes * 1000, ranks, alpha * 1e-6, 25e9)
    return Numeric(
        prompt=f"{ranks} ranks, one in each node, all-reduce {kilobytes} kB along a ring. A message takes "
        f"{alpha} µs, and its bytes travel at 25 GB a second. How many milliseconds does the all-reduce take?",
        expected=seconds * 1e3,
        unit="ms",
        tolerance=0.02,
        right="Nearly all of this time is alpha, 2(N−1) times. The bytes take very little of it.",
        wrong="Count the messages that a rank sends one after the other. How long does one of them take?",
        mistakes=(
            (
                ring_seconds("all_gather", kilobytes * 1000, ranks, alpha * 1e-6, 25e9) * 1e3,
                "That is the time of one round. An all-reduce is two rounds: a reduce-scatter and an all-gather.",
            ),
            (seconds, "That is the time in seconds. A second has 1,000 milliseconds."),
            (
                2 * (kilobytes * 1000 / 25e9) * (ranks - 1) / ranks * 1e3,
                "That is the time of the bytes only. Add alpha 2(N−1) times.",
            ),
            (
                2 * (ranks - 1) * (alpha * 1e-6 + kilobytes * 1000 / 25e9) * 1e3,
                "Each of your messages carries the whole tensor. A message carries 1/N of it.",
            ),
        ),
    )


def measured_bus(rng: random.Random) -> Numeric:
    op, ranks, ms = rng.choice(["all_reduce", "all_gather"]), rng.choice([4, 8]), rng.choice([4, 5, 10])
    gigabytes = rng.choice([1, 2])
    algorithm = gigabytes * 1e9 / (ms * 1e-3)
    other = "all_gather" if op == "all_reduce" else "all_reduce"
    factor = "2(N−1)/N, a little less than 2" if op == "all_reduce" else "(N−1)/N, a little less than 1"
    return Numeric(
        prompt=f"An {op.replace('_', '-')} takes {ms} ms on {ranks} ranks. The whole tensor has {gigabytes} GB. What "
        "is the bus bandwidth, in GB/s?",
        expected=bus_bandwidth(op, gigabytes * 1e9, ms * 1e-3, ranks) / 1e9,
        unit="GB/s",
        right="On a ring, each link carried this much, so you can compare it with the link's bandwidth.",
        wrong="Divide the tensor's bytes by the seconds first. Then: which share of these bytes did a link carry?",
        mistakes=(
            (algorithm / 1e9, "That is the algorithm bandwidth: the tensor's bytes divided by the seconds."),
            (
                bus_bandwidth(other, gigabytes * 1e9, ms * 1e-3, ranks) / 1e9,
                "An all-reduce is two rounds, and an all-gather is one round.",
            ),
            (2 * algorithm / 1e9, f"You multiplied by 2. On N ranks, the factor is {factor}."),
        ),
    )


def stage_3_seconds(rng: random.Random) -> Numeric:
    billions, gigabytes = rng.choice([7, 13, 30]), rng.choice([12, 50, 370])
    ranks = 8
    a_round = ring_seconds("all_gather", 2 * billions * 10**9, ranks, 0.0, gigabytes * 1e9)
    return Numeric(
        prompt=f"{ranks} ranks train {billions} billion parameters by stage 3, parameters and gradients in 16 bits. "
        f"Links carry {gigabytes} GB a second. Take alpha as 0. How many seconds does the communication of a step "
        "of one micro-batch take?",
        expected=3 * a_round,
        unit="seconds",
        tolerance=0.02,
        right="A rank sends 3Ψ elements of 2 bytes, times (N−1)/N. Divide that by the bandwidth.",
        wrong="Stage 3 makes three rounds with all parameters. How many bytes does a rank send in one round?",
        mistakes=(
            (2 * a_round, "That is the time of 2Ψ, as in stages 0 to 2. Stage 3 gathers a second time, in backward."),
            (1.5 * a_round, "You counted one byte for each parameter. A parameter in 16 bits has two."),
            (6 * a_round, "You counted four bytes for each parameter. A parameter in 16 bits has two."),
            (
                3 * a_round * ranks / (ranks - 1),
                "You left out the factor (N−1)/N. A rank already has one of the N pieces.",
            ),
        ),
    )


def tokens_for_gathers(rng: random.Random) -> Numeric:
    teraflops, gigabytes = rng.choice([200, 400, 600]), rng.choice([12, 25, 50, 100])
    rule = teraflops * 1e12 / (gigabytes * 1e9)
    return Numeric(
        prompt=f"GPUs reach {teraflops} · 10¹² FLOPs a second in matrix products. The links of their ring carry "
        f"{gigabytes} GB a second. Parameters are gathered in 16 bits, over many ranks. How many tokens does a "
        "rank need to hide the gathers of stage 3's forward?",
        expected=rule,
        unit="tokens",
        right="A parameter has two bytes, and takes two FLOPs for each token. The model's size cancels.",
        wrong="Compare one parameter's bytes, divided by the bandwidth, with its FLOPs, divided by the FLOPs a second.",
        mistakes=(
            (rule / 3, "Those are 6 FLOPs for each parameter and token, the whole step. Forward computes 2."),
            (rule / 2, "Forward computes 2 FLOPs for each parameter and token, and a gather moves 2 bytes."),
            (2 * rule, "You counted four bytes for each parameter, or one FLOP. It is two of each."),
            (rule * 1.5, "That is backward with gradients in fp32. Forward only gathers."),
        ),
    )


def hybrid(rng: random.Random) -> Numeric:
    billions, nodes = rng.choice([7, 13, 30]), rng.choice([4, 8, 16])
    psi, world_size = billions * 10**9, 8 * nodes
    return Numeric(
        prompt=f"{nodes} nodes with 8 GPUs each train {billions} billion parameters by stage 3 in 16 bits. Each node "
        "has a copy of the model, sharded over its GPUs. How many GB leave a node in a step of one micro-batch?",
        expected=leaving_bytes(psi, world_size, 8, 8),
        unit="GB",
        right="The gathers stay in the node. Only the all-reduce of gradients leaves it: eight rings, each with an "
        "eighth.",
        wrong="Find the collectives that cross the network. How many of their rings leave the node?",
        mistakes=(
            (
                leaving_bytes(psi, world_size, 8, world_size),
                "That is right if the model is sharded over all ranks. Here, gathers and reduce-scatters stay in the "
                "node.",
            ),
            (
                leaving_bytes(psi, world_size, 8, 8) / 8,
                "That is what one ring carries. There are eight rings, one for each shard, and all leave the node.",
            ),
            (leaving_bytes(psi, world_size, 8, 8) / 2, "That is one round. An all-reduce is two rounds."),
            (
                8 * leaving_bytes(psi, world_size, 8, 8),
                "In your result, each ring carries the whole gradient. A ring carries an eighth of it.",
            ),
        ),
    )


QUIZ = Quiz(name="costs", title="What communication costs", questions=(
    Question(id="small-all-reduce", ask=small_all_reduce),
    Question(id="why-buckets", ask=Choice.read("""
        Sending 400 gradients one by one takes much longer than sending them in 4 buckets. Why?

        - [x] Each collective takes alpha for every message, however small its tensor is
          > A hundred times as many collectives send a hundred times as many messages.
        - [ ] More bytes are sent
          > The bytes are the same, except for padding, as you measured in lesson 03.
        - [ ] The bandwidth of the link is lower for small messages
          > The link is as fast as before. Alpha only makes it look slower in a table.
        - [ ] NCCL sends small tensors along a tree, and trees are slower
          > NCCL uses a tree where a tree is faster. For small tensors, it often is.""")),
    Question(id="measured-bus", ask=measured_bus),
    Question(id="stage-3-seconds", ask=stage_3_seconds),
    Question(id="what-cannot-hide", ask=Choice.read("""
        Which of these can no schedule hide behind forward or backward of the same step?

        - [x] The first gather of stage 3's forward
          > No unit can compute before this gather has ended.
        - [x] The last reduction of gradients in backward
          > Backward computes this gradient last, so nothing is left to compute.
        - [ ] The gather of a layer in the middle
          > It runs while the layer before it computes, if that layer takes long enough.
        - [ ] The reduction of the head's gradients
          > Backward computes these gradients first, so nearly all of backward can hide the reduction.
        """, several=True)),
    Question(id="tokens-to-hide", ask=tokens_for_gathers),
    Question(id="twice-the-ranks", ask=Choice.read("""
        Stage 3 shards one model over 1,024 ranks, and then over 2,048. How does the time change that a ring takes to
        gather a layer?

        - [x] The alphas take twice as long; the bytes take about as long as before
          > The alphas take (N−1) α, which doubles. A rank sends (N−1)/N of the bytes, which hardly changes.
        - [ ] It halves, because each piece is half as large
          > Each piece is half as large, and there are twice as many pieces.
        - [ ] It stays the same
          > That is true for the bytes only. The number of messages doubles.
        - [ ] It grows by one alpha
          > A tree would get about one more level. A ring gets 1,024 more hops.""")),
    Question(id="hybrid", ask=hybrid),
    Question(id="overlap-contends", ask=Choice.read("""
        A profile of stage 3 on H100s shows no exposed communication. Without any communication, the step would still
        be faster. Why?

        - [x] The collectives run on the same GPU, so they take processors and memory bandwidth from computing
          > NCCL's collectives are kernels. A matrix product that runs next to one takes longer than alone.
        - [ ] The profile must be wrong, because hidden communication has no price
          > It delays nothing by itself, but the kernels that hide it run more slowly meanwhile.
        - [ ] NVLink moves the bytes of matrix products, too
          > A matrix product reads and writes its own GPU's memory. The collective uses this memory as well.
        - [ ] Each collective stops computing until its last byte has arrived
          > Then the communication would be exposed.""")),
))
