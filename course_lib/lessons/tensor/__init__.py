"""Lesson 13, tensor parallel: from two ways to cut a matrix to a loss whose scores no rank has whole.

Each exercise is a module; data holds what they share. The later ones are built from the earlier:
all_reduce -> mlp, attention, embedding, cross_entropy; gather_sequence -> sequence_mlp.
"""
