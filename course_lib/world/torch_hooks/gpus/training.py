"""Parts of torch that a CPU lacks or computes too slowly: mixed precision, files from GPUs, SyncBatchNorm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import autocast_mode
from torch.distributed.tensor import DTensor
from torch.jit import _builtins
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from ....parallel.collectives import Group, all_gather
from ..patching import Replacement
from .devices import Gpus, meter_of_gpu, placing, put, without


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    yield from _of_mixed_precision(gpus)
    yield from _of_states(gpus)
    yield DataLoader, "__init__", without(gpus, DataLoader.__init__, "pin_memory", "pin_memory_device")
    # There is no code of CUDA to compile.
    yield torch, "compile", lambda model=None, **kwargs: model if model is not None else (lambda model: model)
    yield nn.Module, "compile", lambda self, *args, **kwargs: None
    yield nn.SyncBatchNorm, "forward", _synchronized
    yield nn.functional, "scaled_dot_product_attention", _local_attention(nn.functional.scaled_dot_product_attention)


def scripted(replacements: list[Replacement]) -> Replacement:
    """Return the replacement of the table in which `torch.jit.script` finds torch's functions by their identity."""
    known = {id(new): _builtins._find_builtin(getattr(owner, name)) for owner, name, new in replacements}
    table = _builtins._get_builtin_table() | {key: name for key, name in known.items() if name}
    return _builtins, "_builtin_table", table


def _of_mixed_precision(gpus: Gpus) -> Iterator[Replacement]:
    autocast: Any = torch.autocast
    scaler: Any = torch.amp.GradScaler
    enter = autocast.__init__

    def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        device_type, on_gpu = gpus.place(device_type, by_torch=True)
        if dtype is torch.float16 or (dtype is None and on_gpu):
            dtype = torch.bfloat16  # as many bytes; a CPU multiplies float16 forty times slower
        enter(self, device_type, dtype, *args, **kwargs)

    yield autocast, "__init__", __init__
    yield scaler, "__init__", without(gpus, scaler.__init__, at=1)
    for name in ("custom_fwd", "custom_bwd"):
        for module in (torch.amp, autocast_mode):
            yield module, name, without(gpus, getattr(autocast_mode, name))
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        yield torch, name, without(gpus, getattr(torch, name), at=0)


def _of_states(gpus: Gpus) -> Iterator[Replacement]:
    load, load_state = torch.load, Optimizer.load_state_dict

    def load_here(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        named = list(map_location.values()) if isinstance(map_location, dict) else [map_location]
        on_gpu = any(gpus.number(one) is not None for one in named)
        with placing(on_gpu):
            return load(f, map_location if callable(map_location) else "cpu", *args, **kwargs)

    def load_state_dict(self: Optimizer, state_dict: Any) -> None:
        load_state(self, state_dict)
        meter = meter_of_gpu()
        for param, state in self.state.items():
            if meter is not None and state and meter.holds(param):  # None: ZeroRedundancyOptimizer's, on another rank
                tensors = {name: value for name, value in state.items() if isinstance(value, Tensor) and name != "step"}
                state.update({name: put(value) for name, value in tensors.items()})

    yield torch, "load", load_here
    yield torch.UntypedStorage, "cuda", lambda self, device=None, non_blocking=False: self
    yield Optimizer, "load_state_dict", load_state_dict


def _synchronized(self: Any, x: Tensor) -> Tensor:
    """Return the output of a SyncBatchNorm, which torch computes only on GPUs."""
    if not (self.training and dist.is_initialized()):
        return nn.BatchNorm2d.forward(self, x)
    dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))  # statistics of half precision are in float32
    mean, variance, count = _statistics(x, self.process_group)
    shape = [1, -1] + [1] * (x.dim() - 2)
    if self.running_mean is not None:
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            weight = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked.item()
            self.running_mean.lerp_(mean, weight)
            self.running_var.lerp_(variance * count / (count - 1), weight)
    y: Tensor = (x - mean.view(shape)) * (variance.view(shape) + self.eps).rsqrt()
    return (y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)).to(dtype)


def _statistics(x: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean and the variance of each channel over all ranks, and how many elements a channel has."""
    over, size = [dim for dim in range(x.dim()) if dim != 1], x.shape[1]
    variance, mean = torch.var_mean(x, over, correction=0) if x.numel() else 2 * [x.sum(over)]
    mine = torch.cat([mean, variance, x.new_tensor([x.numel() / size])])
    everyones = all_gather(mine[None], 0, group).double()  # in float32, the weights would round what is constant
    means, variances, counts = everyones.split([size, size, 1], dim=1)
    weights = counts / counts.sum()
    mean = (weights * means).sum(dim=0)
    # Not the mean of squares minus the square of the mean: its rounding may exceed the variance.
    variance = (weights * (variances + (means - mean).square())).sum(dim=0)
    return mean.to(x.dtype), variance.to(x.dtype), counts.sum()


def _local_attention(attention: Any) -> Any:
    def scaled_dot_product_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute attention of DTensors on their local parts: DTensor has rules for CUDA's kernels, not for a CPU's.
        Heads and samples do not depend on each other; positions do, and torch refuses a sequence in shards."""
        if not isinstance(query, DTensor) or any(place.is_shard(query.dim() - 2) for place in query.placements):
            return attention(query, *args, **kwargs)
        args, kwargs = tree_map_only(DTensor, DTensor.to_local, (args, kwargs))
        local = attention(query.to_local(), *args, **kwargs)
        return DTensor.from_local(local, query.device_mesh, query.placements)

    return scaled_dot_product_attention
