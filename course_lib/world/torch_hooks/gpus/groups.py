"""Process groups, meshes, DDP and FSDP: they take GPUs, and here they compute on the CPU with gloo."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch._dynamo  # noqa: F401 (now, because it makes tables of torch's functions, while they are torch's own)
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint, device_mesh, utils
from torch.distributed import distributed_c10d as c10d
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.fsdp import FullyShardedDataParallel, _flat_param, _init_utils
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_init, _fsdp_param
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from ..patching import Replacement
from .devices import CPU, Gpus, by_torch, meter_of_gpu, placing, put, without


def replacements(gpus: Gpus) -> Iterator[Replacement]:
    yield from _of_groups(gpus)
    yield from _of_meshes(gpus)
    yield from _of_ddp(gpus)
    yield from _of_fsdp()


def _of_groups(gpus: Gpus) -> Iterator[Replacement]:
    def on_gloo(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple("gloo" if isinstance(arg, str) and "nccl" in arg else arg for arg in args)
            if "nccl" in str(kwargs.get("backend")):
                kwargs["backend"] = "gloo"
            return function(*args, **{name: value for name, value in kwargs.items() if name not in _OF_NCCL})

        return call

    def flat(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            """Flatten tensors whose rows differ in shape: NCCL only counts elements, and gloo compares shapes."""
            tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
            differ = len({(one.dim(), one.shape[1:]) for one in tensors}) > 1
            if differ and all(one.is_contiguous() for one in tensors):
                args, kwargs = tree_map_only(Tensor, lambda one: one.view(-1), (args, kwargs))
            return function(*args, **kwargs)

        return call

    join, without_gloo = on_gloo(c10d.init_process_group), set[Any]()
    make_subgroups = c10d.new_subgroups

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        join(*args, **kwargs)
        if "nccl" in (*args[:1], kwargs.get("backend")):
            without_gloo.add(dist.group.WORLD)

    def new_subgroups(group_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        return make_subgroups(gpus.count if group_size is None else group_size, *args, **kwargs)

    yield c10d, "_set_pg_timeout", lambda timeout, group=None: None  # it asks for NCCL's class
    for module in (dist, c10d):
        yield module, "init_process_group", init_process_group
        yield module, "new_subgroups", new_subgroups
        yield module, "new_group", on_gloo(c10d.new_group)
        yield module, "barrier", without(gpus, c10d.barrier, "device_ids")
        yield module, "is_nccl_available", lambda: True
        for name in _OF_ANY_SHAPE:
            if hasattr(c10d, name):
                yield module, name, flat(getattr(c10d, name))
    yield from _of_checkpoints(without_gloo)


def _of_checkpoints(without_gloo: Collection[Any]) -> Iterator[Replacement]:
    save = state_dict_saver.async_save
    groups: dict[Any, Any] = {}

    @functools.wraps(save)
    def async_save(*args: Any, process_group: Any = None, no_dist: bool = False, **kwargs: Any) -> Any:
        """Save with a group of its own: on GPUs, its calls are gloo's, and those of the program are NCCL's."""
        if dist.is_initialized() and process_group is None and not no_dist:
            world = dist.group.WORLD
            if world in without_gloo:
                raise AssertionError(
                    "A CPU backend must be enabled for async save; try initializing process group with "
                    "'cpu:gloo,cuda:nccl'"
                )
            if world not in groups:
                groups[world] = dist.new_group()
            process_group = groups[world]
        return save(*args, process_group=process_group, no_dist=no_dist, **kwargs)

    for module in (checkpoint, state_dict_saver):
        yield module, "async_save", async_save


_OF_NCCL = ("device_id", "pg_options")
_OF_ANY_SHAPE = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")


def _of_meshes(gpus: Gpus) -> Iterator[Replacement]:
    mesh = device_mesh.DeviceMesh
    real: Any = mesh.device_type
    yield mesh, "__init__", without(gpus, mesh.__init__, at=1)
    yield mesh, "device_type", property(lambda self: real.fget(self) if by_torch() else "cuda")
    for module in (device_mesh, dist):
        yield module, "init_device_mesh", without(gpus, device_mesh.init_device_mesh, at=0)
    for kind, name, at in (
        (Shard, "_make_shard_tensor", 1),
        (_StridedShard, "_make_shard_tensor", 1),
        (Replicate, "_make_replicate_tensor", 0),
    ):
        yield kind, name, classmethod(_moving(getattr(kind, name).__func__, at + 1))


def _moving(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Return `function`, with a tensor of its arguments moved to the GPU."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*(put(arg) if place == at else arg for place, arg in enumerate(args)), **kwargs)

    return call


def _of_ddp(gpus: Gpus) -> Iterator[Replacement]:
    ddp: Any = DistributedDataParallel
    make, move, checked = ddp.__init__, utils._recursive_to, ddp._check_comm_hook

    def __init__(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        asked = gpus.number(device_ids[0]) if device_ids else None
        if None not in (asked, gpus.chosen) and asked != gpus.chosen:
            raise RuntimeError(
                f"Expected all tensors to be on the same device: this rank's GPU is cuda:{gpus.chosen}, and "
                f"device_ids=[{asked}] moves the model's inputs to cuda:{asked}. Pass device_ids=[{gpus.chosen}]."
            )
        meter = meter_of_gpu()
        on_host = meter is not None and any(one.numel() and not meter.holds(one) for one in module.parameters())
        # With device_ids, torch refuses a model on the CPU.
        make(self, module, device_ids if on_host else None, None, *args, **kwargs)
        self.device_ids = [0] if device_ids else None  # DDP then moves the model's inputs

    def to_gpu(inputs: Any, target_device: Any, *args: Any) -> Any:
        return move(tree_map_only(Tensor, put, inputs), CPU, False)

    def check(self: Any, hook: Any) -> None:
        if not getattr(hook, "__name__", "").startswith("bf16_compress_"):  # which asks torch for a version of NCCL
            checked(self, hook)

    yield ddp, "__init__", __init__
    yield ddp, "_check_comm_hook", check
    yield ddp, "_passing_sync_batchnorm_handle", lambda self, module: None
    yield utils, "_recursive_to", to_gpu


def _of_fsdp() -> Iterator[Replacement]:
    fsdp: Any = FullyShardedDataParallel
    shard = fsdp.__init__

    def __init__(
        self: Any,
        module: Any,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Shard without `cpu_offload`, which synchronizes a stream: those of a CPU have no such method."""
        shard(self, module, process_group, sharding_strategy, None, *args, **kwargs | {"device_id": CPU})

    def move(params: Iterable[Tensor], buffers: Iterable[Tensor], device: Any) -> None:
        for tensor in (*params, *buffers):
            held = tensor.detach()
            if (moved := put(held)) is not held:
                tensor.data = moved

    # A state dict that is offloaded to the CPU needs a copy: FSDP frees what is on the GPU.
    handle: Any = _flat_param.FlatParamHandle
    move_flat = handle.flat_param_to

    def flat_param_to(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self.is_sharded(self.flat_param):
            with placing(False):
                self.flat_param.data = self.flat_param.data.clone()
        move_flat(self, *args, **kwargs)

    yield handle, "flat_param_to", flat_param_to
    if hasattr(handle, "_offload_to_cpu"):  # torch 2.14 leaves it out for a parameter that says it is on the CPU
        yield handle, "to_cpu", handle._offload_to_cpu

    divide_factors: Any = _fsdp_collectives._get_gradient_divide_factors

    def after_the_sum(*args: Any) -> Any:
        """Divide by a factor that the program has set after the sum: gloo has no `PREMUL_SUM`."""
        shards, *others, factor, force_sum = args
        alone = shards is None or shards.size() == 1  # torch then divides by the factor itself
        return divide_factors(shards, *others, factor, force_sum or (factor is not None and not alone))

    yield _fsdp_collectives, "_get_gradient_divide_factors", after_the_sum

    # On a GPU, FSDP2's CPU offload moves a gradient to the host before it makes a DTensor of it.
    part: Any = _fsdp_param.FSDPParam
    to_dtensor = part.to_sharded_dtensor

    def to_sharded_dtensor(self: Any, tensor: Tensor) -> Any:
        return to_dtensor(self, put(tensor, on_gpu=False) if self.offload_to_cpu else tensor)

    yield part, "to_sharded_dtensor", to_sharded_dtensor
    yield fsdp, "__init__", __init__
    # Its default is the group that existed when the module was imported: a different rank's, or that of an earlier run.
    scale = functools.partialmethod(ShardedGradScaler.__init__, process_group=None)
    yield ShardedGradScaler, "__init__", scale
    for module in (_init_utils, _fsdp_init):
        yield module, "_move_states_to_device", move
    # It refuses parameters on the CPU.
    yield _init_utils, "_check_module_states_for_sync_module_states", lambda module_states: None
