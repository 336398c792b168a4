"""The bytes of each element, by precision policy."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes of one element of each kind.

    Attributes:
        what: the policy in words.
        parameter: of a parameter as the model computes with it, and as it is gathered.
        kept: of a parameter in stage 3's shard.
        gradient: of a gradient as backward makes it.
        accumulated: of a second, fp32 gradient in which micro-batches are summed; 0 for none.
        master: of an fp32 copy of the parameter that the optimizer updates; 0 for none.
        state: of each state of the optimizer, such as Adam's two moments.
        reduced: of a gradient on the wire.
        activation: of what forward keeps for backward.
        stream: of the residual stream, and so of what norms keep.
        copied: of a copy of each matrix that backward uses; 0 for none.
        fast: whether computation is in bf16, at the rate of the tensor cores.
    """

    what: str
    parameter: int
    kept: int
    gradient: int
    accumulated: int = 0
    master: int = 0
    state: int
    reduced: int
    activation: int
    stream: int
    copied: int = 0
    fast: bool


# Rajbhandari et al. (arXiv 1910.02054), section 3.1: with Adam, mixed precision is 2 + 2 + K, K = 4 + 4 + 4 = 12.
# Llama 3 (arXiv 2407.21783, section 3.3.2) sums and reduces gradients in fp32: 4 bytes more, and twice the traffic.
PRECISIONS = {
    "fp32": Precision(
        what="all in fp32", parameter=4, kept=4, gradient=4, state=4, reduced=4, activation=4, stream=4,
        fast=False,
    ),
    "mixed": Precision(
        what="16-bit parameters and gradients, fp32 masters and moments",
        parameter=2, kept=2, gradient=2, master=4, state=4, reduced=2, activation=2, stream=2, fast=True,
    ),
    "mixed_fp32_accumulation": Precision(
        what="as mixed, with gradients also summed and reduced in fp32",
        parameter=2, kept=2, gradient=2, accumulated=4, master=4, state=4, reduced=4, activation=2, stream=2,
        fast=True,
    ),
    "bf16": Precision(
        what="all in bf16, no masters",
        parameter=2, kept=2, gradient=2, state=2, reduced=2, activation=2, stream=2, fast=True,
    ),
    "bf16_fp32_reduction": Precision(
        what="as bf16, with gradients reduced in fp32",
        parameter=2, kept=2, gradient=2, state=2, reduced=4, activation=2, stream=2, fast=True,
    ),
    "autocast": Precision(
        what="fp32 parameters under torch.autocast, matrix products in 16 bits",
        parameter=4, kept=4, gradient=4, state=4, reduced=4, activation=2, stream=4, copied=2, fast=True,
    ),
}  # fmt: skip

FROZEN = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a frozen parameter, constants of blocks included. Quantized are only the matrices of the layers; the rest,
embedding and head among it, stays in 16 bits.

int8: LLM.int8() (Dettmers et al., arXiv 2208.07339), without its 4 bytes for each row. nf4: QLoRA (arXiv 2305.14314),
section 3: 4 bits, 8 for each block of 64, 32 for each 256 of these: 4.127 bits.
"""
