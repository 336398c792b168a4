"""What torch loads late is loaded by the kernel's loop, when no cell runs."""

import asyncio
import sys

import pytest

from course_lib.widgets import cells


def test_modules_are_loaded_one_after_the_other_when_the_loop_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PAUSE_SECONDS", 0.01)
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)

    async def cell() -> bool:
        cells.load_later(("no_such_module", "this"))
        before = "this" in sys.modules
        await asyncio.sleep(0.5)
        return before

    assert asyncio.run(cell()) is False
    assert "this" in sys.modules


def test_outside_a_kernel_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    cells.load_later(("this",))
    assert "this" not in sys.modules
