"""ZeRO, written to be read: learners compare their own engines with it.

Read `data_parallel`, then `buckets`, then `stage1`, `stage2` and `stage3`: each stage adds one thing to the one before.
The other files contain the rest of real training: a stage names each once. `sharded_optimizer` stands by itself.
Nothing here knows on what backend it runs: it is plain torch and `torch.distributed`, on CPU or CUDA. Imports point
to the right:

    stages, data_parallel, checkpoint -> engine -> optimizer_state -> buckets
    data_parallel, stage2, schedule -> backward -> buckets
    stage3 -> schedule, saved_tensors -> units -> engine;  loss_scaling -> engine;  sharded_optimizer
"""

from . import older_torch  # noqa: F401 (gives the collectives the names that they have today)
from .backward import InBackward
from .checkpoint import load_checkpoint, save_checkpoint
from .data_parallel import DataParallel
from .loss_scaling import LossScaler
from .sharded_optimizer import ShardedOptimizer
from .stage1 import Stage1
from .stage2 import Stage2
from .stage3 import Stage3

__all__ = [
    "DataParallel", "InBackward", "LossScaler", "ShardedOptimizer", "Stage1", "Stage2", "Stage3", "load_checkpoint",
    "save_checkpoint",
]  # fmt: skip
