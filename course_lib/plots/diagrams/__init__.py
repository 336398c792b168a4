"""Drawings of the algorithms, computed from the numbers that they are given."""
