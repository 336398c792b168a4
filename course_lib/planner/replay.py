"""What this course's engines hold beside the states while gradients are averaged: a step of theirs, gone through.

Which bucket or unit is the worst is no closed form where they differ in size, nor where gradients come in another order
than that of the parameters. So each gradient is followed, in backward's order. All sizes are numbers of elements.

    bucket         the tensors of a bucket, or of a unit of stage 3, from the model's last one on
    order          when gradients come: groups of tensors, by their places in all buckets laid end to end; one operator
                   makes the gradients of a group. One that comes again, as of a tied weight, waits, and is added up
    gradient       as autograd makes it, whole, on its way into its bucket's flat_grad
    flat_grad      all gradients of a bucket, padded, in fp32;  grad_shard: a rank's part of their average
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Sizes = Sequence[int]
Order = Sequence[Sequence[int]]


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


@dataclass(frozen=True, kw_only=True)
class _Gradient:
    """One that has come, and moves into its flat_grad.

    Attributes:
        size: its own;  bucket: which flat_grad it goes to.
        there: the sizes of all gradients that are there: itself, those that came with it, those that wait.
        after: the same when it has moved.
    """

    size: int
    bucket: int
    there: Sizes
    after: Sizes


def _gradients(buckets: Sequence[Sizes], order: Order) -> Iterator[_Gradient | list[int]]:
    """Backward: the sizes of all gradients that are there, whenever some have come; and each one that moves."""
    where = [(size, number) for number, bucket in enumerate(buckets) for size in bucket]
    last = {place: at for at, group in enumerate(order) for place in group}
    waiting: list[int] = []
    for at, group in enumerate(order):
        sums = [place for place in group if place in waiting]
        yield [where[place][0] for place in (*waiting, *group, *sums)]
        there = list(dict.fromkeys((*waiting, *group)))  # what has come twice is one now, the sum
        for place in group:
            if last[place] == at:
                before = [where[other][0] for other in there]
                there.remove(place)
                after = [where[other][0] for other in there]
                yield _Gradient(size=where[place][0], bucket=where[place][1], there=before, after=after)
        waiting = there


def data_parallel(buckets: Sequence[Sizes], order: Order) -> Iterator[Moment]:
    """In backward; no flat_grad is freed, for the optimizer's gradients are views of them."""
    flat_grads: dict[int, int] = {}
    for came in _gradients(buckets, order):
        if isinstance(came, list):
            yield Moment(gradients=came, averaged=[*flat_grads.values()], under_way=())
        else:
            flat_grads[came.bucket] = sum(buckets[came.bucket])
            yield Moment(gradients=came.there, averaged=[*flat_grads.values()], under_way=(), copied=[came.size])


def stage1(buckets: Sequence[Sizes], ranks: int) -> Iterator[Moment]:
    """In `step`, one bucket at a time, with all gradients that backward has left."""
    gradients, shards = [size for bucket in buckets for size in bucket], _shards(buckets, ranks)
    for at, bucket in enumerate(buckets):
        flat_grad = [ranks * shards[at]]
        yield Moment(gradients=gradients, averaged=shards[:at], under_way=flat_grad, copied=[max(bucket)])
        yield Moment(gradients=gradients, averaged=shards[: at + 1], under_way=flat_grad)


def stage2(buckets: Sequence[Sizes], ranks: int, order: Order) -> Iterator[Moment]:
    """In backward: while a bucket fills, the one before is under way. More than one fill where a tensor comes late."""
    shards, missing = _shards(buckets, ranks), [len(bucket) for bucket in buckets]
    filling: set[int] = set()
    left = 0  # so many buckets have left: the last of them is under way

    def moment(gradients: Sizes, copied: Sizes = ()) -> Moment:
        under_way = sorted({*filling, *range(left)[-1:]})
        flat_grads = [ranks * shards[bucket] for bucket in under_way]
        return Moment(gradients=gradients, averaged=shards[:left], under_way=flat_grads, copied=copied)

    for came in _gradients(buckets, order):
        if isinstance(came, list):
            yield moment(came)
            continue
        filling.add(came.bucket)
        yield moment(came.there, copied=[came.size])
        missing[came.bucket] -= 1
        while left < len(buckets) and not missing[left]:
            filling.discard(left)
            left += 1
            yield moment(came.after)
    while left < len(buckets):  # some tensors have no gradient
        filling.discard(left)
        left += 1
        yield moment(())


def stage3(units: Sequence[Sizes], ranks: int, prefetch: int, early: Sizes = (), again: Sizes = ()) -> Iterator[Moment]:
    """In backward, layer by layer: when its gradients are all there, and when they move into its flat_grad.

    The outer unit is gathered until all layers are done. Of its tensors, `early` have whole gradients all that time.
    The others' come before the first layer is left, which is when backward ends; and `again` get another one then, and
    a sum of both.
    """
    (outer, *layers), (_, *shards) = units, _shards(units, ranks)
    padded, sums = [ranks * shard for shard in shards], [*again, *again]
    for at in reversed(range(len(layers))):
        of_outer, added_up = (early, []) if at else (outer, sums)
        gradients, done, next_ones = [*of_outer, *layers[at]], shards[at + 1 :], slice(max(0, at - prefetch), at)
        ahead, cast = [sum(outer), *padded[next_ones]], shards[next_ones]
        yield Moment(
            gradients=[*gradients, *added_up], averaged=done, under_way=padded[at + 1 : at + 2],
            gathered=[*ahead, padded[at]], cast=cast,
        )  # fmt: skip
        yield Moment(
            gradients=gradients, averaged=done, under_way=[padded[at]], gathered=ahead, cast=cast,
            copied=[max(layers[at], default=0)],
        )  # fmt: skip
    yield Moment(gradients=outer if layers else [*outer, *sums], averaged=shards, under_way=(), gathered=[sum(outer)])
    yield Moment(gradients=outer, averaged=shards, under_way=[sum(outer)], copied=[max(outer, default=0)])


def _shards(buckets: Sequence[Sizes], ranks: int) -> list[int]:
    return [-(-sum(bucket) // ranks) for bucket in buckets]
