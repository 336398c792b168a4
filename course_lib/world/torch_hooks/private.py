"""The private torch names that worlds use: a check that they exist, and functions that read them.

In worlds, only the modules of `torch_hooks` and `dryrun`, and `simulated.py`, use private torch names.
"""

import functools
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported here because its functions keep the importing rank's group as default
from torch._library.custom_ops import CustomOpDef as CustomOpDef
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed import distributed_c10d as c10d
from torch.fx.experimental.proxy_tensor import PythonKeyTracer as PythonKeyTracer
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend "fake")
from torch.utils._pytree import tree_map_only

from ...errors import CourseError
from ...meter import Handle

native: Any = torch._C._distributed_c10d
cpu_kernels: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

__all__ = ["FakeTensor", "FakeTensorMode"]

without_peers = dist.Backend("fake")
"""The backend of groups that send nothing."""

OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)
"""The types of what `torch.ops` holds."""

MAKERS_OF_OPERATORS = (type(torch.ops), type(torch.ops.aten), OpOverloadPacket)
"""The types whose `__getattr__` makes an operator, or what holds it, when it is first asked for."""

VALUE_ASKED = (DataDependentOutputException, DynamicOutputShapeException)
"""Exceptions of fake tensors when an operation depends on their values."""

_NEEDED: dict[Any, list[str]] = {
    torch._C: [
        "_dispatch_tls_set_dispatch_key_included",
        "_dispatch_keyset_full_after",
        "_parse_dispatch_key",
        "_current_graph_task_id",
        "_ensureCUDADeviceGuardSet",
        "_clear_DTensor_sharding_propagator_cache",
    ],
    torch.autograd.Variable: ["_execution_engine"],
    torch.autograd.profiler: ["_prepare_profiler", "_enable_profiler"],
    native: ["_set_thread_isolation_mode", "_create_work_from_future"],
    c10d: ["_world", "ProcessGroupGloo", "_new_process_group_helper", "_warn_not_in_group", "get_debug_level"],
    torch._ops: ["_compute_keyset"],
    torch.random: ["default_generator"],
}
_missing = [
    f"{owner.__name__}.{name}" for owner, names in _NEEDED.items() for name in names if not hasattr(owner, name)
]
if _missing:
    raise CourseError(
        f"torch {torch.__version__} lacks {', '.join(_missing)}, which simulated worlds are built on. "
        "These are private names, which another torch may rename. Install a torch that the course was tried with: "
        "run `make lab` again, or `pip install torch==2.13.0`. `course doctor` lists the others."
    )


def runs_on_cpu(operator: Any) -> bool:
    """Return whether `operator` itself has a kernel for the CPU: else it is made of others."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU"))


def is_renamed(kind: type) -> bool:
    """Return whether a class of torch's C++ code has a different name in its module, as `SDPBackend` has."""
    name = kind.__qualname__
    return getattr(torch._C, name, None) is kind and not hasattr(sys.modules.get(kind.__module__), name)


def path_of(operator: Any) -> str:
    """Return the path of one of `OPERATORS`, such as `torch.ops.aten.mm.default`, or of a renamed class."""
    if isinstance(operator, type):
        return f"torch._C:{operator.__qualname__}"
    return f"torch.ops.{'higher_order.' if isinstance(operator, HigherOrderOperator) else ''}{operator}"


def renew_names(store: dist.Store) -> None:
    """End every group except the default one, and restart the names of new groups, which exchange their addresses
    through `store`."""
    default = c10d._get_default_group()
    for group in list(c10d._world.pg_names):
        if group is not default:
            dist.destroy_process_group(group)
    backend, _ = c10d._world.pg_map[default]
    c10d._world.pg_map[default] = (backend, store)
    c10d._world.group_count = 1  # as after init_process_group


def empty_gpu() -> None:
    """Give back the GPU's memory that torch keeps: what its allocator caches, and what cuBLAS works in."""
    clear: Any = getattr(torch._C, "_cuda_clearCublasWorkspaces")  # noqa: B009 (torch for CPUs has none)
    clear()
    torch.cuda.empty_cache()


def forget_running_ddp() -> None:
    """Drop the DDP module that torch takes for the one whose forward runs. torch notes it for the whole process, and
    when forwards of threads overlap, the last one to end restores a module whose forward is over."""
    DistributedDataParallel._active_ddp_module = None


def forget_wrappers() -> None:
    """Empty the tables of the classes that `fully_shard` and `replicate` have derived from others. They would keep the
    classes of ranks, and with them all that their methods read."""
    for name, table in _WRAPPERS.items():
        getattr(sys.modules.get(name), table, {}).clear()


