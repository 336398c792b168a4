"""A learner's own modules, which change while the rank's process stays."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress

from ..learner_code import is_learners_file


class FreshImports:
    """Sees to it that a module whose file has changed since it was imported is imported again.

    A function of a module travels by its name. Without this, a rank would go on with what the module was when the first
    run asked for it.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._changed: dict[str, tuple[str, int]] = {}  # file, and when it was changed, of the learner's modules

    def note(self) -> None:
        """Remember the modules that were imported since the last time."""
        for name in sys.modules.keys() - self._seen:
            self._seen.add(name)
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and is_learners_file(file):
                with suppress(OSError):  # it is gone already
                    self._changed[name] = (file, os.stat(file).st_mtime_ns)

    def forget_changed(self) -> None:
        """Let those whose files have changed be imported again by who asks for them."""
        for name, (file, changed) in list(self._changed.items()):
            with suppress(OSError):
                if os.stat(file).st_mtime_ns != changed:
                    sys.modules.pop(name, None)
                    self._seen.discard(name)
                    del self._changed[name]
                    importlib.invalidate_caches()
