"""The memory, communication and time of each rank in a run. Of our packages, this one imports only `errors`."""

from .allocator import ALLOCATORS
from .comm import CommCall, Communication, matrix, meaning
from .cuda import CudaMemory, cuda_snapshot
from .holders import who_holds
from .ledger import CATEGORIES
from .memory import MemoryEvent, MemoryReport, Snapshot, StillHeld
from .memory_meter import MemoryMeter, mark
from .operators import current, unwatched, watched_again
from .peak import Holding, Peak
from .storages import storage_of, tensors_in
from .timeline import CallInterval, Interval, Timeline, save_trace

__all__ = [
    "ALLOCATORS",
    "CATEGORIES",
    "CallInterval",
    "CommCall",
    "Communication",
    "CudaMemory",
    "Holding",
    "Interval",
    "MemoryEvent",
    "MemoryMeter",
    "MemoryReport",
    "Peak",
    "Snapshot",
    "StillHeld",
    "Timeline",
    "cuda_snapshot",
    "current",
    "mark",
    "matrix",
    "meaning",
    "save_trace",
    "storage_of",
    "tensors_in",
    "unwatched",
    "watched_again",
    "who_holds",
]
