"""Fresh imports: a learner's module that has changed is imported again in a rank's process."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress

from ..learner_code import is_learners_file


class FreshImports:
    """The learner's modules that this process has imported.

    A module's function travels by name. A process outlives its run, and would otherwise use the module's old version.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._changed: dict[str, tuple[str, int]] = {}  # the learner's modules: file, and its modification time

    def note(self) -> None:
        """Remember the modules that were imported since the last call."""
        for name in sys.modules.keys() - self._seen:
            self._seen.add(name)
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and is_learners_file(file):
                with suppress(OSError):  # the file is gone
                    self._changed[name] = (file, os.stat(file).st_mtime_ns)

    def forget_changed(self) -> None:
        """Remove modules whose files have changed, so that the next import loads them again."""
        for name, (file, changed) in list(self._changed.items()):
            with suppress(OSError):
                if os.stat(file).st_mtime_ns != changed:
                    sys.modules.pop(name, None)
                    self._seen.discard(name)
                    del self._changed[name]
                    importlib.invalidate_caches()
