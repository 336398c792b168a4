"""Attention over two blocks of keys, from the attention over each."""

import random

import torch
from torch import Tensor

from ...exercises import Case, Exercise, normal

FAR = [[300.0, 0.0], [0.0, 300.0], [1000.0, 900.0], [-1000.0, -900.0]]


def draw(rng: random.Random, number: int) -> Case:
    """Draw totals that differ little; then some whose exp overflows, and queries that have seen nothing yet.

    The last draw has totals far apart, or so far from 0 that their exp overflows, or vanishes, in float64, too.
    """
    tokens, size, seed = len(FAR) if number == 4 else rng.randint(3, 5), rng.randint(2, 4), rng.getrandbits(31)

    def args(rank: int) -> tuple[Tensor, ...]:
        output, seen = normal(2, tokens, size, seed=seed)
        total, seen_total = normal(2, tokens, 1, seed=seed + 1)
        if number in (1, 3):
            large = torch.tensor([0.0] + [100.0] * (tokens - 1))[:, None]  # one maximum does not serve all queries
            total, seen_total = total + large, seen_total + large
        if number in (2, 3):
            output[:2], total[:2] = 0, -torch.inf
        if number == 4:
            total, seen_total = torch.tensor(FAR).split(1, dim=1)
        return output, total, seen, seen_total

    what = f"{tokens} queries" + ", large totals" * (number in (1, 3)) + ", totals far apart" * (number == 4)
    return Case(world_size=1, args=args, what=what + ", two of which have seen nothing yet" * (number in (2, 3)))


exercise = Exercise("context.merge", title="Softmax in two pieces", draw=draw, case_count=5, tolerance=5e-4,
    inputs_matter=False, task="""
    A query has attended to some keys, with the result `output`, and then to other keys, with the result `seen`. For
    each of the two, `total` is the logarithm of the sum of exp(score) over its keys. Return the result over all keys,
    and its total. A query that has seen nothing yet has the total −∞. Scores can be large, so never compute the sum
    itself: exp(100) overflows in float32.
    """, hints="""
    Attention is a weighted mean of values. Each of the two results is a mean over its own keys. How much does each
    count in the mean over all keys?

    A result counts in proportion to the sum of exp(score) over its keys. So `output` has the weight
    exp(total) / (exp(total) + exp(seen_total)).

    Divide before you take exp: the weight is exp(total − both), where `both` is the logarithm of the two sums together.
    `torch.logaddexp(a, b)` is log(exp(a) + exp(b)) without overflow.

    ```python
    both = torch.logaddexp(total, seen_total)
    return output * ... + seen * ..., both
    ```
    """, explanation="""
    A total is at most `both`, so no exponent is positive and nothing overflows. exp(−∞) is 0: what has seen nothing
    counts nothing, and needs no case of its own. FlashAttention merges blocks in this way inside a GPU, and ring
    attention between GPUs. Only the result and one number for each query are kept, so no rank needs the scores of the
    whole sequence.
    """)


