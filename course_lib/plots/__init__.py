"""Figures of measurements: each function takes plain records, and returns a `Picture` with caption and text form."""

from .comm import plot_comm
from .comparison import Report, report
from .memory import plot_memory
from .picture import Picture
from .plan import plot_plan
from .shards import plot_shards
from .timeline import plot_timeline

__all__ = [
    "Picture",
    "Report",
    "plot_comm",
    "plot_memory",
    "plot_plan",
    "plot_shards",
    "plot_timeline",
    "report",
]
