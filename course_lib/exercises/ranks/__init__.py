"""Lesson 01, ranks and collectives: from "what is a rank" to an all-reduce of one's own.

stubs holds what the learner starts from; each exercise is a module; they share data and rules. The later ones are
built from the earlier: exchange -> ring_reduce_scatter, ring_all_gather -> all_reduce.
"""

from .all_reduce import ALL_REDUCE
from .broadcast import BROADCAST
from .exchange import REPAIR_EXCHANGE
from .hello import HELLO
from .quiz import QUIZ
from .repair_average import REPAIR_AVERAGE
from .repair_gather import REPAIR_GATHER
from .ring_all_gather import RING_ALL_GATHER
from .ring_reduce_scatter import RING_REDUCE_SCATTER

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = (
    HELLO,
    BROADCAST,
    REPAIR_EXCHANGE,
    RING_REDUCE_SCATTER,
    RING_ALL_GATHER,
    ALL_REDUCE,
    REPAIR_AVERAGE,
    REPAIR_GATHER,
)
