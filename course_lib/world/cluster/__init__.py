"""Ranks that are processes on several machines, driven through ipyparallel."""
