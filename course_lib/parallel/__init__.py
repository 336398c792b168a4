"""Tensor, sequence and pipeline parallel, written to be read as `zero` is.

Read `collectives`, then `tensor` (and `vocabulary`), then `pipeline`. `mesh` joins them with the stages of ZeRO. All is
plain torch and `torch.distributed`: nothing here knows on what backend it runs. Imports point to the right:

    tensor -> vocabulary -> collectives;  mesh -> collectives;  pipeline -> schedules
"""

from ..zero import older_torch  # noqa: F401 (gives the collectives the names that they have today)
from .collectives import all_gather, all_reduce, copy, reduce_scatter
from .mesh import clip_grad_norm_, load_whole_state_dict, whole_state_dict
from .pipeline import Pipeline, PipelinePart
from .schedules import one_forward_one_backward
from .tensor import TensorParallelBlock, TensorParallelGPT

__all__ = [
    "Pipeline", "PipelinePart", "TensorParallelBlock", "TensorParallelGPT", "all_gather", "all_reduce",
    "clip_grad_norm_", "copy", "load_whole_state_dict", "one_forward_one_backward", "reduce_scatter",
    "whole_state_dict",
]  # fmt: skip
