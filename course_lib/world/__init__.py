"""Where ranks run.

`World.run` calls a function on every rank; `Run` is what came of it; `RankError` tells what went wrong.
"""

from .collectives.fault import RankReport
from .errors.rank_error import RankError
from .run import Run
from .world import World

__all__ = ["RankError", "RankReport", "Run", "World"]
