"""The tokens per rank that hide stage 3's communication."""

import random

from ...exercises import Case, Exercise
from .ring import ring_seconds


def draw(rng: random.Random, number: int) -> Case:
    flops, bandwidth, ranks, grad_bytes = 400e12, 100e9, 4, 4
    if number:
        flops, bandwidth = rng.randint(100, 900) * 1e12, rng.randint(12, 400) * 1e9
        ranks, grad_bytes = rng.choice([2, 8, 16, 64]), (2, 4)[number % 2]
    what = f"{flops / 1e12:g} TFLOPs and {bandwidth / 1e9:g} GB a second, {ranks} ranks, {grad_bytes} bytes a gradient"
    return Case(world_size=0, args=lambda rank: (flops, bandwidth, ranks, grad_bytes), what=what)


exercise = Exercise("costs.tokens_to_hide", title="How many tokens hide a gather", draw=draw, tolerance=0.01, task="""
    Return two numbers of tokens per rank. With the first, forward computes a layer exactly as long as the gather of a
    layer takes. With the second, backward computes a layer exactly as long as its gather and its reduce-scatter take
    together. Both collectives go along a ring of at least two ranks. Count 2 FLOPs for each parameter and token in
    forward, and 4 in backward. A gathered parameter has 2 bytes.""", hints="""
    Take a layer with one parameter. How many seconds does its gather take, and how many does forward compute for one
    token?

    On a ring of N ranks, a rank sends (N−1)/N of the bytes of a layer in a gather, and as much in a reduce-scatter.

    Forward computes T tokens in `2 * T / flops` seconds for each parameter. Set that equal to the seconds of the
    gather, and solve for T. In backward, both sides are different: more bytes, and more FLOPs.

    ```python
    seconds_per_byte = (ranks - 1) / ranks / ...
    forward = 2 * seconds_per_byte / (2 / flops)
    backward = (...) * seconds_per_byte / (... / flops)
    ```
    """, explanation="""
    The number of parameters stands on both sides and cancels: a larger layer takes longer to gather and longer to
    compute. With gradients in 16 bits, backward moves twice the bytes of forward and computes twice the FLOPs, so both
    limits are equal. With fp32 gradients, backward moves three times the bytes and needs half as many tokens more. A
    step hides its communication only above the larger of the two.""")


@exercise
def tokens_to_hide(flops: float, bandwidth: float, ranks: int, grad_bytes: int) -> tuple[float, float]:
    """Return the tokens that a rank needs to hide the gathers of forward, and all communication of backward.

    A rank computes `flops` FLOPs a second. Each link of the ring carries `bandwidth` bytes a second; alpha is 0.
    Parameters are gathered in 16 bits. A gradient has `grad_bytes` bytes when it is reduced.
    """
    seconds_per_byte = (ranks - 1) / ranks / bandwidth
    forward = 2 * seconds_per_byte / (2 / flops)
    backward = (2 + grad_bytes) * seconds_per_byte / (4 / flops)
    return forward, backward


exercise.edit("all-bytes", {"(ranks - 1) / ranks / bandwidth": "1 / bandwidth"}, """
    Your rank sends every byte of the layer. It has one of the N pieces already, so a ring sends (N−1)/N of the bytes.
    Next: leave out the piece that the rank has.""")

exercise.edit("fp32-parameters", {"= 2 *": "= 4 *", "(2 + grad_bytes)": "(4 + grad_bytes)"}, """
    You count four bytes for each gathered parameter. Parameters are gathered in 16 bits. Next: count two bytes.""")

exercise.edit("all-six-in-forward", {"(2 / flops)": "(6 / flops)"}, """
    Your forward computes 6 FLOPs for each parameter and token. That is the whole step: forward needs 2, backward 4.
    Next: count 2 FLOPs in forward.""")

exercise.edit("backward-as-forward", {"(4 / flops)": "(2 / flops)"}, """
    Your backward computes as much as forward. It computes two gradients for each matrix, of its input and of its
    weights, so it needs twice the FLOPs. Next: count 4 FLOPs in backward.""")

exercise.edit("no-second-gather", {"(2 + grad_bytes)": "grad_bytes"}, """
    In your backward, only the bytes of the gradients take time. Stage 3 has freed the layer after forward, so backward
    gathers it again. Next: add the bytes of the gather.""")

exercise.edit("no-reduction", {"(2 + grad_bytes)": "2"}, """
    Your backward only gathers parameters. It also reduce-scatters the gradients. Next: add their bytes.""")

exercise.edit("gradients-in-16-bits", {"(2 + grad_bytes)": "(2 + 2)"}, """
    You count two bytes for each gradient, whatever `grad_bytes` is. Many programs reduce in fp32.
    Next: use `grad_bytes`.""")

exercise.edit("all-reduced-gradients", {"(2 + grad_bytes)": "(2 + 2 * grad_bytes)"}, """
    You count the gradients twice, as in an all-reduce. Under stage 3 a rank needs only its shard of the sum, so one
    reduce-scatter is enough. Next: count the gradients once.""")

exercise.edit("share-of-the-peak", {"seconds_per_byte = (": "flops *= 0.56\nseconds_per_byte = ("}, """
    You count with 56 % of `flops`. Here `flops` is what a rank computes in a second, not the peak of its GPU.
    Next: use `flops` as it is.""")

exercise.edit("upside-down", {"2 * seconds_per_byte / (2 / flops)": "2 / flops / (2 * seconds_per_byte)",
    "(2 + grad_bytes) * seconds_per_byte / (4 / flops)": "4 / flops / ((2 + grad_bytes) * seconds_per_byte)"}, """
    You divide the computing by the communication. Computing has to be long enough to hide it. Next: divide the seconds
    of the communication by the seconds in which one token is computed.""")

exercise.edit("swapped", {"forward, backward\n": "backward, forward\n"}, """
    You return backward's tokens first. The task asks for forward's first. Next: swap the two numbers.""")


@exercise.variant
def with_a_ring(flops: float, bandwidth: float, ranks: int, grad_bytes: int) -> tuple[float, float]:
    params = 10**6  # any number: it cancels
    gather = ring_seconds("all_gather", 2 * params, ranks, 0.0, bandwidth)
    reduce = ring_seconds("reduce_scatter", grad_bytes * params, ranks, 0.0, bandwidth)
    return gather / (2 * params / flops), (gather + reduce) / (4 * params / flops)


@exercise.variant
def by_the_rule(flops: float, bandwidth: float, ranks: int, grad_bytes: int) -> tuple[float, float]:
    forward = flops / bandwidth * (ranks - 1) / ranks
    return forward, forward * (2 + grad_bytes) / 4


exercise.variant_edit("whole-tokens", {"return forward, backward": "return -(-forward // 1), -(-backward // 1)"})
