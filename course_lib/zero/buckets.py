"""Parameters one after another in a flat buffer, cut into equal shards.

bucket         some parameters of one dtype, whose gradients travel together
numel          their elements;  padded_numel: rounded up, so that N shards of shard_numel elements are equal
flat_param     [padded_numel] the parameters, in the model's dtype; the model's own are views of it
param_shard    [shard_numel] elements rank·shard_numel to (rank+1)·shard_numel, in fp32: what the optimizer updates.
               A view of flat_param if that is in fp32, a "master" copy if it is in bf16 or fp16
flat_grad      [padded_numel] gradients in fp32 on their way to be summed, each multiplied by 1/N beforehand
grad_shard     [shard_numel] averaged gradients in fp32, of every backward since zero_grad
shard          the elements of one parameter that lie in param_shard. The optimizer is given these, so that options
               and state belong to parameters as they do without sharding
fp32           or float64, if the parameters are in float64
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

BUCKET_BYTES = 25 * 2**20
"""The size of a bucket by default, as in DistributedDataParallel."""


def an_eighth(params: Iterable[Parameter]) -> int:
    """Return an eighth of the bytes of `params`, at most BUCKET_BYTES: stage 2 holds two or three flat_grads."""
    return max(1, min(BUCKET_BYTES, sum(param.nbytes for param in params) // 8))


def in_buckets(params: Iterable[Parameter], bucket_bytes: float) -> Iterator[list[Parameter]]:
    """Cut `params` into lists of one kind, each closed as soon as it has `bucket_bytes` bytes."""
    filling: dict[Any, list[Parameter]] = {}
    for param in params:
        kind = (param.dtype, param.device, param.requires_grad)
        bucket = filling.setdefault(kind, [])
        bucket.append(param)
        if sum(param.nbytes for param in bucket) >= bucket_bytes:
            yield filling.pop(kind)
    yield from filling.values()


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """The elements of one parameter that this rank updates."""

    param: Parameter
    shape: torch.Size  # of the whole parameter
    begin: int  # where the shard begins in the flattened parameter; it has `values.numel()` elements
    place: slice  # where it lies in the bucket's `param_shard` and `grad_shard`
    values: Parameter  # the elements, in fp32: a parameter of the optimizer, whose `.grad` is their averaged gradient

    def of(self, whole: Tensor) -> Tensor:
        """Return the shard's elements of a tensor of the parameter's size; a view, shaped as `values`."""
        return whole.reshape(-1)[self.begin : self.begin + self.values.numel()].view(self.values.shape)


class FlatBucket:
    """Parameters in one buffer, of which this rank owns one shard.

    Args:
        params: of one dtype, on one device; they become views of `flat_param`.
        rank: whose shard this is.
        world_size: how many shards there are.
        copy: whether `param_shard` gets memory of its own even in fp32, so that `flat_param` can be freed.

    Raises:
        ValueError: the parameters are on the meta device. `Stage3` has filled them before it makes a bucket.
    """

    def __init__(self, params: Sequence[Parameter], rank: int, world_size: int, *, copy: bool = False) -> None:
        if params[0].is_meta:
            raise ValueError(
                "this model is on the meta device: its parameters have no values. Only Stage3 fills such a model. Give "
                'the model memory first, with model.to_empty(device="cpu"), and initialize it.'
            )
        ends = accumulate(param.numel() for param in params)
        self.places = {param: slice(end - param.numel(), end) for param, end in zip(params, ends, strict=True)}
        self.shapes = {param: param.shape for param in params}
        self.numel = self.places[params[-1]].stop
        self.shard_numel = -(-self.numel // world_size)  # rounded up
        self.padded_numel = world_size * self.shard_numel
        self.mine = slice(rank * self.shard_numel, (rank + 1) * self.shard_numel)
        self.dtype, self.device, self.trained = params[0].dtype, params[0].device, params[0].requires_grad
        self.master_dtype = torch.promote_types(self.dtype, torch.float32) if self.trained else self.dtype
        self.flat_param: Tensor | None = self.new_flat(self.dtype)
        torch.cat([param.detach().reshape(-1) for param in params], out=self.flat_param[: self.numel])
        self.show_params()  # their own memory is free from here on
        self.param_shard = self.flat_param[self.mine].to(self.master_dtype, copy=copy)
        self.shards = [shard for param in params if (shard := self._shard_of(param)) is not None]
        self.flat_grad: Tensor | None = None
        self.grad_shard: Tensor | None = None
        self.arrived: set[Parameter] = set()  # their gradient is in flat_grad
        self.used: set[Parameter] = set()  # they have had a gradient since zero_grad

    def _shard_of(self, param: Parameter) -> Shard | None:
        place, first = self.places[param], self.mine.start
        # The place, cut off where it leaves this rank's range
        begin, end = (min(max(place.start, at), place.stop) for at in (first, self.mine.stop))
        if begin == end and param.numel():  # a parameter of no elements is whole on every rank
            return None
        within = slice(begin - first, end - first)
        shape = param.shape if self.shard_numel == self.padded_numel else (-1,)  # flat, unless the one shard is all
        values = Parameter(self.param_shard[within].view(shape), requires_grad=self.trained)
        return Shard(param=param, shape=param.shape, begin=begin - place.start, place=within, values=values)

    def new_flat(self, dtype: torch.dtype) -> Tensor:
        """Return zeros, [padded_numel]."""
        return torch.zeros(self.padded_numel, dtype=dtype, device=self.device)

    def show_params(self) -> None:
        """Let the model's parameters be views of `flat_param`."""
        assert self.flat_param is not None
        for param, place in self.places.items():
            param.data = self.flat_param[place].view(self.shapes[param])

    def check_params(self) -> None:
        """Raise an error if they are no longer views of `flat_param`, while there is one.

        Raises:
            ValueError: the model was moved or converted. Steps would not reach it.
        """
        if self.flat_param is None:
            return
        ours = self.flat_param.untyped_storage()._cdata
        # Empty are those of a unit of stage 3 that was gathered ahead, by a forward that then failed.
        if any(param.untyped_storage()._cdata != ours and param.numel() for param in self.places):
            raise ValueError(
                "the model's parameters have been moved or converted since the engine was made, and its steps would "
                "not reach them. Call model.to(...) before you make the engine."
            )

    def add_grad(self, param: Parameter, grad: Tensor, scale: float) -> None:
        """Add scale · grad to the parameter's place in `flat_grad`."""
        if self.flat_grad is None:
            self.flat_grad = self.new_flat(self.master_dtype)
        self.flat_grad[self.places[param]].view(self.shapes[param]).add_(grad, alpha=scale)
        self.arrived.add(param)
        self.used.add(param)

    def collect_grads(self, scale: float, free: bool = False) -> None:
        """Add every parameter's gradient, times `scale`, to `flat_grad`; free the gradients if `free`."""
        for param in self.places:
            if param.grad is not None:
                self.add_grad(param, param.grad, scale)
            param.grad = None if free else param.grad

    def take_flat_grad(self) -> Tensor:
        """Return `flat_grad`, to be summed over ranks and freed: 0 where this rank has no gradient."""
        flat_grad = self.flat_grad if self.flat_grad is not None else self.new_flat(self.master_dtype)
        self.flat_grad = None
        self.arrived.clear()
        return flat_grad

    def add_grad_shard(self, grad_shard: Tensor) -> None:
        """Add an averaged gradient, [shard_numel], to those of earlier backwards."""
        self.grad_shard = grad_shard if self.grad_shard is None else self.grad_shard.add_(grad_shard)

    def show_grads(self) -> None:
        """Let the optimizer see the averages in `grad_shard`, except those of parameters that no rank used."""
        for shard in self.shards:
            if self.grad_shard is not None and shard.param in self.used:
                shard.values.grad = self.grad_shard[shard.place].view(shard.values.shape)
            else:
                shard.values.grad = None

    def zero_grad(self) -> None:
        """Free the averages."""
        self.grad_shard = None
        self.used.clear()
        self.show_grads()
