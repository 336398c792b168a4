"""The quiz of lesson 08."""

from __future__ import annotations

import random

from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register
from .hybrid import leaving_bytes
from .ring import ring_seconds


def bus_bandwidth(op: str, nbytes: float, seconds: float, ranks: int) -> float:
    """Bytes a second that each link of a ring carried, as NCCL's tests define it."""
    rounds = 2 if op == "all_reduce" else 1
    return rounds * (ranks - 1) / ranks * nbytes / seconds


def small_all_reduce(rng: random.Random) -> Numeric:
    ranks, alpha, kilobytes = rng.choice([16, 64, 128]), rng.choice([10, 15, 20]), rng.choice([64, 128])
    seconds = ring_seconds("all_reduce", kilobytes * 1000, ranks, alpha * 1e-6, 25e9)
    return Numeric(
        prompt=f"{ranks} ranks, one in each node, all-reduce {kilobytes} kB along a ring. A message takes {alpha} µs, "
        "and its bytes travel at 25 GB a second. How many milliseconds does it take?",
        expected=seconds * 1e3,
        unit="ms",
        tolerance=0.02,
        right="Nearly all of it is alpha, 2(N−1) times. The bytes hardly count.",
        wrong="How many messages are sent one after the other, and how many bytes are in each?",
        mistakes=(
            Mistake.near(
                ring_seconds("all_gather", kilobytes * 1000, ranks, alpha * 1e-6, 25e9) * 1e3,
                "That is one round. An all-reduce is a reduce-scatter and an all-gather: two.",
            ),
            Mistake.near(seconds, "Those are seconds: a thousand times as many milliseconds."),
            Mistake.near(
                2 * (kilobytes * 1000 / 25e9) * (ranks - 1) / ranks * 1e3, "That is the bytes alone. Add alpha, 2(N−1) "
                "times."
            ),
            Mistake.near(
                2 * (ranks - 1) * (alpha * 1e-6 + kilobytes * 1000 / 25e9) * 1e3,
                "In each message you send the whole tensor. It is 1/N.",
            ),
        ),
    )  # fmt: skip


def measured_bus(rng: random.Random) -> Numeric:
    op, ranks, ms = rng.choice(["all_reduce", "all_gather"]), rng.choice([4, 8]), rng.choice([4, 5, 10])
    gigabytes = rng.choice([1, 2])
    algorithm = gigabytes * 1e9 / (ms * 1e-3)
    other = "all_gather" if op == "all_reduce" else "all_reduce"
    return Numeric(
        prompt=f"An {op.replace('_', '-')} of {gigabytes} GB (of the whole) takes {ms} ms on {ranks} ranks. What is "
        "its bus bandwidth, in GB a second?",
        expected=bus_bandwidth(op, gigabytes * 1e9, ms * 1e-3, ranks) / 1e9,
        unit="GB a second",
        right="In a ring, that is what each link carried: you can compare it with the link's bandwidth.",
        wrong="Divide bytes by seconds first. Then: what share of these bytes went over a link?",
        mistakes=(
            Mistake.near(algorithm / 1e9, "That is the algorithm bandwidth: bytes of the tensor by seconds."),
            Mistake.near(
                bus_bandwidth(other, gigabytes * 1e9, ms * 1e-3, ranks) / 1e9,
                "An all-reduce goes round twice, an all-gather once.",
            ),
            Mistake.near(2 * algorithm / 1e9, "On N ranks it is 2(N−1)/N, which is a little less than 2."),
        ),
    )


def stage_3_seconds(rng: random.Random) -> Numeric:
    billions, gigabytes = rng.choice([7, 13, 30]), rng.choice([12, 50, 370])
    ranks = 8
    a_round = ring_seconds("all_gather", 2 * billions * 10**9, ranks, 0.0, gigabytes * 1e9)
    return Numeric(
        prompt=f"{ranks} ranks train {billions} billion parameters by stage 3, parameters and gradients in 16 bits. "
        f"Links carry {gigabytes} GB a second, and alpha does not count. How many seconds of communication has a step?",
        expected=3 * a_round,
        unit="seconds",
        tolerance=0.02,
        right="3Ψ elements of 2 bytes, times (N−1)/N, by the bandwidth.",
        wrong="Three rounds of all parameters. How many bytes is one?",
        mistakes=(
            Mistake.near(2 * a_round, "That is 2Ψ, as in stages 0 to 2. Stage 3 gathers a second time, in backward."),
            Mistake.near(1.5 * a_round, "You counted one byte for each parameter. They have two."),
            Mistake.near(6 * a_round, "You counted four bytes for each parameter. They have two."),
            Mistake.near(3 * a_round * ranks / (ranks - 1), "You left out (N−1)/N: a rank has one piece already."),
        ),
    )


