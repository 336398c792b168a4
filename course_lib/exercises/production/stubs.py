"""What the cells of lesson 09 start from, under the names that the learner's functions have."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def make_zero1(
    model: nn.Module, lr: float, weight_decay: float
) -> tuple[DistributedDataParallel, ZeroRedundancyOptimizer]:
    """Return the model with gradients averaged over the ranks, and an AdamW with sharded state.

    Parameters of two or more dimensions decay by `weight_decay`, all others not at all.
    """
    raise NotImplementedError


def make_zero3(model: nn.Module, mesh: DeviceMesh, lr: float) -> Optimizer:
    """Shard `model` over `mesh` with FSDP2, and return an Adam that trains it.

    Each of `model.blocks` is a unit, gathered for forward and again for backward. All else is
    one more unit, which stays whole from forward to backward.
    """
    raise NotImplementedError


def resume(model: nn.Module, optimizer: Optimizer, checkpoint: dict[str, Any]) -> None:
    """Load whole states into a model that FSDP2 has sharded, and into its optimizer.

    On rank 0, `checkpoint` has the state dicts "model" and "optimizer", whole. On all other ranks
    it is empty.
    """
    raise NotImplementedError


def fsdp2_settings(config: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Return what a DeepSpeed configuration of stage 2 or 3 comes to with FSDP2.

    "reshard_after_forward" and "offload": bools; "param_dtype": "bfloat16", "float16" or None;
    "max_norm": of all gradients, a float, or None where they are not clipped;
    "micro_batches": how many there are in a step.
    """
    raise NotImplementedError


def faults(config: dict[str, Any], world_size: int) -> list[str]:
    """Return the settings of a DeepSpeed configuration that cannot hold or have no effect, sorted.

    "train_batch_size" that is not micro-batch times accumulation times ranks; "bf16" beside "fp16";
    "offload_param" or any "stage3_..." below stage 3; "offload_optimizer" at stage 0.
    """
    raise NotImplementedError
