"""Lesson 13, sequence parallel, and clipping on a mesh. The exercises follow those of `tensor`, and use them."""

EXERCISES = ("gather_sequence", "scatter_sequence", "sequence_mlp", "clip_mesh")
