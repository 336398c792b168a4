"""The words in which a plan speaks of memory.

[Note: moments] A step is looked at seven times: between two steps; at the start of forward, in the first layers; at its
end, with the loss at hand; at the start of backward, in the last layer; at its end, in the first; behind it, where an
engine averages gradients only then; and inside the optimizer's step. Between the start and the end of backward
activations go and gradients come, layer by layer, so the peak is at one of the seven. Gradients are freed between
steps, as `zero_grad` does.
"""

from dataclasses import dataclass

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "communication", "other")
MOMENTS = BETWEEN, BEGIN, FORWARD, START, END, AVERAGING, STEP = (
    "between steps", "start of forward", "end of forward", "start of backward", "end of backward", "averaging",
    "optimizer step",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some bytes of one rank, the fullest.

    Attributes:
        category: one of `CATEGORIES`, which are the meter's.
        name, why: what they are, and why there are so many.
        nbytes: how many.
        moments: when they are there.
        host: in the host's memory, not the device's.
    """

    category: str
    name: str
    nbytes: int
    why: str
    moments: tuple[str, ...] = MOMENTS
    host: bool = False
