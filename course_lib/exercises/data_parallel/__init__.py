"""Lesson 03, data parallel: from one process to N, up to a DataParallel of one's own.

stubs holds what the learner starts from; each exercise is a module (the last one keeps its known solutions in
during_backward); they share data and rules. The learner's DataParallel is made of them: broadcast_model at the start,
then make_buckets -> average_during_backward, which calls start_averaging for each bucket. average_gradients is what
these do, without buckets and all at once.
"""

from .average_during_backward import AVERAGE_DURING_BACKWARD
from .average_gradients import AVERAGE_GRADIENTS
from .broadcast_model import BROADCAST_MODEL
from .make_buckets import MAKE_BUCKETS
from .quiz import QUIZ
from .start_averaging import START_AVERAGING

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (BROADCAST_MODEL, AVERAGE_GRADIENTS, MAKE_BUCKETS, START_AVERAGING, AVERAGE_DURING_BACKWARD)
