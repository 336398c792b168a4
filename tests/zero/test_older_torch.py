"""On a torch from before 2.13, collectives that were renamed have the names that the stages call."""

import importlib

import pytest
import torch.distributed as dist

from course_lib.zero import older_torch


@pytest.mark.parametrize(
    ("name", "before"),
    [("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor")],
)
def test_a_collective_that_was_renamed_has_its_new_name(
    monkeypatch: pytest.MonkeyPatch, name: str, before: str
) -> None:
    own = getattr(dist, before)
    monkeypatch.delattr(dist, name)

    importlib.reload(older_torch)

    assert getattr(dist, name) is own
