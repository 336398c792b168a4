"""Fresh imports: a learner's module that has changed is imported again in a rank's process."""

import importlib
import os
import sys
from types import ModuleType

from ...meter import is_learners_file


class FreshImports:
    """The modules that this process has imported, with the times at which the learner's files were changed.

    A module's function travels by name. A process outlives its run, and would otherwise use the module's old version.
    """

    def __init__(self) -> None:
        self._changed: dict[str, int | None] = {}

    def note(self) -> None:
        """Remember the modules that were imported since the last call."""
        for name in sys.modules.keys() - self._changed.keys():
            self._changed[name] = _changed(sys.modules[name])

    def forget_changed(self) -> None:
        """Remove modules whose files have changed, so that the next import loads them again."""
        for name, changed in list(self._changed.items()):
            if changed is not None and name in sys.modules and _changed(sys.modules[name]) != changed:
                del sys.modules[name], self._changed[name]
                importlib.invalidate_caches()


def _changed(module: ModuleType) -> int | None:
    """Return when the learner changed the module's file; None for a library's module, or one without a file."""
    file = getattr(module, "__file__", None)
    if file is None or not is_learners_file(file) or not os.path.exists(file):
        return None
    return os.stat(file).st_mtime_ns
