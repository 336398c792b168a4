"""The states that an optimizer keeps, and the temporaries of its step, to the byte."""

from collections.abc import Sequence
from dataclasses import dataclass

# bitsandbytes, optim/optimizer.py: smaller tensors keep fp32 states; each block has one fp32 scale; each state has one
# table of 256 fp32 values, whatever the number of tensors.
_SMALLEST_QUANTIZED = 4096
_BLOCK = 256
_TABLE_BYTES = 4 * 256


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer, described by what it keeps of each tensor.

    Attributes:
        states: elements kept for each parameter.
        quantized: whether they are kept in 8 bits, by blocks.
        counts_steps: whether it keeps a count for each tensor, 4 bytes, in the host's memory unless it is `capturable`.
        needs_denominator: whether its step makes sqrt(second moment) + eps as a temporary.
    """

    states: int
    quantized: bool = False
    counts_steps: bool = False
    needs_denominator: bool = False

    def state_bytes(self, numels: Sequence[int], element_bytes: int) -> int:
        """Return the bytes of all states for parameter tensors of `numels` elements."""
        if not self.quantized:
            return self.states * element_bytes * sum(numels)
        large = [numel for numel in numels if numel >= _SMALLEST_QUANTIZED]
        small = sum(numels) - sum(large)
        tables = _TABLE_BYTES if large else 0
        return self.states * (sum(numel + 4 * -(-numel // _BLOCK) for numel in large) + 4 * small + tables)

    def temporaries(self, numels: Sequence[int], implementation: str) -> int:
        """Return the elements of the tensors that live only during the step, at its worst.

        torch's Adam: the for-loop holds `sqrt` and the result of its division for one tensor at a time, and that of the
        tensor before, whose name is not free yet; `foreach` one square root for each tensor at once, `fused` nothing.
        """
        if not self.needs_denominator or implementation == "fused":
            return 0
        if implementation == "foreach":
            return sum(numels)
        return max(before + 2 * at_work for before, at_work in zip([0, *numels], numels, strict=False))


OPTIMIZERS = {
    "sgd": Optimizer(states=0),
    "momentum": Optimizer(states=1),
    "adam": Optimizer(states=2, counts_steps=True, needs_denominator=True),
    "adamw": Optimizer(states=2, counts_steps=True, needs_denominator=True),
    "adam8bit": Optimizer(states=2, quantized=True),
}
