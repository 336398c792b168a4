"""Modules whose parameters are gathered together: just before they are used, while the modules before them compute.

    unit           a module whose parameters are gathered together (a transformer block, say); unit 0 is the whole
                   model, for the parameters that are in no other unit or in several
    flat_param     [padded_numel] in stage 3 it exists from `gather` to `free`; the parameters are views of it while
                   the unit is ready, and empty otherwise
    param_shard    [shard_numel] this rank's shard, which always exists: see buckets.py

What else holds a view of flat_param (a closure, autograd) holds all of it in memory, freed or not.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from .buckets import FlatBucket, in_buckets
from .engine import Ranks


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Return the items of the outermost ModuleLists and Sequentials: a transformer's layers, say."""
    for child in model.children():
        if isinstance(model, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield child
        else:
            yield from blocks(child)


def parameters_by_unit(model: nn.Module, units: Iterable[nn.Module]) -> dict[nn.Module, list[Parameter]]:
    """Return each unit's parameters. The first unit, `model`, has what no other unit has, and what several have.

    Raises:
        ValueError: a unit is not within the model, or is within another unit.
    """
    units, inside = list(units), set(model.modules()) - {model}
    by_unit: dict[nn.Module, list[Parameter]] = {model: [], **{unit: [] for unit in units}}
    units_of: dict[nn.Module, set[nn.Module]] = defaultdict(set)  # several, if they share a module
    for unit in units:
        for module in unit.modules():
            if module not in inside or units.count(unit) > 1 or (module in units and module is not unit):
                raise ValueError(
                    f"units: a {type(module).__name__} of a {type(unit).__name__} is in two units, or not within the "
                    "model. Take units from model.modules(), none of them within another."
                )
            units_of[module].add(unit)
    homes: dict[Parameter, set[nn.Module]] = defaultdict(set)
    for module in model.modules():
        for param in module.parameters(recurse=False):
            homes[param] |= units_of.get(module, {model})
    for param, units_of_it in homes.items():
        by_unit[units_of_it.pop() if len(units_of_it) == 1 else model].append(param)
    return {unit: params for unit, params in by_unit.items() if params or unit is model}


class Unit:
    """Some parameters in stage 3, of which this rank keeps a shard and gathers the rest when they are needed.

    Attributes:
        buckets: one for each dtype; those that are not trained are gathered alike, and never reduced.
    """

    def __init__(self, number: int, params: Iterable[Parameter], ranks: Ranks) -> None:
        self.number, self._ranks = number, ranks
        kinds = in_buckets(params, math.inf)
        self.buckets = [FlatBucket(kind, ranks.rank, ranks.world_size, copy=True) for kind in kinds]
        self._gathers: list[tuple[FlatBucket, Any]] = []
        self.free()

    def gather(self) -> None:
        """Start to bring in the parameters; they are there when `ready` returns."""
        for bucket in self.buckets:
            if bucket.flat_param is None:
                bucket.flat_param = bucket.new_flat(bucket.dtype)
                shard = bucket.param_shard.to(bucket.dtype)
                work = dist.all_gather_single(bucket.flat_param, shard, group=self._ranks.process_group, async_op=True)
                self._gathers.append((bucket, work))

    def ready(self) -> None:
        """Wait for the all-gather (start it if needed) and point the parameters at it."""
        self.gather()
        for bucket, work in self._gathers:
            work.wait()
            bucket.show_params()
        self._gathers.clear()

    def free(self) -> None:
        """Keep nothing but the shards."""
        for _, work in self._gathers:
            work.wait()  # nobody needed them, but they are being written
        self._gathers.clear()
        for bucket in self.buckets:
            if bucket.flat_param is not None:
                bucket.flat_param = None
                for param in bucket.places:
                    param.data = param.data.new_empty(0)


def materialize(unit: nn.Module, params: Iterable[Parameter], others: Collection[nn.Module] = ()) -> list[Tensor]:
    """Give the parameters and buffers of a unit that are on the meta device memory and their first values.

    Each module's `reset_parameters` fills what is its own. Then the unit's `init_weights` runs, if the unit has one.

    Args:
        unit, params: a module, and its parameters that are gathered together.
        others: the modules of other units, whose buffers are not this unit's.

    Returns:
        What was on the meta device, in an order that is the same on every rank.

    Raises:
        ValueError: neither method has filled a parameter or a buffer.
    """
    ours, owners = set(params), dict[Tensor, nn.Module]()
    for module in unit.modules():
        buffers = () if module in others else module.buffers(recurse=False)
        for tensor in (*(param for param in module.parameters(recurse=False) if param in ours), *buffers):
            if tensor.is_meta:
                owners.setdefault(tensor, module)
    for tensor in owners:
        _allocate(tensor)
    for module in dict.fromkeys(owners.values()):
        _call(module, "reset_parameters", "_reset_parameters")
    if owners:
        _call(unit, "init_weights")
    for tensor, module in owners.items():
        own = {*module.parameters(recurse=False), *module.buffers(recurse=False)}
        if tensor in own and tensor._version == 0:  # nothing was written to it, or put in its place
            raise ValueError(
                f"a {type(module).__name__} was made on the meta device, and a tensor of shape {[*tensor.shape]} in it "
                "was not filled. Give its class a method reset_parameters(), or its unit, a "
                f"{type(unit).__name__}, a method init_weights(), which fills parameters and buffers in place."
            )
    return list(owners)


def _call(module: nn.Module, *names: str) -> None:
    """Call the first of these methods that the module has."""
    if methods := [getattr(module, name) for name in names if hasattr(module, name)]:
        methods[0]()


def _allocate(tensor: Tensor) -> None:
    """Give a tensor on the meta device memory, with undefined values."""
    values = torch.empty_like(tensor, device=torch.get_default_device())
    same = Parameter(values, tensor.requires_grad) if isinstance(tensor, Parameter) else values
    # As torch.utils.swap_tensors, which refuses tensors with weak references, such as those of a meter
    tensor.__dict__, same.__dict__ = same.__dict__, tensor.__dict__
    torch._C._swap_tensor_impl(tensor, same)
