"""What ranks did: what each held, what it sent, and when. Handed records, it imports nothing of ours but errors."""

from .comm import CommCall, Communication
from .cuda import CudaMemory, cuda_snapshot
from .holders import who_holds
from .ledger import CATEGORIES
from .memory import MemoryEvent, MemoryReport, Snapshot, StillHeld
from .memory_meter import MemoryMeter, mark
from .peak import Holding, Peak
from .timeline import CallInterval, Interval, Timeline

__all__ = [
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
    "mark",
    "who_holds",
]
