"""The states that an optimizer keeps, and the temporaries of its step, to the byte."""

from collections.abc import Sequence
from dataclasses import dataclass

from .shapes import Unit, numel

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
        matrices: how matrices of the layers differ: "" not at all; "one": they have one state; "factored": a matrix has
            a state for each row and one for each column, and so have those outside the layers.
        quantized: whether they are kept in 8 bits, by blocks.
        counts_steps: whether it keeps a count for each tensor, 4 bytes, in the host's memory unless it is `capturable`.
        needs_denominator: whether its step makes sqrt(second moment) + eps as a temporary.
    """

    states: int
    matrices: str = ""
    quantized: bool = False
    counts_steps: bool = False
    needs_denominator: bool = False

    def each(self, units: Sequence[Unit]) -> float:
        """Return the states for each parameter of a model, whose shards are taken to be cut evenly."""
        everything = [shape for unit in units for shape in unit]
        if self.matrices == "one" and everything:  # Muon updates the matrices of the layers
            matrices = [shape for unit in units[1:] for shape in unit if len(shape) > 1]
            return self.states - numel(matrices) / numel(everything)
        if self.matrices == "factored" and everything:
            # Adafactor without momentum (Shazeer and Stern, arXiv 1804.04235, section 3)
            kept = (numel([shape[:-2]]) * sum(shape[-2:]) if len(shape) > 1 else numel([shape]) for shape in everything)
            return sum(kept) / numel(everything)
        return self.states

    def state_bytes(self, numels: Sequence[int], element_bytes: int, units: Sequence[Unit] = ()) -> int:
        """Return the bytes of all states for parameter tensors of `numels` elements, or their shards, of `units`."""
        if not self.quantized:
            return round(self.each(units) * element_bytes * sum(numels))
        large = [numel for numel in numels if numel >= _SMALLEST_QUANTIZED]
        quantized = sum(numel + 4 * -(-numel // _BLOCK) for numel in large) + (_TABLE_BYTES if large else 0)
        return self.states * (quantized + 4 * (sum(numels) - sum(large)))

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


# Lion: one momentum (Chen et al., arXiv 2302.06675). Muon: one for matrices of the layers, AdamW's two for the rest.
OPTIMIZERS = {
    "sgd": Optimizer(states=0),
    "momentum": Optimizer(states=1),
    "adam": Optimizer(states=2, counts_steps=True, needs_denominator=True),
    "adamw": Optimizer(states=2, counts_steps=True, needs_denominator=True),
    "lion": Optimizer(states=1),
    "muon": Optimizer(states=2, matrices="one"),
    "adafactor": Optimizer(states=1, matrices="factored"),
    "adam8bit": Optimizer(states=2, quantized=True),
}
