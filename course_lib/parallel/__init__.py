"""Tensor, sequence, pipeline, context and expert parallel, written to be read as `zero` is.

Read `collectives`, then `tensor` (and `vocabulary`), `pipeline`, `context` and `experts`. `mesh` joins tensor parallel
with the stages of ZeRO. All is plain torch and `torch.distributed`: nothing here knows on what backend it runs.
Imports point to the right:

    mesh -> tensor -> vocabulary, parts -> collectives;  experts -> parts;  context -> collectives;
    pipeline -> schedules, collectives
"""

from ..zero import older_torch  # noqa: F401 (gives the collectives the names that they have today)
from .collectives import all_gather, all_reduce, all_to_all, copy, reduce_scatter
from .context import Cut, head_attention, ring_attention
from .experts import ExpertBlock, Experts, average_gradients
from .mesh import clip_grad_norm_, load_whole_state_dict, whole_state_dict
from .pipeline import Pipeline, PipelinePart
from .schedules import one_forward_one_backward
from .tensor import TensorParallelBlock, TensorParallelGPT

__all__ = [
    "Cut", "ExpertBlock", "Experts", "Pipeline", "PipelinePart", "TensorParallelBlock", "TensorParallelGPT",
    "all_gather", "all_reduce", "all_to_all", "average_gradients", "clip_grad_norm_", "copy", "head_attention",
    "load_whole_state_dict", "one_forward_one_backward", "reduce_scatter", "ring_attention",
    "whole_state_dict",
]  # fmt: skip
