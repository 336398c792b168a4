"""The settings of training: everything that a plan may vary, with checks."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from .checks import known, pick, whole
from .optimizers import OPTIMIZERS, Optimizer
from .precision import PRECISIONS, Precision

CHECKPOINTING = ("none", "selective", "full")
ATTENTION = ("math", "flash")
OFFLOADED = ("optimizer", "parameters")
ENGINES = ("paper", "zero", "torch")
IMPLEMENTATIONS = ("for-loop", "foreach", "fused")
ALLOCATORS = ("exact", "cuda")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of training.

    Attributes:
        world_size: N, the number of ranks.
        stage: 0 is data parallel, 1 shards optimizer states, 2 gradients too, 3 parameters too.
        precision: one of `PRECISIONS`.
        optimizer: one of `OPTIMIZERS`.
        batch: sequences that one rank takes in one step.
        sequence: tokens in each.
        checkpointing: the activations that backward recomputes: none ("none"), the attention core ("selective"), or all
            of a layer except its input ("full").
        attention: "math" keeps all scores for backward; "flash", as in scaled_dot_product_attention, does not.
        shard_size: hybrid sharding: ranks that share one copy of the states; the others hold replicas. Default: all.
        offload: the state in the host's memory: "optimizer" (from stage 1; from stage 2 with the gradient shard, as in
            ZeRO-Offload), "parameters" (stage 3).
        bucket_bytes: how much of the gradients is reduced at a time, and of parameters gathered after the step. The
            default is the engine's: 25 MiB, as in DistributedDataParallel, and for this course's stage 2 at most an
            eighth of the parameters.
        prefetch: stage 3: units gathered ahead of the one in use.
        overlap: whether communication runs in parallel with computation.
        reshard: stage 3: whether a unit's parameters are freed after forward and gathered again in backward. (torch's
            `fully_shard` keeps those of the outermost unit unless `reshard_after_forward=True` is passed. Its memory is
            planned with them kept; its communication, as if they were gathered again.)
        engine: the layout of memory and collectives: "paper", the ZeRO paper's; "zero", this course's; or "torch":
            DistributedDataParallel, ZeroRedundancyOptimizer on top of it (stage 1), fully_shard (stage 3).
        implementation: of the optimizer's step in torch: "for-loop", "foreach" (its default on GPUs), "fused".
        activation_bytes: the most that activations and their gradients take at once, if that was measured: see `plan`.
            By default both are computed for a transformer, and left out for anything else.
        allocator: "exact" bytes, or "cuda": each tensor rounded as torch's caching allocator rounds it, without the
            counts that optimizers keep on the host.

    Raises:
        ValueError: a value is not one of these, or two do not go together.
    """

    world_size: int = 1
    stage: int = 0
    precision: str = "mixed"
    optimizer: str = "adam"
    batch: int = 1
    sequence: int = 1024
    checkpointing: str = "none"
    attention: str = "math"
    shard_size: int | None = None
    offload: Collection[str] = ()
    bucket_bytes: int | None = None
    prefetch: int = 1
    overlap: bool = True
    reshard: bool = True
    engine: str = "paper"
    implementation: str = "for-loop"
    activation_bytes: int | None = None
    allocator: str = "exact"

    def __post_init__(self) -> None:
        for name in ("world_size", "batch", "sequence"):
            whole(name, getattr(self, name))
        whole("stage", self.stage, least=0, most=3)
        whole("prefetch", self.prefetch, least=0)
        known("precision", self.precision, PRECISIONS)
        known("optimizer", self.optimizer, OPTIMIZERS)
        known("checkpointing", self.checkpointing, CHECKPOINTING)
        known("attention", self.attention, ATTENTION)
        known("engine", self.engine, ENGINES)
        known("implementation", self.implementation, IMPLEMENTATIONS)
        known("allocator", self.allocator, ALLOCATORS)
        if self.bucket_bytes is not None:
            whole("bucket_bytes", self.bucket_bytes)
        if self.activation_bytes is not None:
            whole("activation_bytes", self.activation_bytes, least=0)
        self._check_shard_size()
        self._check_offload()
        self._check_engine()

    def _check_shard_size(self) -> None:
        if self.shard_size is None:
            return
        whole("shard_size", self.shard_size, most=self.world_size)
        if self.world_size % self.shard_size:
            raise ValueError(
                f"shard_size={self.shard_size} with world_size={self.world_size}: the ranks do not fall into groups "
                f"of {self.shard_size}, as hybrid sharding needs. Choose a divisor of {self.world_size}."
            )
        if self.stage == 0 and self.shard_size > 1:
            raise ValueError(
                f"shard_size={self.shard_size} with stage=0: data parallel shards nothing. "
                "Choose stage 1, 2 or 3, or leave shard_size out."
            )

    def _check_offload(self) -> None:
        if isinstance(self.offload, str) or not isinstance(self.offload, Collection):
            raise ValueError(
                f"offload={self.offload!r}: it is a collection of names, not one. Write offload=['optimizer'], say."
            )
        for what in self.offload:
            known("offload", what, OFFLOADED)
            least = 1 if what == "optimizer" else 3
            if self.stage < least:
                raise ValueError(
                    f"offload=[{what!r}] with stage={self.stage}: a rank moves its own shard to the host, and before "
                    f"stage {least} there is no shard of that. Choose stage {least} or more, or offload less."
                )

    def _check_engine(self) -> None:
        if self.engine == "zero" and self.precision == "bf16":
            raise ValueError(
                "engine='zero' with precision='bf16': this course's engines keep fp32 masters of 16-bit parameters. "
                "Choose precision='mixed', or engine='paper'."
            )
        if self.engine == "zero" and not self.reshard:
            raise ValueError(
                "engine='zero' with reshard=False: this course's stage 3 always frees a unit's parameters after "
                "forward. Leave reshard out, or choose another engine."
            )
        if self.engine == "torch" and self.stage < 2 and self.policy.master:
            raise ValueError(
                f"engine='torch' with precision={self.precision!r} and stage={self.stage}: DistributedDataParallel and "
                "ZeroRedundancyOptimizer keep no fp32 masters. Choose precision='fp32' or 'bf16', stage=3, or another "
                "engine."
            )
        if self.engine == "torch" and self.stage == 2:
            raise ValueError(
                "engine='torch' with stage=2: torch has nothing that shards gradients and keeps whole parameters. "
                "Choose stage 1 (ZeroRedundancyOptimizer), stage 3 (fully_shard), or another engine."
            )
        if self.engine == "torch" and self.stage == 1 and self.shards != self.world_size:
            raise ValueError(
                f"engine='torch' with stage=1 and shard_size={self.shard_size}: ZeroRedundancyOptimizer shards over "
                "all ranks. Leave shard_size out, or choose another engine."
            )

    @property
    def policy(self) -> Precision:
        """The record behind `precision`."""
        return pick("precision", self.precision, PRECISIONS)

    @property
    def kept(self) -> Optimizer:
        """The record behind `optimizer`."""
        return pick("optimizer", self.optimizer, OPTIMIZERS)

    @property
    def shards(self) -> int:
        """The number of shards of the states: 1 in data parallel."""
        return 1 if self.stage == 0 else self.shard_size or self.world_size

    @property
    def replicas(self) -> int:
        """The number of copies of the states."""
        return self.world_size // self.shards


def settings(**given: Any) -> Settings:
    """Return `Settings(**given)`. If a name is unknown, the error lists the known ones.

    Raises:
        ValueError: a name or a value is unknown.
    """
    names = [field.name for field in fields(Settings)]
    for name in given:
        known("setting", name, names)
    return Settings(**given)
