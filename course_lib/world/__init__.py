"""Where ranks run.

`World.run` calls a function on every rank; `Run` is what came of it; `RankError` tells what went wrong.
"""

from .failure import RankError, RankReport
from .world import Run, World

__all__ = ["RankError", "RankReport", "Run", "World"]
