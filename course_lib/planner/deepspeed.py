"""DeepSpeed's own estimators, and why they count 18 bytes a parameter where the ZeRO paper counts 16.

Both describe mixed-precision Adam. The paper counts, for each parameter, 2 bytes of fp16 parameter, 2 of fp16 gradient
and 12 of fp32: master, momentum, variance. DeepSpeed converts the gradients to fp32 before it updates the masters, and
counts 4 bytes for that instead of the 2: 2 + 4 + 12 = 18. In stage 2 it also counts a whole fp16 gradient in addition
to the fp32 shard, as if nothing were freed during backward: 4Ψ + 16Ψ/N where the paper has 2Ψ + 14Ψ/N. DeepSpeed prints
GiB and calls them GB.

The formulas: `docs/code-docs/source/memory.rst` of DeepSpeed; without offload.
"""

import math

from .training.checks import whole


def estimate_zero2(params: float, world_size: int) -> int:
    """Return bytes per GPU, as `estimate_zero2_model_states_mem_needs` does: 4Ψ + 16Ψ/N."""
    psi, ranks = whole("params", params), whole("world_size", world_size)
    return 4 * psi + math.floor(16 * psi / ranks)


def estimate_zero3(params: float, largest_layer_params: float, world_size: int) -> int:
    """Return bytes per GPU, as `estimate_zero3_model_states_mem_needs` does: 4 for the largest layer, and 18Ψ/N.

    The largest layer is whole while it is used: 2 bytes of parameters and 2 of gradients. It is the largest module by
    its own parameters, such as one matrix. Stage 3 really gathers units.
    """
    psi, ranks = whole("params", params), whole("world_size", world_size)
    return 4 * whole("largest_layer_params", largest_layer_params) + math.floor(18 * psi / ranks)
