"""The settings of training: everything that a plan may vary, with checks."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from .checks import PlanError, known, whole
from .optimizers import OPTIMIZERS, Optimizer
from .precision import FROZEN, PRECISIONS, Precision

OFFLOADED = ("optimizer", "parameters")
LOSSES = {"torch": 12, "kept": 16, "fused": 4, "parallel": 10, "dtensor": 24}
"""Bytes that the loss holds for each logit when backward starts, in addition to the 16-bit logits.

torch: fp32 log-probabilities and two gradients. kept: the training loop also keeps the fp32 logits.
fused: flash-attention's, on 16-bit logits. parallel: Megatron's and nanotron's, in place, on logits that stay cut over
tensor-parallel ranks. dtensor: torch's `loss_parallel`, with six fp32 tensors.
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
        model_chunks: pieces of layers of a pipeline stage. With one the schedule is 1F1B, with more it is interleaved.
        checkpointing: the activations that backward recomputes: none ("none"), the attention core ("selective",
            Korthikanti's), all but the attention's result and every second matrix product ("operators", torchtitan's),
            or all of a layer except its input ("full").
        attention: "math" keeps all scores for backward; "flash", as in scaled_dot_product_attention, does not;
            "flash_copies" keeps copies of queries, keys and values from before their rotation too, as nanotron does.
        loss: one of `LOSSES`: how the logits and their gradients are held.
        whole_logits: whether tensor-parallel ranks gather the logits before the loss, as plain code does.
        fp8: what is in 8 bits: nothing ("none"), the products of the layers' matrices ("matrices"), or what stage 3
            gathers for them too ("gathers"). Activations are kept in 16 bits.
        trainable: the part of the parameters that is trained, of each layer's; the others are frozen. `plan` also takes
            their number. With 0 there is only forward, as for a reference model.
        lora_rank: instead, the rank of trained adapters beside frozen matrices (LoRA, arXiv 2106.09685).
        adapted: the matrices whose inputs are kept for what is trained beside them: "all" of a layer, or "attention"'s.
        frozen: the type of frozen parameters: one of `FROZEN`.
        compiled: whether torch.compile fuses element-wise work: a gated layer keeps one product fewer. With the engine
            "torch", it also moves fewer bytes. Other engines are timed with kernels fused by hand, as in Megatron-LM.
        shard_size: hybrid sharding: ranks that share one copy of the states; the others hold replicas. Default: all.
        offload: the state in the host's memory: "optimizer" (from stage 1; from stage 2 with the gradient shard, as in
            ZeRO-Offload), "parameters" (stage 3).
        bucket_bytes: how much of the gradients is reduced at a time, and of parameters gathered after the step. The
            default is the engine's: 25 MiB, as in DistributedDataParallel, and for this course's stage 2 at most an
            eighth of the parameters.
        prefetch: stage 3: units gathered ahead of the one in use.
        reshard: stage 3: whether a unit's parameters are freed after forward and gathered again in backward. A number
            of ranks: they keep a shard among them, which backward gathers (ZeRO++'s hpZ, arXiv 2306.10209).
        no_sync: whether only the last micro-batch reduces gradients. The ranks sum whole gradients until then.
        engine: the layout of memory and collectives: "paper", the ZeRO paper's; "zero", this course's; "torch":
            DistributedDataParallel, ZeroRedundancyOptimizer on top of it (stage 1), fully_shard (stage 3); or
            "nanotron": DistributedDataParallel, whole fp32 sums of gradients, states sharded in stage 1.
        implementation: of the optimizer's step in torch: "for-loop", "foreach" (its default on GPUs), "fused".
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
        for name in ("world_size", "batch", "sequence", "micro_batches", "tensor_parallel", "pipeline_parallel",
                     "model_chunks", "context_parallel", "expert_parallel"):  # fmt: skip
            whole(name, getattr(self, name))
        whole("stage", self.stage, least=0, most=3)
        whole("prefetch", self.prefetch, least=0)
        whole("lora_rank", self.lora_rank, least=0)
        for name, table in CHOICES.items():
            known(name, getattr(self, name), table)
        if self.bucket_bytes is not None:
            whole("bucket_bytes", self.bucket_bytes)
        whole("pipeline_stage", self.pipeline_stage, least=0, most=self.pipeline_parallel - 1)
        whole("reshard", int(self.reshard) if isinstance(self.reshard, bool) else self.reshard, least=0)
        for found in (self._of_groups(), self._of_values(), self._of_offload(), self._of_engine()):
            for what, why in found:
                raise PlanError(f"{what}: {why}.")

    def _of_groups(self) -> Iterator[tuple[str, str]]:
        """Yield each setting by which ranks cannot be grouped, the reason, and what to choose."""
        groups = self.tensor_parallel * self.pipeline_parallel
        if self.world_size % groups:
            what = f"{self._of('world_size')} with {self._of('tensor_parallel')} and {self._of('pipeline_parallel')}"
            yield what, f"the ranks do not fall into groups of {groups}. Choose a multiple of it as world_size"
        if self.shard_size is not None:
            size = whole("shard_size", self.shard_size, most=self.data_parallel)
            if self.data_parallel % size:
                reason = f"the ranks do not fall into groups of {size}, as hybrid sharding needs"
                what = f"{self._of('shard_size')} with {self._of('world_size')}"
                yield what, f"{reason}. Choose a divisor of {self.data_parallel}"
            if self.stage == 0 and size > 1:
                reason = "data parallel shards nothing. Choose stage 1, 2 or 3, or leave shard_size out"
                yield f"{self._of('shard_size')} with stage=0", reason
        among = self.shards if self.stage else self.data_parallel
        for name, ranks, sharing in (
            ("context_parallel", self.context_parallel, self.data_parallel),
            ("expert_parallel", self.expert_parallel, among), ("reshard", self.gathers_again or 1, among),
        ):  # fmt: skip
            if sharing % ranks:
                reason = f"{sharing} ranks share states, and do not fall into groups of {ranks}"
                yield f"{name}={ranks} with stage={self.stage}", f"{reason}. Choose a divisor of {sharing}"

    def _of_values(self) -> Iterator[tuple[str, str]]:
        """Yield each value that is not in its range, the reason, and what to choose."""
        part = self.trainable if isinstance(self.trainable, int | float) else -1
        room = self.capacity_factor if isinstance(self.capacity_factor, int | float) else 0
        if not 0 <= part <= 1 or (self.trainable != 1 and self.lora_rank):
            reason = "a part of the parameters is trained, from 0 to 1, or adapters of a rank. Give one of the two"
            yield f"{self._of('trainable')}, {self._of('lora_rank')}", reason
        if self.sequence % self.context_parallel or not 1 <= room < inf:
            reason = "ranks share a sequence evenly, and experts have room for the tokens that come"
            what = ", ".join(map(self._of, ("sequence", "context_parallel", "capacity_factor")))
            yield what, f"{reason}. Choose a divisor of sequence, and a capacity_factor of 1 or more"

    def _of_offload(self) -> Iterator[tuple[str, str]]:
        """Yield what cannot be offloaded, the reason, and what to choose."""
        if isinstance(self.offload, str) or not isinstance(self.offload, Collection):
            yield self._of("offload"), "it is a collection of names, not one. Write offload=['optimizer'], say"
        for what in self.offload:
            known("offload", what, OFFLOADED)
            least = 1 if what == "optimizer" else 3
            if self.stage < least:
                reason = f"a rank moves its own shard to the host, and before stage {least} there is no shard of that"
                next_step = f"Choose stage {least} or more, or offload less"
                yield f"offload=[{what!r}] with stage={self.stage}", f"{reason}. {next_step}"

    def _of_engine(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that the engine does not have, the reason, and what to choose."""
        stage, experts = self.stage, self._of("expert_parallel")
        refused: dict[str, list[tuple[bool, str, str]]] = {
            "zero": [
                (self.precision == "bf16", "precision='bf16'",
                 "this course's engines keep fp32 masters. Choose precision='mixed'"),
                (self.reshard is not True, f"reshard={self.reshard}",
                 "this course's stage 3 frees each unit after forward. Choose reshard=True"),
                (self.expert_parallel > 1, experts, "it gives all ranks the same tensors. Choose expert_parallel=1"),
                (self.partly_frozen, "frozen parameters",
                 "this course's shards hold what is trained. Choose trainable=1"),
            ],
            "nanotron": [
                (stage > 1, f"stage={stage}",
                 "nanotron shards the optimizer's states and no more. Choose stage 0 or 1"),
            ],
            "torch": [
                (stage == 1 < self.expert_parallel, experts,
                 "it gives all ranks the same tensors. Choose expert_parallel=1"),
                (stage < 2 and bool(self.policy.master), f"{self._of('precision')} and stage={stage}",
                 "DistributedDataParallel keeps no fp32 masters. Choose precision='fp32', stage=3"),
                (stage == 2, "stage=2",
                 "torch has nothing that shards gradients and keeps whole parameters. Choose stage 1 or 3"),
                (stage == 1 and self.shards != self.data_parallel, f"stage=1 and {self._of('shard_size')}",
                 "ZeroRedundancyOptimizer shards over all ranks. Choose shard_size=None"),
            ],
        }  # fmt: skip
        for wrong, what, why in refused.get(self.engine, []):
            if wrong:
                yield f"{self._of('engine')} with {what}", f"{why}, or another engine"

    def _of(self, name: str) -> str:
        return f"{name}={getattr(self, name)!r}"

    @property
    def policy(self) -> Precision:
        """The record behind `precision`."""
        return PRECISIONS[self.precision]

    @property
    def kept(self) -> Optimizer:
        """The record behind `optimizer`."""
        return OPTIMIZERS[self.optimizer]

    @property
    def between(self) -> int:
        """The ranks that share what lies between the matrices."""
        return self.tensor_parallel if self.sequence_parallel else 1

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

        Interleaved, as Megatron-LM warms up: (p - stage - 1) 2 + (chunks - 1) p pieces, and the one at work.
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


def settings(**given: Any) -> Settings:
    """Return `Settings(**given)`. If a name is unknown, the error lists the known ones.

    Raises:
        ValueError: a name or a value is unknown.
    """
    names = [field.name for field in fields(Settings)]
    for name in given:
        known("setting", name, names)
    return Settings(**given)
