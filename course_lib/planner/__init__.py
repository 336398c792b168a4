"""The cost of training, by arithmetic: bytes held, bytes sent and seconds. Of our packages it imports only `errors`.

questions       checks <- config <- shapes <- models, optimizers;  precision, optimizers, rules <- settings
                shapes, settings <- pieces, frozen
bytes held      parts, layout <- held;  activations, held <- memory
bytes sent      layout, cost <- volume
seconds         cost <- hardware <- places;  cost <- volume;  work, schedule, volume, places <- step
the whole       text <- fit <- explain;  memory, pieces, volume, step, explain <- plan <- ways <- choose, solve
compared with   plan <- validation: published runs
"""

from .choose import Candidate, Choice, choose
from .explain import COSTS, costs, how, page, units
from .fit import fits, shortage, verdict
from .memory.parts import AVERAGING, CATEGORIES, STEP, Part
from .plan import Plan, plan
from .solve import Budget, cheapest, fewest_ranks, largest_batch, longest_sequence
from .text import aligned, count, duration, size
from .timing.cost import PASSES, Group, Link, bus_bandwidth, ring_seconds, seconds
from .timing.hardware import HARDWARE, Hardware, hardware
from .timing.schedule import Span, Timeline
from .timing.volume import Collective
from .training.checks import known, whole
from .training.models import MODELS
from .training.optimizers import OPTIMIZERS, Optimizer
from .training.precision import PRECISIONS, Precision
from .training.settings import CHOICES, Settings
from .training.shapes import Model, Transformer
from .validation import Compared, Run, Validation, validate

__all__ = [
    "AVERAGING", "CATEGORIES", "CHOICES", "COSTS", "HARDWARE", "MODELS", "OPTIMIZERS", "PASSES", "PRECISIONS",
    "STEP", "Budget", "Candidate", "Choice", "Collective", "Compared", "Group", "Hardware", "Link",
    "Model", "Optimizer", "Part", "Plan", "Precision", "Run", "Settings", "Span", "Timeline", "Transformer",
    "Validation", "aligned", "bus_bandwidth", "cheapest", "choose", "costs", "count", "duration", "fewest_ranks",
    "fits", "hardware", "how", "known", "largest_batch", "longest_sequence", "page", "plan", "ring_seconds", "seconds",
    "shortage", "size", "units", "validate", "verdict", "whole",
]  # fmt: skip