_WRAPPERS = {
    "torch.distributed.fsdp._fully_shard._fully_shard": "cls_to_fsdp_cls",
    "torch.distributed._composable.replicate_with_fsdp": "cls_to_replicate_cls",
}


def stop_timing_fsdp() -> None:
    """Turn off the timers of FSDP1, if it is imported: it refuses to start one twice in a process, and ranks that are
    threads save at the same time. Importing it here would take half a second."""
    timers: Any = sys.modules.get("torch.distributed.fsdp._debug_utils")
    if hasattr(timers, "SimpleProfiler"):  # a different rank may be importing it
        timers.SimpleProfiler.profile = lambda kind: nullcontext()


def restart_names() -> None:
    """Restart the names of groups, by which the ranks of a group find each other: one that did not form has a name."""
    c10d._world.group_count = 0


def abort_groups() -> None:
    """Abort all groups, which frees threads that wait inside NCCL."""
    if dist.is_initialized():
        c10d._abort_process_group()


def keep_device_guard() -> None:
    """Let the calling thread own the device guard of fake tensors on CUDA, where a CUDA build finds no GPU. In torch
    2.11 the first thread that needs the guard owns it, and frees it at its end: then the next one crashes Python. The
    thread that runs a world outlives the ranks."""
    torch._C._ensureCUDADeviceGuardSet()


@functools.cache  # once in a process, which keeps what is registered
def free_locks_in_forks() -> None:
    """Let a process that a rank's thread forks, such as a DataLoader's worker, find the locks of `torch.manual_seed`
    free. A different rank may hold one at that moment, and the worker has no thread that would release its copy."""
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        for device in ("cuda", "mtia", "xpu"):
            lock: Any = getattr(getattr(torch, device, None), "_initialization_lock", None)
            if lock is not None:
                os.register_at_fork(after_in_child=lock._at_fork_reinit)


def clear_dtensor_cache() -> None:
    """Empty the calling thread's cache of DTensor's layouts, which holds groups. At the end of a thread, torch empties
    it under a lock of all threads and releases Python's lock there: two threads that end at once can wait forever."""
    torch._C._clear_DTensor_sharding_propagator_cache()


def fake_mode() -> Any:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def group_ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    """Return the global ranks of `group`'s members, in the order of their group ranks."""
    by_global = c10d._world.pg_group_ranks[group]
    return tuple(sorted(by_global, key=by_global.__getitem__))


def reduce_op_name(boxed: Any) -> str:
    """Return `"sum"`, `"max"`, ... for the boxed argument of a `c10d` operator."""
    return _REDUCE_OPS[boxed.op()]


_REDUCE_OPS = {op.value: name.lower() for name, op in dist.ReduceOp.RedOpType.__members__.items()}


def work_of(result: Any) -> Any:
    """Return the Work in a `c10d` operator's result, which may also hold tensors."""
    return dist.Work.unbox(result[1] if isinstance(result, tuple) else result)


def at_end_of_backward(arrived: Callable[[], None], passed: Callable[[], None]) -> bool:
    """Call `arrived` when this thread's backward pass has computed every gradient, and `passed` after the callbacks
    queued for its end: in such a callback, in C++, DDP waits for its buckets.

    Return False, and call nothing, outside a backward pass.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def end() -> None:
        arrived()
        queue(passed)

    queue(end)
    return True


def pending_result(operator: Any, arguments: dict[str, Any], future: Any) -> tuple[Any, Handle]:
    """Return the result of an asynchronous `operator` while `future` is open, and the handle of its Work."""
    handle = Handle(native._create_work_from_future(future))
    outputs, boxed = next(iter(arguments.values())), handle.work.boxed()
    return ((outputs, boxed) if len(operator._schema.returns) == 2 else boxed), handle


def without_mode(value: Any) -> Any:
    """Return `value` with its fake tensors moved to the meta device, where they outlive their mode."""
    with torch.device("meta"):
        return tree_map_only(
            FakeTensor, lambda tensor: torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype), value
        )


def completed(operator: Any, arguments: dict[str, Any]) -> tuple[Any, Handle | None]:
    """Return the result of `operator` as if its group had finished at once, and the handle of its Work."""
    if not operator._schema.returns:
        return None, None
    outputs = next(iter(arguments.values()))
    future: Any = torch.futures.Future()
    future.set_result(list(outputs) if isinstance(outputs, list | tuple) else [outputs])
    return pending_result(operator, arguments, future)
