"""Two axes at once: a stage of ZeRO over the ranks of one, tensor parallel over the ranks of the other.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor"))
    model = TensorParallelGPT(TinyGPT(), mesh.get_group("tensor"))
    engine = zero.Stage3(model, torch.optim.AdamW, mesh.get_group("data"), lr=1e-3)

The engine sees a model of which the tensor axis has left it 1/N. What concerns both axes is here: the norm of all
gradients, and a checkpoint that does not depend on the mesh. `group` is the one that TensorParallelGPT got.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..zero.engine import Engine
from .collectives import Group, join, part
from .tensor import TensorParallel


def clip_grad_norm_(engine: Any, max_norm: float, group: Group = None) -> Tensor:
    """Scale all gradients down so that their norm, over all parameters and both axes, is at most `max_norm`.

    Args:
        engine: an engine of `zero`, after backward, around a TensorParallelGPT.
        group: the tensor-parallel ranks.

    Returns:
        The L2 norm before, 0-dim, the same on every rank: as `torch.nn.utils.clip_grad_norm_` in one process.

    Raises:
        ValueError: the model is not cut over the ranks of `group`.
    """
    cut_params = {engine.module.get_parameter(name) for name in _cut_dims(engine, group)}
    engine.average_gradients()
    shards = [shard for shard in engine.shards() if shard.values.grad is not None]
    grads: dict[bool, list[Tensor]] = {True: [], False: []}
    for shard in shards:
        grads[shard.param in cut_params].append(shard.values.grad)
    norms = torch.stack([engine.norm_of(each) for each in grads.values()])  # of what is cut, and of the rest
    squares: Tensor = engine.ranks.sum_over_shards(norms.square())
    dist.all_reduce(squares[:1], group=group)  # each rank has other parts of what is cut, and the same of the rest
    norm = squares.sum().sqrt()
    params = {*engine.trained, *(shard.values for shard in shards)}
    torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm)
    return norm


def whole_state_dict(engine: Any, group: Group = None) -> dict[str, Tensor]:
    """Return the state of the whole TinyGPT, with its keys, on every rank. `engine` may be the model itself.

    Raises:
        ValueError: the model is not cut over the ranks of `group`.
    """
    dims = _cut_dims(engine, group)
    state: dict[str, Tensor] = engine.state_dict()
    return state | {name: join(state[name], dim, group) for name, dim in dims.items()}


def load_whole_state_dict(engine: Any, state_dict: dict[str, Tensor], group: Group = None) -> None:
    """Take the state of the whole TinyGPT, the same on every rank, whatever mesh it was saved on.

    Raises:
        ValueError: the model is not cut over the ranks of `group`.
    """
    dims = {name: dim for name, dim in _cut_dims(engine, group).items() if name in state_dict}
    engine.load_state_dict(state_dict | {name: part(state_dict[name], dim, group) for name, dim in dims.items()})


def _cut_dims(engine: Any, group: Group) -> dict[str, int]:
    """Return the dimension along which each parameter is cut, by its name, as tensor.py wrote it in the layers."""
    model = engine.module if isinstance(engine, Engine) else engine
    cut = {tuple(_ranks(module.group)) for module in model.modules() if isinstance(module, TensorParallel)}
    if cut != {tuple(_ranks(group))}:
        over = f"cut over ranks {[*min(cut)]}" if cut else "not cut by tensor parallel"
        raise ValueError(
            f"rank {dist.get_rank()}: this {type(model).__name__} is {over}, and `group` has ranks {_ranks(group)}. "
            'Give the group with which TensorParallelGPT was made: mesh.get_group("tensor").'
        )
    layers = model.named_modules()
    dims = ((layer, getattr(module, "cut_dims", {})) for layer, module in layers)
    return {f"{layer}.{name}".lstrip("."): dim for layer, names in dims for name, dim in names.items()}


def _ranks(group: Group) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)
