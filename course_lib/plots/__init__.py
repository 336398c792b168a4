"""Figures: each function takes plain records and returns a `Picture` with a caption and a text form.

canvas <- all figures;  memory <- comparison <- reports;  curves, tables <- reports
charts: figures with two axes
diagrams: drawings of the algorithms, from numbers and without a run
moving: drawings of them that a reader moves
"""

from .charts.curves import curve
from .charts.validation import plot_validation
from .comm import plot_comm
from .comparison import compare_memory
from .diagrams.pipeline import plot_schedule
from .diagrams.ranks import plot_mesh, plot_ranks
from .diagrams.schedules import plot_buckets
from .diagrams.sequences import plot_ring, plot_swap
from .memory import plot_memory
from .moving.cuts import move_cuts, move_sequence
from .moving.pipeline import move_schedules
from .moving.units import move_units
from .moving.zero import move_zero
from .picture import Picture
from .reports import Report, report
from .run_report import RunReport
from .run_report.recorded import plot_recorded
from .shards import plot_flat, plot_shards
from .tables import Table, table
from .timeline import plot_timeline

__all__ = [
    "Picture", "Report", "RunReport", "Table", "compare_memory", "curve", "move_cuts", "move_schedules",
    "move_sequence", "move_units", "move_zero", "plot_buckets", "plot_comm", "plot_flat", "plot_memory", "plot_mesh",
    "plot_ranks", "plot_recorded", "plot_ring", "plot_schedule", "plot_shards", "plot_swap", "plot_timeline",
    "plot_validation", "report", "table",
]  # fmt: skip
