"""Pretended GPUs, on a machine that has none: programs that say "cuda" run on the CPU.

The program is told that there are GPUs, and torch is told the truth, by who asks: the module of the caller. So torch
takes its ways for CPUs. The functions that take a device are replaced, and no call is intercepted: a training step
takes as long as without. What the program puts on a GPU is marked in the rank's meter (`meter.gpu`).
"""

from .pretended import pretended

__all__ = ["pretended"]
