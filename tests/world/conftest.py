"""What tests of several backends use."""

import time

import pytest

from course_lib.world.conduct import Conduct


@pytest.fixture
def hold_up(monkeypatch):
    """Holds the kernel up for so many seconds, once, when every rank of a run has entered its function."""
    hear, held_up = Conduct._hear, []

    def hold_up(seconds: float) -> None:
        def late(self, left):
            heard = hear(self, left)
            if not self._waited_for and not held_up:
                held_up.append(time.sleep(seconds))
            return heard

        monkeypatch.setattr(Conduct, "_hear", late)

    yield hold_up
    assert held_up