@exercise
def merge(output: Tensor, total: Tensor, seen: Tensor, seen_total: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention over the keys of both results, and its total.

    output, seen: [tokens, size], the attention of the same queries over two sets of keys.
    total, seen_total: [tokens, 1], the logarithm of the sum of exp(score) over each set.
    """
    both = torch.logaddexp(total, seen_total)
    return output * (total - both).exp() + seen * (seen_total - both).exp(), both


MERGED = "output * (total - both).exp() + seen * (seen_total - both).exp()"
WITH_SUMS = "(output * total.exp() + seen * seen_total.exp()) / (total.exp() + seen_total.exp())"
OVERFLOWS = """
    The exp of a large total is infinite in float32. Next: keep to differences of totals inside
    exp, which are never positive.
    """

exercise.edit("sum", {MERGED: "output + seen"}, """
    You add the two results. Each is a mean already, so their sum is too large. Next: weigh each by its share of the
    sum of exp(score).
    """)

exercise.edit("mean", {MERGED: "(output + seen) / 2"}, """
    You weigh both results equally. A result over keys with larger scores, or over more keys, has to count more. Next:
    weigh each by its share of the sum of exp(score).
    """)

exercise.edit("adds-totals", {"torch.logaddexp(total, seen_total)": "total + seen_total"}, """
    The total of both is not the sum of the totals: they are logarithms, and the sums themselves add up. Next: find the
    function of torch that adds two numbers which are given by their logarithms.
    """)

exercise.edit("larger-total", {"torch.logaddexp(total, seen_total)": "torch.maximum(total, seen_total)"}, """
    `both` is the larger of the two totals, so the weights do not add up to 1. The larger total is what you may subtract
    to avoid overflow; the sum over all keys is still more. Next: add the two sums, on the scale of logarithms.
    """)

exercise.edit("weights-of-logarithms", {"(total - both).exp()": "(total / (total + seen_total))",
    "(seen_total - both).exp()": "(seen_total / (total + seen_total))"}, """
    Your weights are shares of the totals, and the totals are logarithms. Next: take exp of a difference of totals.
    """)

exercise.edit("overflows", {"torch.logaddexp(total, seen_total)": "(total.exp() + seen_total.exp()).log()"},
    OVERFLOWS)

exercise.edit("weights-overflow", {MERGED: WITH_SUMS}, OVERFLOWS)

exercise.edit("everything-overflows", {MERGED: WITH_SUMS, "torch.logaddexp(total, seen_total)":
    "(total.exp() + seen_total.exp()).log()"}, OVERFLOWS)

exercise.edit("relative-to-seen", {
    MERGED: "(output * (total - seen_total).exp() + seen) / ((total - seen_total).exp() + 1)",
    "torch.logaddexp(total, seen_total)": "seen_total + torch.log1p((total - seen_total).exp())"}, """
    You take exp of the difference of the two totals, in one direction only. Where it is large and positive, its exp is
    infinite in float32. Next: take exp only of differences that are never positive.
    """)

exercise.edit("first-total-kept", {"(seen_total - both).exp(), both": "(seen_total - both).exp(), total"}, """
    You return the total of the first keys. With it, the next block would be weighed as if these keys were all that was
    seen. Next: return the total over both sets of keys.
    """)

exercise.edit("without-the-maximum", {"(seen_total - both).exp(), both":
    "(seen_total - both).exp(), (1 + (-(total - seen_total).abs()).exp()).log()"}, """
    The result is right, and the total is too small by the larger of the two totals, which you subtract to avoid
    overflow. Next: add to the returned total what you subtracted before exp.
    """)

exercise.edit("weights-swapped", {"output * (total": "output * (seen_total", "seen * (seen_total": "seen * (total"}, """
    Each result has the weight of the other one. Next: look at which total belongs to which result.
    """)

exercise.edit("weights-of-sums", {"(total - both).exp()": "total.exp()", "(seen_total - both).exp()":
    "seen_total.exp()"}, """
    Your weights are the sums of exp(score) themselves, so together they are not 1, and the result is no mean. Next:
    divide each sum by the sum over all keys, on the scale of logarithms.
    """)

exercise.edit("sum-returned", {"torch.logaddexp(total, seen_total)": "total.exp() + seen_total.exp()",
    MERGED: "(output * total.exp() + seen * seen_total.exp()) / both"}, """
    The second result is the sum of exp(score) itself. A total is its logarithm, and so is what the next merge expects.
    Next: return the logarithm of the sum over all keys.
    """)


@exercise.variant
def by_share(output: Tensor, total: Tensor, seen: Tensor, seen_total: Tensor) -> tuple[Tensor, Tensor]:
    share = torch.sigmoid(seen_total - total)
    return torch.lerp(output, seen, share), seen_total + torch.nn.functional.softplus(total - seen_total)


@exercise.variant
def with_the_maximum(output: Tensor, total: Tensor, seen: Tensor, seen_total: Tensor) -> tuple[Tensor, Tensor]:
    largest = torch.maximum(total, seen_total)
    first, second = torch.exp(total - largest), torch.exp(seen_total - largest)
    return (first * output + second * seen) / (first + second), largest + (first + second).log()
