"""The vocabulary for the memory in a plan: categories, moments of a step, parts.

[Note: moments] A step is sampled seven times: between two steps; at the start of forward, in the first layers; at its
end, with the loss computed; at the start of backward, in the last layer; at its end, in the first layer; after
backward, where an engine averages gradients only then; and inside the optimizer's step. Between the start and the end
of backward activations are freed and gradients allocated, layer by layer, so the peak is at one of the seven. Gradients
are freed between steps, as `zero_grad` does.
"""

from dataclasses import dataclass

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "communication", "other")
MOMENTS = BETWEEN, BEGIN, FORWARD, START, END, AVERAGING, STEP = (
    "between steps", "start of forward", "end of forward", "start of backward", "end of backward", "averaging",
    "optimizer step",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some bytes of the rank that holds the most.

    Attributes:
        category: one of `CATEGORIES`, which are the meter's.
        name, why: the purpose of the bytes, and the reason for their number.
        nbytes: the number of bytes.
        moments: when they exist.
        host: whether they are in the host's memory, not the device's.
    """

    category: str
    name: str
    nbytes: int
    why: str
    moments: tuple[str, ...] = MOMENTS
    host: bool = False
