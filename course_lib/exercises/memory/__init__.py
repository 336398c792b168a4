"""Lesson 02, where the memory goes: weigh a model, its optimizer, and what many ranks hold for nothing.

stubs holds what the learner starts from; each exercise is a module. The later ones are built from the earlier:
model -> optimizer; mixed_precision -> rank_bytes. data has the models that the first two are tried on.
"""

from .mixed_precision import MIXED_PRECISION
from .model import MODEL
from .optimizer import OPTIMIZER
from .quiz import QUIZ
from .rank_bytes import RANK_BYTES
from .redundancy import REDUNDANCY

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (MODEL, OPTIMIZER, MIXED_PRECISION, REDUNDANCY, RANK_BYTES)
