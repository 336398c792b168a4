"""Lesson 02, where the memory goes: the bytes of a model, its optimizer, and the copies on many ranks.

Each exercise is a module; data holds what they share. optimizer is built on model.
"""