def hybrid(rng: random.Random) -> Numeric:
    billions, nodes = rng.choice([7, 13, 30]), rng.choice([4, 8, 16])
    psi, world_size = billions * 10**9, 8 * nodes
    return Numeric(
        prompt=f"{nodes} nodes with 8 GPUs each train {billions} billion parameters by stage 3 in 16 bits. Each node "
        "has a copy of the model, sharded over its GPUs. How much leaves a node in a step?",
        expected=leaving_bytes(psi, world_size, 8, 8),
        unit="GB",
        right="The gathers stay at home. Only the all-reduce of gradients leaves: eight rings, each with an eighth.",
        wrong="Which collectives cross the network at all, and how many rings of them leave the node?",
        mistakes=(
            Mistake.near(
                leaving_bytes(psi, world_size, 8, world_size),
                "That is sharding over all ranks. Here gathers and reduce-scatters stay in the node.",
            ),
            Mistake.near(
                leaving_bytes(psi, world_size, 8, 8) / 8,
                "That is one ring. There are eight, one for each shard, and all leave the node.",
            ),
            Mistake.near(leaving_bytes(psi, world_size, 8, 8) / 2, "That is once round. An all-reduce goes twice."),
            Mistake.near(
                8 * leaving_bytes(psi, world_size, 8, 8), "Each ring carries the gradient of one shard, an eighth."
            ),
        ),
    )


QUIZ = register(
    Quiz(
        name="costs",
        title="What communication costs",
        questions=(
            Question(id="small-all-reduce", ask=small_all_reduce),
            Question(
                id="why-buckets",
                ask=Choice(
                    prompt="Sending 400 gradients one by one takes much longer than sending them in 4 buckets. Why?",
                    options=(
                        Option(
                            text="Each collective pays alpha for all its messages, however small it is",
                            right=True,
                            feedback="A hundred times as many collectives pay it a hundred times as often.",
                        ),
                        Option(
                            text="More bytes are sent",
                            feedback="As many, but for padding. Your meter has shown it in lessons 03 and 05.",
                        ),
                        Option(
                            text="The bandwidth of the link is lower for small messages",
                            feedback="So it looks in a table of bandwidths; what takes the time is alpha.",
                        ),
                        Option(
                            text="Small tensors go by tree, and trees are slower",
                            feedback="NCCL takes trees where they are faster, and for small tensors they are.",
                        ),
                    ),
                ),
            ),
            Question(id="measured-bus", ask=measured_bus),
            Question(id="stage-3-seconds", ask=stage_3_seconds),
            Question(
                id="what-cannot-hide",
                ask=Choice(
                    prompt="Which of these can no schedule hide behind the computation of the same step?",
                    several=True,
                    options=(
                        Option(
                            text="The first gather of stage 3's forward",
                            right=True,
                            feedback="Nothing can compute before it.",
                        ),
                        Option(
                            text="The last reduction of gradients in backward",
                            right=True,
                            feedback="Its gradient is the last thing that backward computes.",
                        ),
                        Option(
                            text="The gather of a layer in the middle",
                            feedback="It runs while the layer before it computes, if that takes long enough.",
                        ),
                        Option(
                            text="The reduction of the head's gradients",
                            feedback="They are the first that backward has, with the whole of backward to come.",
                        ),
                    ),
                ),
            ),
            Question(
                id="twice-the-ranks",
                ask=Choice(
                    prompt="Stage 3 shards one model over 1,024 ranks, and then over 2,048. What becomes of the time "
                    "that the ring takes to gather a layer?",
                    options=(
                        Option(
                            text="It nearly doubles where alpha prevails; the bytes take as long as before",
                            right=True,
                            feedback="(N−1) alpha doubles, (N−1)/N of the bytes stays.",
                        ),
                        Option(
                            text="It halves, since each piece is half as large",
                            feedback="There are twice as many pieces to wait for.",
                        ),
                        Option(text="It stays the same", feedback="The bytes do, and alpha does not."),
                        Option(
                            text="It grows by one alpha",
                            feedback="A tree grows by a level or so. A ring grows by 1,024 hops.",
                        ),
                    ),
                ),
            ),
            Question(id="hybrid", ask=hybrid),
            Question(
                id="socket-in-the-log",
                ask=Choice(
                    prompt="A cluster has InfiniBand, and training is ten times too slow. NCCL's log says `NET/IB : No "
                    "device found` and `via NET/Socket/0`. What do you look into first?",
                    options=(
                        Option(
                            text="Whether the process sees the InfiniBand devices at all, as inside a container",
                            right=True,
                            feedback="NCCL has found none, so it goes by TCP. `ibv_devinfo` in the same container "
                            "shows what it could see.",
                        ),
                        Option(
                            text="`NCCL_ALGO`: whether ring or tree is used",
                            feedback="Either would go over the wrong network.",
                        ),
                        Option(
                            text="`NCCL_P2P_DISABLE`",
                            feedback="That is about GPUs in one node. The slow paths here are between nodes.",
                        ),
                        Option(
                            text="The size of buckets",
                            feedback="Worth a look when the network is the right one.",
                        ),
                    ),
                ),
            ),
        ),
    )
)
