"""A simulation of gradient averaging in this course's engines, to find the bytes they hold in addition to the states.

There is no closed form for the worst bucket or unit when they differ in size, or when gradients arrive in a different
order than the parameters. So this module follows each gradient, in backward's order. All sizes are numbers of elements.

    bucket         the tensors of a bucket, or of a unit of stage 3, from the model's last one on
    order          when gradients arrive: groups of tensors, by their positions in all buckets laid end to end. One
                   operator makes the gradients of a group. A gradient that arrives again, such as a tied weight's,
                   waits, and is added up
    gradient       as autograd makes it, whole, on its way into its bucket's flat_grad
    flat_grad      all gradients of a bucket, padded, in fp32;  grad_shard: a rank's part of their average
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Sizes = Sequence[int]
Order = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The tensors that exist at one moment, by size.

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
        """Return the bytes of all tensors, with parameters `width` bytes wide and averaged gradients `average`."""
        narrow = sum(self.gradients) + sum(self.gathered) + sum(self.cast)
        return width * narrow + average * (sum(self.averaged) + sum(self.under_way) + sum(self.copied))


@dataclass(frozen=True, kw_only=True)
class _Gradient:
    """A gradient that has arrived, and moves into its flat_grad.

    Attributes:
        size: its size;  bucket: the index of its flat_grad.
        there: the sizes of all gradients that exist: itself, those that arrived with it, those that wait.
        after: the same after the move.
    """

    size: int
    bucket: int
    there: Sizes
    after: Sizes


def _gradients(buckets: Sequence[Sizes], order: Order) -> Iterator[_Gradient | list[int]]:
    """Yield, in backward's order, the sizes of all gradients when some arrive, and each gradient that moves."""
    where = [(size, number) for number, bucket in enumerate(buckets) for size in bucket]
    last = {place: at for at, group in enumerate(order) for place in group}
    waiting: list[int] = []
    for at, group in enumerate(order):
        sums = [place for place in group if place in waiting]
        yield [where[place][0] for place in (*waiting, *group, *sums)]
        there = list(dict.fromkeys((*waiting, *group)))  # two gradients of a tied weight are one now, the sum
        for place in group:
            if last[place] == at:
                before = [where[other][0] for other in there]
                there.remove(place)
                after = [where[other][0] for other in there]
                yield _Gradient(size=where[place][0], bucket=where[place][1], there=before, after=after)
        waiting = there


def data_parallel(buckets: Sequence[Sizes], order: Order) -> Iterator[Moment]:
    """Yield the moments of backward. No flat_grad is freed: the optimizer's gradients are views of them."""
    flat_grads: dict[int, int] = {}
    for event in _gradients(buckets, order):
        if isinstance(event, list):
            yield Moment(gradients=event, averaged=[*flat_grads.values()], under_way=())
        else:
            flat_grads[event.bucket] = sum(buckets[event.bucket])
            yield Moment(gradients=event.there, averaged=[*flat_grads.values()], under_way=(), copied=[event.size])


def stage1(buckets: Sequence[Sizes], ranks: int) -> Iterator[Moment]:
    """Yield the moments of `step`, bucket by bucket, with all gradients that backward has left."""
    gradients, shards = [size for bucket in buckets for size in bucket], _shards(buckets, ranks)
    for at, bucket in enumerate(buckets):
        flat_grad = [ranks * shards[at]]
        yield Moment(gradients=gradients, averaged=shards[:at], under_way=flat_grad, copied=[max(bucket)])
        yield Moment(gradients=gradients, averaged=shards[: at + 1], under_way=flat_grad)


def stage2(buckets: Sequence[Sizes], ranks: int, order: Order) -> Iterator[Moment]:
    """Yield the moments of backward: while a bucket fills, the one before is being reduced.

    More than one bucket fills when a tensor's gradient arrives late.
    """
    shards, missing = _shards(buckets, ranks), [len(bucket) for bucket in buckets]
    filling: set[int] = set()
    left = 0  # the number of full buckets: the last of them is being reduced

    def moment(gradients: Sizes, copied: Sizes = ()) -> Moment:
        under_way = sorted({*filling, *range(left)[-1:]})
        flat_grads = [ranks * shards[bucket] for bucket in under_way]
        return Moment(gradients=gradients, averaged=shards[:left], under_way=flat_grads, copied=copied)

    for event in _gradients(buckets, order):
        if isinstance(event, list):
            yield moment(event)
            continue
        filling.add(event.bucket)
        yield moment(event.there, copied=[event.size])
        missing[event.bucket] -= 1
        while left < len(buckets) and not missing[left]:
            filling.discard(left)
            left += 1
            yield moment(event.after)
    while left < len(buckets):  # some tensors have no gradient
        filling.discard(left)
        left += 1
        yield moment(())


def stage3(units: Sequence[Sizes], ranks: int, prefetch: int, early: Sizes = (), again: Sizes = ()) -> Iterator[Moment]:
    """Yield the moments of backward, layer by layer: with all its gradients, and while they move into its flat_grad.

    The outer unit stays gathered until all layers are done. Of its tensors, `early` have whole gradients all that time.
    The others' gradients arrive when the first layer has been left. The tensors in `again` then get a second gradient,
    and a sum of both.
    """
    (outer, *layers), (_, *shards) = units, _shards(units, ranks)
    padded, sums = [ranks * shard for shard in shards], [*again, *again]
    for at in reversed(range(len(layers))):
        gradients, done, next_ones = [*early, *layers[at]], shards[at + 1 :], slice(max(0, at - prefetch), at)
        ahead, cast = [sum(outer), *padded[next_ones]], shards[next_ones]
        yield Moment(
            gradients=gradients, averaged=done, under_way=padded[at + 1 : at + 2], gathered=[*ahead, padded[at]],
            cast=cast,
        )  # fmt: skip
        yield Moment(
            gradients=gradients, averaged=done, under_way=[padded[at]], gathered=ahead, cast=cast,
            copied=[max(layers[at], default=0)],
        )  # fmt: skip
    yield Moment(gradients=[*outer, *sums], averaged=shards, under_way=padded[:1], gathered=[sum(outer)])
    yield Moment(gradients=outer, averaged=shards, under_way=[sum(outer)], copied=[max(outer, default=0)])


def _shards(buckets: Sequence[Sizes], ranks: int) -> list[int]:
    return [-(-sum(bucket) // ranks) for bucket in buckets]
