"""Parts of torch that a CPU lacks or computes too slowly: mixed precision, files from GPUs, SyncBatchNorm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import autocast_mode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed import _state_dict_utils
from torch.distributed.checkpoint import staging
from torch.distributed.tensor import DTensor
from torch.jit import _builtins
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from ....parallel.collectives import Group, all_gather
from ..patching import Replacement
from .devices import Gpus, by_torch, meter_of_gpu, placing, put, without


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    yield from _of_mixed_precision(gpus)
    yield from _of_states(gpus)
    yield save_on_cpu, "__init__", _save_on_cpu
    yield _state_dict_utils, "_iterate_state_dict", _offloading(_state_dict_utils._iterate_state_dict)
    for module in (_state_dict_utils, staging):
        yield module, "_create_cpu_state_dict", _on_the_host(_state_dict_utils._create_cpu_state_dict)
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

    def storage_on_gpu(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        if by_torch() or not self.nbytes():
            return self
        return put(torch.empty(0, dtype=torch.uint8).set_(self)).untyped_storage()

    yield torch, "load", load_here
    yield torch.UntypedStorage, "cuda", storage_on_gpu
    yield Optimizer, "load_state_dict", load_state_dict


def _save_on_cpu(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
    """Keep saved tensors on the host. Torch's own hooks make pinned memory without a device, and read the devices of
    tensors, which are the CPU for torch."""

    def pack(tensor: Tensor) -> tuple[bool, Tensor]:
        meter = meter_of_gpu()
        on_gpu = meter is not None and meter.holds(tensor)
        return on_gpu, put(tensor, False) if on_gpu else tensor

    saved_tensors_hooks.__init__(self, pack, lambda packed: put(packed[1]) if packed[0] else packed[1])


def _offloading(iterate: Any) -> Any:
    def iterate_state_dict(*args: Any, **kwargs: Any) -> Any:
        """Copy each tensor of a state dict to the host if `cpu_offload` is set. For torch, it is there already."""
        result = iterate(*args, **kwargs)
        offloads = kwargs.get("cpu_offload") and kwargs.get("companion_obj") is None
        return put(result, False) if offloads and isinstance(result, Tensor) else result

    return iterate_state_dict


def _on_the_host(make: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with placing(False):
            return make(*args, **kwargs)

    return call


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
