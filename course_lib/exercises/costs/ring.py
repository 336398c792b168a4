"""How long a collective takes along a ring."""

from __future__ import annotations

import random

from ..form.declare import Case, Exercise, Mistake
from . import stubs

OPS = ("all_reduce", "reduce_scatter", "all_gather")


def ring_seconds(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    """Return how long a collective takes along a ring of so many ranks."""
    rounds = 2 if op == "all_reduce" else 1
    messages = rounds * (ranks - 1)  # one after the other
    return messages * (alpha + nbytes / ranks / bandwidth)


def priced(op: str, ranks: int, a_message: float) -> float:
    """The right number of messages, of which each takes `a_message` seconds."""
    return (2 if op == "all_reduce" else 1) * (ranks - 1) * a_message


def whole_tensor_a_message(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha + nbytes / bandwidth)


def one_message_a_round(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return (2 if op == "all_reduce" else 1) * (alpha + nbytes / bandwidth)


def pieces_for_the_others(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha + nbytes / max(ranks - 1, 1) / bandwidth)


def a_message_each_rank(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return (2 if op == "all_reduce" else 1) * ranks * (alpha + nbytes / ranks / bandwidth)


def one_alpha(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return alpha + priced(op, ranks, nbytes / ranks / bandwidth)


def alpha_a_round(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return (2 if op == "all_reduce" else 1) * alpha + priced(op, ranks, nbytes / ranks / bandwidth)


def no_alpha(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, nbytes / ranks / bandwidth)


def no_bytes(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha)


def all_reduce_in_one_round(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return (ranks - 1) * (alpha + nbytes / ranks / bandwidth)


def always_two_rounds(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return 2 * (ranks - 1) * (alpha + nbytes / ranks / bandwidth)


def bytes_times_bandwidth(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha + nbytes / ranks * bandwidth)


def alpha_in_one_round(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return (ranks - 1) * alpha + priced(op, ranks, nbytes / ranks / bandwidth)


def bytes_in_one_round(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha) + (ranks - 1) * nbytes / ranks / bandwidth


def by_logarithm(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    depth = (ranks - 1).bit_length()
    return (2 if op == "all_reduce" else 1) * (depth * alpha + (ranks - 1) * nbytes / ranks / bandwidth)


def rank_brings_nbytes(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    brought = nbytes if op == "all_gather" else nbytes / ranks
    return priced(op, ranks, alpha + brought / bandwidth)


def in_bits(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha + 8 * nbytes / ranks / bandwidth)


def all_links_at_once(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    return priced(op, ranks, alpha + nbytes / ranks / (ranks * bandwidth))


def in_shares(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    rounds = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}[op]
    return rounds * (ranks - 1) * alpha + rounds * (ranks - 1) / ranks * nbytes / bandwidth


def message_by_message(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    if op == "all_reduce":
        half = (nbytes, ranks, alpha, bandwidth)
        return message_by_message("reduce_scatter", *half) + message_by_message("all_gather", *half)
    clock = 0.0
    for _ in range(1, ranks):
        clock += alpha + nbytes / (ranks * bandwidth)
    return clock


def draw(rng: random.Random, number: int) -> Case:
    op, ranks = OPS[number % 3], (4, 3, 8, 1)[number] if number < 4 else rng.randint(5, 20)
    nbytes, alpha = (1_000_003 if number else 8_000_000), (0.0013 if number == 0 else rng.uniform(0.001, 0.01))
    bandwidth = 1e9 if number == 0 else nbytes / ranks / alpha * rng.uniform(0.3, 3)  # so that neither part is small
    about = f"{op} of {nbytes:,} bytes, {ranks} ranks, alpha {alpha * 1e3:.3g} ms, {bandwidth / 1e6:,.0f} MB/s"
    return Case(world_size=0, args=lambda rank: (op, nbytes, ranks, alpha, bandwidth), about=about)


RING = Exercise(
    name="costs.ring",
    title="The price of a ring",
    task="Return how many seconds a collective takes along a ring. The tensor is cut into as many pieces as there are "
    "ranks, and each message carries one of them; all ranks send at once, then all send the next. "
    '`op` is `"all_reduce"`, `"reduce_scatter"` or `"all_gather"`; `nbytes` are those of the whole tensor. '
    "One rank alone sends nothing.",
    stub=stubs.ring_seconds,
    reference=ring_seconds,
    draw=draw,
    tolerance=1e-6,
    variants={"shares": in_shares, "message-by-message": message_by_message},
    mistakes=[
        Mistake(
            id="whole-tensor-a-message",
            solution=whole_tensor_a_message,
            told="Each message carries the whole tensor. On a ring it carries one piece, 1/ranks of the tensor: that "
            "is what makes rings good at large tensors.",
            action="Divide `nbytes` by `ranks`.",
        ),
        Mistake(
            id="one-message-a-round",
            solution=one_message_a_round,
            told="A round is one message with the whole tensor in your count. On a ring it is many, one after the "
            "other, each with one piece.",
            action="Count `ranks - 1` messages a round, of 1/ranks of the tensor each.",
        ),
        Mistake(
            id="pieces-for-the-others",
            solution=pieces_for_the_others,
            told="You cut the tensor into one piece less than there are ranks. Each rank has a piece of its own, too; "
            "only the messages are one less.",
            action="Divide `nbytes` by `ranks`.",
        ),
        Mistake(
            id="a-message-each-rank",
            solution=a_message_each_rank,
            told="You count as many messages as there are ranks. Each rank begins with one piece of its own, so one "
            "message less brings it all others.",
            action="Count `ranks - 1` messages a round. One rank alone then sends none.",
        ),
        Mistake(
            id="one-alpha",
            solution=one_alpha,
            told="alpha is paid once. Each message has to wait for the one before it, so each pays alpha anew.",
            action="Multiply alpha by the number of messages.",
        ),
        Mistake(
            id="alpha-a-round",
            solution=alpha_a_round,
            told="alpha is paid once a round. Each message of the round pays it, since it waits for the one before.",
            action="Multiply alpha by the number of messages.",
        ),
        Mistake(
            id="no-alpha",
            solution=no_alpha,
            told="Only bytes cost time in your ring: alpha is missing, or divided by the bandwidth as if it were "
            "bytes. A message takes alpha seconds however small it is.",
            action="Add alpha for each message: `alpha + piece / bandwidth`.",
        ),
        Mistake(
            id="no-bytes",
            solution=no_bytes,
            told="Only messages cost time, whatever they carry.",
            action="Add the bytes of a message, divided by the bandwidth.",
        ),
        Mistake(
            id="all-reduce-in-one-round",
            solution=all_reduce_in_one_round,
            told="An all-reduce goes round once in your count. It is a reduce-scatter and then an all-gather: twice.",
            action="Count the messages of an all-reduce twice.",
        ),
        Mistake(
            id="always-two-rounds",
            solution=always_two_rounds,
            told="Every collective goes round twice. A reduce-scatter or an all-gather does so once; only the "
            "all-reduce is one after the other.",
            action='Ask whether `op == "all_reduce"`.',
        ),
        Mistake(
            id="bytes-times-bandwidth",
            solution=bytes_times_bandwidth,
            told="Bytes are multiplied by the bandwidth, so that a faster link takes longer.",
            action="Divide: bytes by bytes a second gives seconds.",
        ),
        Mistake(
            id="alpha-in-one-round",
            solution=alpha_in_one_round,
            told="The second round of the all-reduce carries bytes, and pays no alpha.",
            action="Double the number of messages, so that both parts double.",
        ),
        Mistake(
            id="bytes-in-one-round",
            solution=bytes_in_one_round,
            told="The second round of the all-reduce pays alpha, and carries no bytes.",
            action="Double the number of messages, so that both parts double.",
        ),
        Mistake(
            id="by-logarithm",
            solution=by_logarithm,
            told="You pay alpha as often as a tree has levels. A ring has none: from rank to rank goes each message.",
            action="Count `ranks - 1` messages a round.",
        ),
        Mistake(
            id="rank-brings-nbytes",
            solution=rank_brings_nbytes,
            told="In your all-gather each rank brings `nbytes`. They are the bytes of the whole, as it is afterwards; "
            "a rank brings 1/ranks of them.",
            action="Divide `nbytes` by `ranks` for every op.",
        ),
        Mistake(
            id="in-bits",
            solution=in_bits,
            told="Bytes are turned into bits, and bandwidth here is in bytes a second.",
            action="Leave out the 8.",
        ),
        Mistake(
            id="all-links-at-once",
            solution=all_links_at_once,
            told="You divide by ranks a second time. All links do work at once, but each rank waits for its own one: "
            "a piece takes as long as one link needs for it.",
            action="Divide a piece by the bandwidth of one link.",
        ),
    ],
    hints=[
        "Look at one rank only. How many messages does it send, one after the other, and how large is each?",
        "In a round, a piece comes by for every *other* rank. A reduce-scatter is one round, an all-gather is one, and "
        "an all-reduce is one of each.",
        "The number of messages is `ranks - 1` a round; a message takes `alpha + piece / bandwidth`.",
        '```python\nrounds = 2 if op == "all_reduce" else 1\nmessages = rounds * ...\n'
        "return messages * (alpha + ...)\n```",
    ],
    explanation="All ranks send at once, so the clock of one rank is the clock of all. The bytes, rounds · (N−1)/N of "
    "the tensor, hardly grow with N; the alphas, rounds · (N−1), grow with it. So a ring is nearly as good as it can "
    "be for large tensors, and poor for small ones on many ranks.",
)
