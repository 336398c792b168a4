"""Functional collectives by one name on every torch: torch 2.13 renamed them."""

from torch.distributed import _functional_collectives as funcol

_RENAMED = hasattr(funcol, "all_gather_single")

all_gather = funcol.all_gather_single if _RENAMED else funcol.all_gather_tensor
all_gather_autograd = funcol.all_gather_single_autograd if _RENAMED else funcol.all_gather_tensor_autograd
reduce_scatter = funcol.reduce_scatter_single if _RENAMED else funcol.reduce_scatter_tensor
reduce_scatter_autograd = funcol.reduce_scatter_single_autograd if _RENAMED else funcol.reduce_scatter_tensor_autograd
