"""The memory, communication and time of each rank in a run. Of our packages, this one imports only `errors`."""

from .comm import CommCall, Communication
from .gpu import gpu_bytes
from .ledger.allocator import ALLOCATORS
from .ledger.ledger import CATEGORIES
from .ledger.peak import Peak
from .memory import MemoryReport, Snapshot
from .memory_meter import MemoryMeter, mark
from .optimizer_steps import OptimizerSteps
from .replay import Film, Replay, film
from .source_line import SourceLine, is_learners, is_learners_code, is_learners_file, outward
from .tensors.aliases import Handle
from .tensors.holders import variables
from .tensors.storages import Span, is_dense, overlap, spans, storage_of, tensors_in
from .timeline import Timeline, slowest
from .watching.compiling import untraced
from .watching.operators import WATCHED_KEY, current, operators_of, unwatched, watched_again
from .watching.owners import stand_ins, watched_steps

__all__ = [
    "ALLOCATORS",
    "CATEGORIES",
    "WATCHED_KEY",
    "CommCall",
    "Communication",
    "Film",
    "Handle",
    "MemoryMeter",
    "MemoryReport",
    "OptimizerSteps",
    "Peak",
    "Replay",
    "Snapshot",
    "SourceLine",
    "Span",
    "Timeline",
    "current",
    "film",
    "gpu_bytes",
    "is_dense",
    "is_learners",
    "is_learners_code",
    "is_learners_file",
    "mark",
    "operators_of",
    "outward",
    "overlap",
    "slowest",
    "spans",
    "stand_ins",
    "storage_of",
    "tensors_in",
    "untraced",
    "unwatched",
    "variables",
    "watched_again",
    "watched_steps",
]
