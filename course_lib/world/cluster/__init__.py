"""Ranks as processes of several machines, driven through ipyparallel."""
