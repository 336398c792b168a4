"""The settings of training: everything that a plan may vary, with checks."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .optimizers import OPTIMIZERS, Optimizer
from .precision import FROZEN, PRECISIONS, Precision
from .rules import check

LOSSES = {"torch": 12, "kept": 16, "half": 8, "fused": 4, "parallel": 10, "dtensor": 24, "chunked": 0}
"""Bytes that the loss holds for each logit when backward starts. 16-bit logits beside fp32 ones are not counted.

torch: fp32 log-probabilities and two gradients. kept: the training loop also keeps the fp32 logits.
half: `cross_entropy` of 16-bit logits, without autocast: they, log-probabilities and two gradients, all in 16 bits.
fused: flash-attention's, or torch's that is compiled by itself, as in torchtitan, both on 16-bit logits: it keeps them
and makes 16-bit gradients. A model compiled with its loss needs more if it also returns the logits, as nanoGPT does: 6
bytes under autocast, for which "half" is the nearest that is enough; "torch" in fp32.
parallel: Megatron's and nanotron's, in place, on logits that stay cut over tensor-parallel ranks. dtensor: torch's
`loss_parallel`, with six fp32 tensors. chunked: the head and the loss for a few tokens at a time, as in TRL and Liger;
what these tokens need is not planned.
"""
CHOICES: dict[str, Iterable[str]] = {
    "precision": PRECISIONS, "optimizer": OPTIMIZERS, "checkpointing": ("none", "selective", "operators", "full"),
    "attention": ("math", "flash", "flash_copies"), "loss": LOSSES, "fp8": ("none", "matrices", "gathers"),
    "adapted": ("all", "attention"), "frozen": FROZEN, "engine": ("paper", "zero", "torch", "nanotron"),
    "implementation": ("for-loop", "foreach", "fused"),
}  # fmt: skip
"""The values of each setting that is a name."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of training.

    Attributes:
        world_size: N, the number of ranks.
        stage: 0 is data parallel, 1 shards optimizer states, 2 gradients too, 3 parameters too.
        precision: one of `PRECISIONS`.
        optimizer: one of `OPTIMIZERS`.
        batch: sequences of a micro-batch, on one data-parallel rank.
        sequence: tokens in each.
        micro_batches: how many micro-batches a step has. Their gradients are summed.
        tensor_parallel: neighbouring ranks that share each matrix.
        sequence_parallel: whether they also share what lies between the matrices (Korthikanti et al.).
        context_parallel: ranks that share each sequence; keys and values go around among them (Ring Attention, Liu et
            al., arXiv 2310.01889). They share states as data-parallel ranks do, and are counted as such.
        expert_parallel: data-parallel ranks that share the experts of a layer, each with whole ones.
        capacity_factor: tokens that an expert computes, with padding, for each that comes if all get as many.
        pipeline_parallel: stages of layers, each on ranks of its own.
        pipeline_stage: the stage that is planned; 0 holds the most micro-batches.
        model_chunks: parts of a pipeline stage. With one the schedule is 1F1B, with more it is interleaved.
        checkpointing: the activations that backward recomputes: none ("none"), the attention core ("selective",
            Korthikanti's), all but the attention's result and every second matrix product ("operators", torchtitan's),
            or all of a layer except its input ("full").
        attention: "math" keeps all scores for backward; "flash", as in scaled_dot_product_attention, does not;
            "flash_copies" keeps copies of queries, keys and values from before their rotation too, as nanotron does.
        loss: one of `LOSSES`: how the logits and their gradients are held; "chunked" for a few tokens at a time,
            "fused" on 16-bit logits, also where torch.compile compiles the loss by itself, as in torchtitan. If it
            compiles the model with its loss and the model also returns the logits, as nanoGPT does: "half" under
            autocast, "torch" in fp32.
        whole_logits: whether tensor-parallel ranks gather the logits before the loss, as plain code does.
        fp8: what is in 8 bits: nothing ("none"), the products of the layers' matrices ("matrices"), or what stage 3
            gathers for them too ("gathers"). Activations are kept in 16 bits.
        trainable: the part of the parameters that is trained, of each layer's; the others are frozen. `plan` also takes
            their number. With 0 there is only forward, as for a reference model.
        lora_rank: instead, the rank of trained adapters beside frozen matrices (LoRA, arXiv 2106.09685).
        adapted: the matrices whose inputs are kept for what is trained beside them: "all" of a layer, or "attention"'s.
        frozen: the type of frozen parameters: one of `FROZEN`.
        compiled: whether torch.compile fuses the layers' element-wise work: a gated layer keeps one product fewer.
            With the engines "torch" and "zero", it also moves fewer bytes. Others are timed with kernels fused by hand,
            as in Megatron-LM. If the loss is compiled too, see `loss`.
        shard_size: hybrid sharding: ranks that share one copy of the states; the others hold replicas. Default: all.
        offload: the state in the host's memory: "optimizer" (from stage 1; from stage 2 with the gradient shard, as in
            ZeRO-Offload), "parameters" (stage 3).
        bucket_bytes: how much of the gradients is reduced at a time, and of parameters gathered after the step. The
            default is the engine's: 25 MiB, as in DistributedDataParallel, and for this course's stage 2 at most an
            eighth of the parameters.
        prefetch: stage 3: units gathered ahead of the one in use.
        reshard: stage 3: whether a unit's parameters are freed after forward and gathered again in backward. If not,
            they are freed after backward, in a pipeline after the last one. A number of ranks: they keep a shard among
            them, which backward gathers (ZeRO++'s hpZ, arXiv 2306.10209).
        no_sync: whether only the last micro-batch reduces gradients. The ranks sum whole gradients until then.
        engine: the layout of memory and collectives: "paper", the ZeRO paper's; "zero", this course's; "torch":
            DistributedDataParallel, ZeroRedundancyOptimizer on top of it (stage 1), fully_shard (stage 3); or
            "nanotron": DistributedDataParallel, whole fp32 sums of gradients, states sharded in stage 1.
        implementation: of the optimizer's step in torch: "for-loop", its default on CPUs, "foreach", on GPUs, "fused".
        expandable: whether `reserved_bytes` is for PYTORCH_ALLOC_CONF=expandable_segments:True.

    Raises:
        ValueError: a value is not one of these, or two do not go together.
    """

    world_size: int = 1
    stage: int = 0
    precision: str = "mixed"
    optimizer: str = "adam"
    batch: int = 1
    sequence: int = 1024
    micro_batches: int = 1
    tensor_parallel: int = 1
    sequence_parallel: bool = True
    context_parallel: int = 1
    expert_parallel: int = 1
    capacity_factor: float = 1.0
    pipeline_parallel: int = 1
    pipeline_stage: int = 0
    model_chunks: int = 1
    checkpointing: str = "none"
    attention: str = "math"
    loss: str = "torch"
    whole_logits: bool = False
    fp8: str = "none"
    trainable: float = 1
    lora_rank: int = 0
    adapted: str = "all"
    frozen: str = "bf16"
    compiled: bool = False
    shard_size: int | None = None
    offload: Collection[str] = ()
    bucket_bytes: int | None = None
    prefetch: int = 1
    reshard: bool | int = True
    no_sync: bool = False
    engine: str = "paper"
    implementation: str = "for-loop"
    expandable: bool = False

    def __post_init__(self) -> None:
        check(self, CHOICES)

    @property
    def policy(self) -> Precision:
        """The record behind `precision`."""
        return PRECISIONS[self.precision]

    @property
    def kept(self) -> Optimizer:
        """The record behind `optimizer`."""
        return OPTIMIZERS[self.optimizer]

    @property
    def plain(self) -> bool:
        """Whether a gated model's norms and gates are torch's plain kernels, not fused by hand or by a compiler."""
        return self.engine in ("torch", "zero") and not self.compiled

    @property
    def stream(self) -> int:
        """Bytes of an element of the residual stream, which is in 16 bits if the frozen embedding is."""
        return self.policy.activation if self.partly_frozen and self.frozen != "fp32" else self.policy.stream

    @property
    def between(self) -> int:
        """The ranks that share what lies between the matrices."""
        return self.tensor_parallel if self.sequence_parallel else 1

    @property
    def keeps_gathered(self) -> bool:
        """Whether the whole tokens that sequence parallelism gathers for a matrix are kept for backward.

        torch's PrepareModuleInput and this course's modules keep them; Megatron-LM and nanotron gather them again.
        """
        return self.engine in ("torch", "zero")

    @property
    def logit_cut(self) -> int:
        """The ranks that share the logits of a token."""
        return 1 if self.whole_logits else self.tensor_parallel

    @property
    def partly_frozen(self) -> bool:
        """Whether a part of the parameters, or all, is frozen."""
        return self.trainable < 1 or self.lora_rank > 0

    @property
    def gathers_again(self) -> int:
        """The ranks among which stage 3 gathers in backward; 0 if forward keeps whole parameters."""
        if not self.reshard or self.stage < 3:
            return 0
        return self.shards if self.reshard is True else self.reshard

    @property
    def whole_gradients(self) -> bool:
        """Whether a rank of stage 2 or 3 sums whole gradients, until the last micro-batch."""
        pipeline = self.pipeline_parallel > 1 and (self.engine == "torch" or not self.reshard)
        return (self.no_sync or pipeline) and self.stage >= 2 and self.micro_batches > 1

    @property
    def reductions(self) -> int:
        """How many micro-batches reduce gradients. DistributedDataParallel does so in each, without `no_sync`."""
        if self.stage >= 2:
            return 1 if self.whole_gradients else self.micro_batches
        each = self.engine == "torch" or (self.engine == "zero" and self.stage == 0)
        return self.micro_batches if each and not self.no_sync and self.pipeline_parallel == 1 else 1

    @property
    def data_parallel(self) -> int:
        """The number of ranks that hold the same piece of the model, and read different tokens."""
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def shards(self) -> int:
        """The number of shards of the states: 1 in data parallel."""
        return 1 if self.stage == 0 else self.shard_size or self.data_parallel

    @property
    def replicas(self) -> int:
        """The number of copies of the states."""
        return self.data_parallel // self.shards

    @property
    def last_stage(self) -> bool:
        """Whether the planned stage computes the loss."""
        return self.pipeline_stage == self.pipeline_parallel - 1

    @property
    def in_flight(self) -> float:
        """The most micro-batches whose activations a stage holds (Narayanan et al., arXiv 2104.04473, section 2.2).

        Interleaved, as Megatron-LM warms up: (p - stage - 1) 2 + (chunks - 1) p parts, and the one at work.
        """
        stages, stage = self.pipeline_parallel, self.pipeline_stage
        if stages == 1:
            return 1
        interleaved = stages + (stages - 2 * stage - 1) / self.model_chunks
        return min(interleaved if self.model_chunks > 1 else stages - stage, self.micro_batches)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank."""
        return self.batch * self.sequence // self.context_parallel

    @property
    def tokens_per_rank(self) -> float:
        """Tokens of a step for each rank."""
        return self.tokens * self.micro_batches / (self.tensor_parallel * self.pipeline_parallel)
