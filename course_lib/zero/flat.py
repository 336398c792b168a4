"""Parameters one after another in a flat buffer, cut into equal shards: the ground that the stages stand on.

    bucket         some parameters of one dtype, whose gradients travel together
    numel          their elements;  padded_numel: rounded up, so that N shards of shard_numel elements are equal
    flat_param     [padded_numel] the parameters, in the model's dtype; the model's own are views of it
    param_shard    [shard_numel] elements rank·shard_numel to (rank+1)·shard_numel, in fp32: what the optimizer updates.
                   A part of flat_param where that is fp32 itself, a "master" copy where it is bf16 or fp16
    flat_grad      [padded_numel] gradients in fp32 on their way to be summed, each multiplied by 1/N beforehand
    grad_shard     [shard_numel] averaged gradients in fp32, of every backward since zero_grad
    fragment       the part of one parameter that lies in this rank's shard; the optimizer is given the fragments, so
                   that options and state belong to parameters as they would without sharding

(float64 parameters keep float64 where this says fp32.)

A parameter without a gradient must be left alone by the optimizer: no decay, no momentum. But one that this rank
did not use may have been used by another, and its owner has to know. Rather than send flags, the sum tells: a rank
puts -0.0 where it has no gradient, and never puts -0.0 where it has one. Only if all ranks put -0.0 is the sum -0.0,
as IEEE 754 says: -0.0 + -0.0 = -0.0, and -0.0 + 0.0 = 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import Parameter


def pad_to_multiple(numel: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `numel`."""
    return -(-numel // of) * of


def in_buckets(params: Iterable[Parameter], bucket_bytes: float) -> Iterator[list[Parameter]]:
    """Cut `params` into lists of one dtype and device, each closed as soon as it has `bucket_bytes` bytes."""
    filling: dict[tuple[torch.dtype, torch.device], list[Parameter]] = {}
    for param in params:
        kind = (param.dtype, param.device)
        bucket = filling.setdefault(kind, [])
        bucket.append(param)
        if sum(param.nbytes for param in bucket) >= bucket_bytes:
            yield filling.pop(kind)
    yield from filling.values()


@dataclass(frozen=True, kw_only=True, eq=False)
class Fragment:
    """The part of one parameter that this rank updates.

    Attributes:
        index: the parameter's place in its bucket.
        begin: where the fragment begins in the flattened parameter; it has `values.numel()` elements.
        place: where it lies in the shard.
        values: the elements, in fp32; a parameter of the optimizer, whose `.grad` is their averaged gradient.
    """

    index: int
    begin: int
    place: slice
    values: Parameter

    def of(self, whole: Tensor) -> Tensor:
        """The fragment's elements of `whole`, which has as many as the parameter; a view, in the shape of `values`."""
        return whole.reshape(-1)[self.begin : self.begin + self.values.numel()].view(self.values.shape)


class Bucket:
    """Some parameters, and their gradients in one buffer.

    Args:
        params: of one dtype, on one device.
        shard_count: the buffer's length is a multiple of it.
        frozen: whether they are not trained, and so need no values in fp32.
    """

    fragments: Sequence[Fragment]

    def __init__(self, params: Sequence[Parameter], shard_count: int, frozen: bool = False) -> None:
        self.params = list(params)
        self.shapes = [param.shape for param in params]
        self.numels = [param.numel() for param in params]
        self.numel = sum(self.numels)
        self.offsets = [end - numel for end, numel in zip(accumulate(self.numels), self.numels, strict=True)]
        self.padded_numel = pad_to_multiple(self.numel, shard_count)
        self.shard_numel = self.padded_numel // shard_count
        self.dtype, self.device = params[0].dtype, params[0].device
        self.frozen = frozen
        self.master_dtype = self.dtype if frozen else torch.promote_types(self.dtype, torch.float32)
        self.flat_grad: Tensor | None = None
        self._parts: Sequence[Tensor] = ()  # each parameter's part of flat_grad
        self.arrived: set[int] = set()  # whose gradient is in flat_grad
        self.used: set[int] = set()  # who has had a gradient on this rank since zero_grad
        self._zero = torch.zeros(1, dtype=self.master_dtype, device=self.device)

    def marked(self, flat: Tensor) -> Tensor:
        """`flat`, [padded_numel], which tells whoever counts bytes how many of its elements stand for nothing."""
        flat.padding_numel = self.padded_numel - self.numel  # type: ignore[attr-defined]
        return flat

    @property
    def complete(self) -> bool:
        """Whether every parameter's gradient is in `flat_grad`."""
        return len(self.arrived) == len(self.params)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of `flat`, [padded_numel], in the parameter's shape."""
        pieces = flat[: self.numel].split(self.numels)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def add_grad(self, index: int, grad: Tensor, scale: float) -> None:
        """Add scale·grad to the part of parameter `index` in `flat_grad`."""
        if self.flat_grad is None:
            self._make_flat_grad()
        part = self._parts[index]
        # Even the first is added, to 0: that makes a gradient of -0.0 into 0.0.
        before = part if index in self.arrived else self._zero
        torch.add(before, grad.reshape(-1), alpha=scale, out=part)
        self.arrived.add(index)
        self.used.add(index)

    def collect_grads(self, scale: float) -> None:
        """Add every parameter's gradient, times `scale`, to `flat_grad`."""
        for index, param in enumerate(self.params):
            if param.grad is not None:
                self.add_grad(index, param.grad, scale)

    def take_flat_grad(self) -> Tensor:
        """Hand `flat_grad` over, ready to be summed: -0.0 for whoever has no gradient, 0 in the padding."""
        if self.flat_grad is None:
            self._make_flat_grad()
        flat_grad, parts = self.flat_grad, self._parts
        assert flat_grad is not None
        self.flat_grad, self._parts = None, ()
        for index in set(range(len(parts))) - self.arrived:
            parts[index].fill_(-0.0)
        flat_grad[self.numel :] = 0
        self.arrived.clear()
        return flat_grad

    def _make_flat_grad(self) -> None:
        self.flat_grad = self.marked(torch.empty(self.padded_numel, dtype=self.master_dtype, device=self.device))
        self._parts = self.flat_grad[: self.numel].split(self.numels)

    def zero_grad(self) -> None:
        """Free the gradients."""
        self.used.clear()
        for fragment in self.fragments:
            fragment.values.grad = None

    def is_used(self, index: int, summed: Tensor) -> bool:
        """Whether any rank had a gradient for parameter `index`; `summed` is some of it, after the sum over ranks."""
        first = summed.reshape(-1)[:1]
        return index in self.used or not (first.eq(0) & first.signbit()).all()


class ReplicatedBucket(Bucket):
    """Parameters that every rank holds whole: the one shard is all.

    Args:
        params: of one dtype, on one device.
        frozen: whether they are not trained, and so need no values in fp32.
    """

    def __init__(self, params: Sequence[Parameter], *, frozen: bool = False) -> None:
        super().__init__(params, shard_count=1, frozen=frozen)
        self.fragments = [
            Fragment(index=index, begin=0, place=slice(offset, offset + param.numel()), values=self._master(param))
            for index, (param, offset) in enumerate(zip(params, self.offsets, strict=True))
        ]

    def _master(self, param: Parameter) -> Parameter:
        return param if self.dtype == self.master_dtype else Parameter(param.detach().to(self.master_dtype))


class ShardedBucket(Bucket):
    """Parameters in one buffer, of which this rank owns one shard.

    Args:
        params: of one dtype, on one device; they become views of `flat_param`.
        rank: whose shard this is.
        world_size: how many shards there are.
        copy: whether `param_shard` gets memory of its own even in fp32, so that `flat_param` can be freed.
        frozen: whether they are not trained, and so need no values in fp32.
    """

    flat_param: Tensor | None

    def __init__(
        self, params: Sequence[Parameter], rank: int, world_size: int, *, copy: bool = False, frozen: bool = False
    ) -> None:
        super().__init__(params, world_size, frozen)
        self.shard = slice(rank * self.shard_numel, (rank + 1) * self.shard_numel)
        flat_param = self.marked(torch.zeros(self.padded_numel, dtype=self.dtype, device=self.device))
        torch.cat([param.detach().reshape(-1) for param in params], out=flat_param[: self.numel])
        self.show_params(flat_param)  # their own memory is free from here on
        self.flat_param = flat_param
        self.param_shard = flat_param[self.shard].to(self.master_dtype, copy=copy)
        self.grad_shard: Tensor | None = None
        self.fragments = list(self._fragments())

    def _fragments(self) -> Iterator[Fragment]:
        for index, (offset, numel) in enumerate(zip(self.offsets, self.numels, strict=True)):
            begin = min(numel, max(0, self.shard.start - offset))
            end = max(begin, min(numel, self.shard.stop - offset))
            if begin < end or numel == 0:  # a parameter of no elements is whole on every rank
                place = slice(offset + begin - self.shard.start, offset + end - self.shard.start)
                values = Parameter(self.param_shard[place], requires_grad=not self.frozen)
                yield Fragment(index=index, begin=begin, place=place, values=values)

    def show_params(self, flat_param: Tensor) -> None:
        """Let the model's parameters be views of `flat_param`."""
        for param, view in zip(self.params, self.views(flat_param), strict=True):
            param.data = view

    def add_grad_shard(self, shard: Tensor) -> None:
        """Add an averaged gradient, [shard_numel], to those of earlier backwards, and show fragments theirs."""
        if self.grad_shard is None:
            self.grad_shard = shard
        else:
            self.grad_shard += shard
        for fragment in self.fragments:
            grad = self.grad_shard[fragment.place]
            fragment.values.grad = grad if self.is_used(fragment.index, grad) else None

    def zero_grad(self) -> None:
        super().zero_grad()
        self.grad_shard = None
