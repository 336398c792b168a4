"""Lesson 13, sequence parallel, and clipping on a mesh. The exercises follow those of `tensor`, and use them."""

from . import clip_mesh, gather_sequence, scatter_sequence, sequence_mlp

EXERCISES = (
    gather_sequence.exercise,
    scatter_sequence.exercise,
    sequence_mlp.exercise,
    clip_mesh.exercise,
)
