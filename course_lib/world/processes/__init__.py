"""Ranks as processes of this machine, on the CPU or with a GPU each."""
