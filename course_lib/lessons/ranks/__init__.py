"""Lesson 01, ranks and collectives: from "what is a rank" to an all-reduce of one's own.

Each exercise is a module; data holds what they share. The later ones are built from the earlier:
exchange -> ring_reduce_scatter, ring_all_gather -> all_reduce.
"""
