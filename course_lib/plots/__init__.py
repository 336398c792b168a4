"""Figures: each function takes plain records and returns a `Picture` with a caption and a text form.

canvas <- all figures;  memory <- comparison <- reports;  curves, tables <- reports
diagrams: drawings of the algorithms, from numbers and without a run
"""

from .comm import plot_comm
from .comparison import compare_memory
from .curves import curve
from .diagrams.pipeline import plot_schedule
from .diagrams.ranks import plot_mesh, plot_ranks
from .diagrams.schedules import plot_buckets, plot_units
from .diagrams.sequences import plot_ring, plot_swap
from .diagrams.stages import plot_zero
from .memory import plot_memory
from .picture import Picture
from .reports import Report, report
from .run_report import RunRecord, RunReport
from .run_report.recorded import plot_recorded
from .shards import plot_flat, plot_shards
from .tables import Table, table
from .timeline import plot_timeline
from .validation import plot_validation

__all__ = [
    "Picture", "Report", "RunRecord", "RunReport", "Table", "compare_memory", "curve", "plot_buckets",
    "plot_comm", "plot_flat", "plot_memory", "plot_mesh", "plot_ranks", "plot_recorded", "plot_ring", "plot_schedule",
    "plot_shards", "plot_swap", "plot_timeline", "plot_units", "plot_validation", "plot_zero", "report", "table",
]  # fmt: skip
