"""Drawings of the algorithms, computed from the numbers that they are given."""

from .pipeline import plot_schedule
from .ranks import plot_mesh, plot_ranks
from .schedules import plot_buckets, plot_units
from .stages import plot_zero

__all__ = ["plot_buckets", "plot_mesh", "plot_ranks", "plot_schedule", "plot_units", "plot_zero"]
