"""Read a fitted alpha and bandwidth."""

import random

from ...exercises import Case, Exercise
from .ring import ring_seconds


def draw(rng: random.Random, number: int) -> Case:
    ranks, alpha, bandwidth = 4, 0.0004, 0.7e9  # about what the lesson measures
    if number:
        ranks, alpha, bandwidth = rng.randint(3, 64), rng.uniform(1e-5, 2e-3), rng.uniform(0.5e9, 50e9)
    what = f"alpha {alpha * 1e3:.3g} ms, {bandwidth / 1e9:.3g} GB a second, {ranks} ranks"
    return Case(world_size=0, args=lambda rank: (alpha, bandwidth, ranks), what=what)


exercise = Exercise("costs.fit", title="Read your fit", draw=draw, task="""
    Return two numbers: a size in bytes, and a time in seconds. Both are about all-reduces along a ring. At the first
    number, the alphas of all messages take as long as the bytes of all messages: an all-reduce of a smaller tensor is
    latency-bound. The second number is the time of an all-reduce of 1 GB, which is 10⁹ bytes. There are at least two
    ranks.""", hints="""
    All messages of an all-reduce are alike. When do alpha and the bytes take equally long in *one* of them?

    A message carries 1/ranks of the tensor. Its bytes take size / ranks / bandwidth seconds.

    For the time, call your `ring_seconds`. For the size, solve alpha = size / ranks / bandwidth.

    ```python
    size = alpha * ...
    return size, ring_seconds("all_reduce", ...)
    ```
    """, explanation="""
    Each message takes alpha + size / ranks / bandwidth seconds. The two parts are equal at size = alpha · bandwidth ·
    ranks, for any number of messages. Below this size, an all-reduce hardly gets faster when it sends less: put several
    small tensors into one bucket. Far above it, only the bytes count. The limit grows with the number of ranks, so a
    bucket that is large enough on 8 ranks can be too small on 1,024.""")


@exercise
def read_fit(alpha: float, bandwidth: float, ranks: int) -> tuple[float, float]:
    """Return the bytes below which an all-reduce is latency-bound, and the seconds of an all-reduce of 1 GB.

    An all-reduce is latency-bound if the alphas of its messages take longer than their bytes. It goes along
    a ring of links with this alpha, in seconds, and this bandwidth, in bytes a second.
    """
    size = alpha * bandwidth * ranks  # in each message, alpha = size / ranks / bandwidth
    return size, ring_seconds("all_reduce", 10**9, ranks, alpha, bandwidth)


exercise.edit("one-message", {"bandwidth * ranks": "bandwidth"}, """
    Your size is the size of one message. A message carries 1/ranks of the tensor, so the tensor is larger.
    Next: multiply by `ranks`.""")

exercise.edit("one-alpha", {"bandwidth * ranks": "bandwidth * ranks / (2 * (ranks - 1))"}, """
    You compare one alpha with the bytes of all messages. An all-reduce is 2(N−1) messages, and each of them costs an
    alpha. Next: compare alpha with the bytes of one message.""")

exercise.edit("whole-tensor", {"bandwidth * ranks": "bandwidth * 2 * (ranks - 1)"}, """
    You compare the alphas of all messages with the time in which the tensor crosses one link once. All messages
    together carry 2(N−1)/N of the tensor. Next: compare alpha with the bytes of one message, size / ranks.""")

exercise.edit("alpha-by-bandwidth", {"alpha * bandwidth": "alpha / bandwidth"}, """
    You divide alpha by the bandwidth. Seconds times bytes a second are bytes: as many as a link carries during alpha.
    Next: multiply alpha by the bandwidth.""")

exercise.edit("gibibyte", {"10**9": "2**30"}, """
    Your second number is the time of 2³⁰ bytes, which is 1 GiB. 1 GB is 10⁹ bytes. Next: use `10**9`.""")

exercise.edit("over-one-link", {'ring_seconds("all_reduce", 10**9, ranks, alpha, bandwidth)': "10**9 / bandwidth"}, """
    Your second number is the time in which 1 GB crosses one link once. An all-reduce along a ring sends 2(N−1)/N of the
    tensor over each link, in 2(N−1) messages. Next: call `ring_seconds`.""")

exercise.edit("one-round", {'"all_reduce"': '"all_gather"'}, """
    Your second number is the time of one round, such as an all-gather. An all-reduce is two rounds.
    Next: call `ring_seconds` with `"all_reduce"`.""")

exercise.edit("swapped", {'return size, ring_seconds("all_reduce", 10**9, ranks, alpha, bandwidth)':
    'return ring_seconds("all_reduce", 10**9, ranks, alpha, bandwidth), size'}, """
    You return the time first and the size second. The task asks for the size first. Next: swap the two numbers.""")


@exercise.variant
def from_two_times(alpha: float, bandwidth: float, ranks: int) -> tuple[float, float]:
    latency = ring_seconds("all_reduce", 0, ranks, alpha, bandwidth)
    total = ring_seconds("all_reduce", 10**9, ranks, alpha, bandwidth)
    return latency / (total - latency) * 10**9, total


@exercise.variant
def by_formula(alpha: float, bandwidth: float, ranks: int) -> tuple[float, float]:
    messages = 2 * (ranks - 1)
    return ranks * alpha * bandwidth, messages * alpha + messages / ranks * 1e9 / bandwidth
