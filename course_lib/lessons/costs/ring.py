"""How long a collective takes along a ring."""

import random

from ...exercises import Case, Exercise

OPS = ("all_reduce", "reduce_scatter", "all_gather")


def draw(rng: random.Random, number: int) -> Case:
    op, ranks = OPS[number % 3], (4, 3, 8, 1)[number] if number < 4 else rng.randint(5, 20)
    nbytes, alpha = (1_000_003 if number else 8_000_000), (0.0013 if number == 0 else rng.uniform(0.001, 0.01))
    bandwidth = 1e9 if number == 0 else nbytes / ranks / alpha * rng.uniform(0.3, 3)  # so that neither part is small
    what = f"{op} of {nbytes:,} bytes, {ranks} rank{'s' * (ranks > 1)}, alpha {alpha * 1e3:.3g} ms"
    what += f", {bandwidth / 1e6:,.0f} MB/s"
    return Case(world_size=0, args=lambda rank: (op, nbytes, ranks, alpha, bandwidth), what=what)


exercise = Exercise("costs.ring", title="The time of a ring", draw=draw, tolerance=1e-4, task="""
    Return how many seconds a collective takes along a ring. The tensor is cut into as many pieces as there are ranks,
    and each message carries one piece. All ranks send at the same time; then all ranks send the next piece. `op` is
    `"all_reduce"`, `"reduce_scatter"` or `"all_gather"`. `nbytes` is the size of the whole tensor. If there is only one
    rank, it sends nothing.""", hints="""
    Look at one rank only. How many messages does it send, one after the other?

    In a round, a rank sends one piece for every *other* rank. A reduce-scatter is one round, an all-gather is one, and
    an all-reduce is one of each.

    A round has `ranks - 1` messages. A message takes `alpha + piece / bandwidth` seconds.

    ```python
    rounds = 2 if op == "all_reduce" else 1
    messages = rounds * ...
    return messages * (alpha + ...)
    ```
    """, explanation="""
    All ranks send at the same time, so every rank needs the same time. A rank sends rounds · (N−1)/N of the tensor's
    bytes, which hardly grows with N. It waits for rounds · (N−1) alphas, which grow with N. So a ring is nearly as fast
    as possible for large tensors, and slow for small tensors on many ranks.""")


@exercise
def ring_seconds(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    """Return how long a collective takes along a ring of `ranks` ranks.

    `op` is "all_reduce", "reduce_scatter" or "all_gather", `nbytes` is the size of the whole tensor.
    A message takes alpha seconds, and 1 / bandwidth seconds more for each of its bytes.
    """
    rounds = 2 if op == "all_reduce" else 1
    messages = rounds * (ranks - 1)  # one after the other
    return messages * (alpha + nbytes / ranks / bandwidth)


exercise.edit("whole-tensor-a-message", {"nbytes / ranks": "nbytes"}, """
    Each of your messages carries the whole tensor. On a ring, a message carries one piece, 1/ranks of the tensor; that
    makes rings fast for large tensors. Next: divide `nbytes` by `ranks`.""")

exercise.edit("pieces-for-the-others", {"nbytes / ranks": "nbytes / max(ranks - 1, 1)"}, """
    You cut the tensor into `ranks - 1` pieces. Each rank has a piece of its own too, so there are `ranks` pieces; only
    the number of messages is one less. Next: divide `nbytes` by `ranks`.""")

exercise.edit("divided-by-the-others", {"nbytes / ranks": "nbytes / (ranks - 1)"}, """
    You cut the tensor into `ranks - 1` pieces, and on one rank into none. Each rank has a piece of its own too. Next:
    how many pieces does the task name?""")

exercise.edit("a-message-each-rank", {"(ranks - 1)": "ranks"}, """
    You count `ranks` messages a round. Each rank begins with one piece of its own, so it needs one message less to get
    all the others. Next: count the pieces that a rank lacks at the start of a round.""")

exercise.edit("bytes-once", {"(alpha + nbytes / ranks / bandwidth)": "alpha + nbytes / bandwidth"}, """
    Your bytes take nbytes / bandwidth seconds in every collective, as if the tensor crossed one link once. Each message
    of a rank carries 1/ranks of the tensor. Next: multiply the time of one message by the number of messages.""")

exercise.edit("one-alpha", {"messages * (alpha + nbytes": "alpha + messages * (nbytes"}, """
    You count alpha once. Each message waits for the message before it, so each one costs an alpha of its own.
    Next: multiply alpha by the number of messages.""")

exercise.edit("alpha-a-round", {"messages * (alpha + nbytes / ranks / bandwidth)":
    "rounds * alpha + messages * nbytes / ranks / bandwidth"}, """
    You count alpha once for each round. A round has `ranks - 1` messages, and each of them waits for the one before it.
    Next: multiply alpha by the number of messages.""")

exercise.edit("no-alpha", {"(alpha + nbytes": "(nbytes"}, """
    Only the bytes take time in your result: alpha is missing, or is divided by the bandwidth as if it were bytes. A
    message takes at least alpha seconds, however small it is. Next: add alpha for each message.""")

exercise.edit("all-reduce-in-one-round", {'2 if op == "all_reduce" else 1': "1"}, """
    Your all-reduce is one round. An all-reduce is a reduce-scatter and then an all-gather: two rounds.
    Next: count two rounds for the all-reduce.""")

exercise.edit("always-two-rounds", {'2 if op == "all_reduce" else 1': "2"}, """
    Every collective is two rounds in your result. A reduce-scatter is one round and an all-gather is one; only the
    all-reduce does both. Next: let the number of rounds depend on `op`.""")

exercise.edit("bytes-times-bandwidth", {"ranks / bandwidth": "ranks * bandwidth"}, """
    You multiply bytes by the bandwidth, so a faster link takes longer. Bytes divided by bytes a second are seconds.
    Next: divide by the bandwidth.""")


@exercise.variant
def shares(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    rounds = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}[op]
    return rounds * (ranks - 1) * alpha + rounds * (ranks - 1) / ranks * nbytes / bandwidth


@exercise.variant
def message_by_message(op: str, nbytes: int, ranks: int, alpha: float, bandwidth: float) -> float:
    clock = 0.0
    for _ in range(ranks - 1):
        clock += alpha + nbytes / (ranks * bandwidth)
    return 2 * clock if op == "all_reduce" else clock


exercise.variant_edit("whole-bytes", {"nbytes / ranks": "(nbytes // ranks)"})
