"""The machine: ranks, collectives and memory."""
