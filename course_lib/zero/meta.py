"""Models that were made on the meta device: shapes without memory, which stage 3 fills unit by unit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import Parameter


def materialize(unit: nn.Module, params: Iterable[Parameter]) -> list[Tensor]:
    """Give `params`, and the buffers of the modules that hold them, memory and the values of `reset_parameters`.

    Returns:
        What was on the meta device, in an order that is the same on every rank.

    Raises:
        ValueError: a module has parameters on the meta device, and no `reset_parameters`.
    """
    ours = {param for param in params if param.is_meta}
    holders = [module for module in unit.modules() if not ours.isdisjoint(module.parameters(recurse=False))]
    tensors: dict[Tensor, None] = {}
    for module in holders:
        held = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        tensors |= dict.fromkeys(tensor for tensor in held if tensor.is_meta)
    for tensor in tensors:
        values = torch.empty_like(tensor, device=torch.get_default_device())
        same = Parameter(values, tensor.requires_grad) if isinstance(tensor, Parameter) else values
        # As torch.utils.swap_tensors, which refuses tensors with weak references, such as those of a meter
        tensor.__dict__, same.__dict__ = same.__dict__, tensor.__dict__
        torch._C._swap_tensor_impl(tensor, same)
    for module in holders:
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is None:
            raise ValueError(
                f"a {type(module).__name__} has parameters on the meta device and no reset_parameters(). Give its "
                "class this method, which fills the parameters of one module in place."
            )
        reset()
    return list(tensors)
