"""The numbers that the exercises of lessons 07 and 08 are checked on."""

from collections.abc import Callable, Sequence
from functools import partial

from torch.optim import SGD, AdamW, Optimizer

OPTIMIZERS: Sequence[tuple[str, Callable[..., Optimizer]]] = (
    # The first shows the size of a gradient in the size of its step; the second decays whatever has a gradient.
    ("SGD with momentum", partial(SGD, lr=0.1, momentum=0.9)),
    ("AdamW", partial(AdamW, lr=0.1, weight_decay=0.1)),
)
