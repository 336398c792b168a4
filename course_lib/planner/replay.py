"""What this course's engines hold beside the states while gradients are averaged: a step of theirs, gone through.

Which bucket or unit is the worst is no closed form where they differ in size. So each is looked at in its turn, in
backward's order, when it needs most. All sizes are numbers of elements. Gradients are taken to come in the reverse
order of the parameters: where a model uses its parameters in another order, stage 2 can hold a bucket more.

    bucket         the tensors of a bucket, or of a unit of stage 3, in the order in which their gradients come
    gradient       as autograd makes it, whole, on its way into its bucket's flat_grad
    flat_grad      all gradients of a bucket, padded, in fp32;  grad_shard: a rank's part of their average
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Sizes = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What there is at one moment, tensor by tensor.

    Attributes:
        gradients: as autograd makes them.
        averaged: in fp32; shards, or whole in data parallel.
        under_way: each flat_grad that is filling or being reduced.
        gathered: whole parameters of units, in stage 3.
        cast: this rank's shards of what is being gathered; in 16 bits they are made from the fp32 masters.
        copied: a gradient that is being added to its flat_grad: in 16 bits, torch makes an fp32 copy of it on CPUs.
    """

    gradients: Sizes
    averaged: Sizes
    under_way: Sizes
    gathered: Sizes = ()
    cast: Sizes = ()
    copied: Sizes = ()

    def nbytes(self, width: int, average: int) -> int:
        """Bytes of all that, parameters being `width` bytes wide and averaged gradients `average`."""
        narrow = sum(self.gradients) + sum(self.gathered) + sum(self.cast)
        return width * narrow + average * (sum(self.averaged) + sum(self.under_way) + sum(self.copied))


def data_parallel(buckets: Sequence[Sizes]) -> Iterator[Moment]:
    """In backward; no flat_grad is freed, for the optimizer's gradients are views of them."""
    whole = [sum(bucket) for bucket in buckets]
    for at, bucket in enumerate(buckets):
        largest = [max(bucket)]
        yield Moment(gradients=largest, averaged=whole[: at + 1], under_way=(), copied=largest)


def stage1(buckets: Sequence[Sizes], ranks: int) -> Iterator[Moment]:
    """In `step`, one bucket at a time, with all gradients that backward has left."""
    gradients, shards = [size for bucket in buckets for size in bucket], _shards(buckets, ranks)
    for at, bucket in enumerate(buckets):
        flat_grad = [ranks * shards[at]]
        yield Moment(gradients=gradients, averaged=shards[:at], under_way=flat_grad, copied=[max(bucket)])
        yield Moment(gradients=gradients, averaged=shards[: at + 1], under_way=flat_grad)


def stage2(buckets: Sequence[Sizes], ranks: int) -> Iterator[Moment]:
    """In backward: while a bucket fills, the one before is under way."""
    shards = _shards(buckets, ranks)
    for at, bucket in enumerate(buckets):
        two, largest = [ranks * shard for shard in shards[max(0, at - 1) : at + 1]], [max(bucket)]
        yield Moment(gradients=largest, averaged=shards[:at], under_way=two, copied=largest)


def stage3(units: Sequence[Sizes], ranks: int, prefetch: int) -> Iterator[Moment]:
    """In backward, layer by layer: when its gradients are all there, and when they move into its flat_grad.

    The outer unit is gathered, and what gradients it has are whole, until all layers are done.
    """
    (outer, *layers), (_, *shards) = units, _shards(units, ranks)
    padded = [ranks * shard for shard in shards]
    for at in reversed(range(len(layers))):
        gradients, done, next_ones = [*outer, *layers[at]], shards[at + 1 :], slice(max(0, at - prefetch), at)
        ahead, cast = [sum(outer), *padded[next_ones]], shards[next_ones]
        yield Moment(
            gradients=gradients, averaged=done, under_way=padded[at + 1 : at + 2], gathered=[*ahead, padded[at]],
            cast=cast,
        )  # fmt: skip
        yield Moment(
            gradients=gradients, averaged=done, under_way=[padded[at]], gathered=ahead, cast=cast,
            copied=[max(layers[at], default=0)],
        )  # fmt: skip
    yield Moment(gradients=outer, averaged=shards, under_way=(), gathered=[sum(outer)])
    yield Moment(gradients=outer, averaged=shards, under_way=[sum(outer)], copied=[max(outer, default=0)])


def _shards(buckets: Sequence[Sizes], ranks: int) -> list[int]:
    return [-(-sum(bucket) // ranks) for bucket in buckets]
