"""Where ranks live: chosen by a click or by name, and read by every world that is made afterwards."""

import re

import pytest

from course_lib import CourseError, World, choose_world
from course_lib.widgets.world_picker import WorldPicker
from tests.widgets.test_card import click


@pytest.fixture(autouse=True)
def no_choice_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_WORLD", "")  # restored afterwards, whatever is chosen


def picked(picker: WorldPicker) -> str:
    """The option that the browser shows as picked."""
    (value,) = re.findall(r'value="(\w+)" checked', picker.choices.value)
    return str(value)


def test_ranks_are_simulated_until_another_world_is_clicked() -> None:
    picker = WorldPicker()
    assert (picked(picker), World(2).backend) == ("simulated", "simulated")

    click(picker.children[1], "choose", answer="processes")
    assert World(2).backend == "processes"
    assert "makes ranks that are processes" in picker.message.value
    assert picked(WorldPicker()) == "processes"


def test_a_world_is_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    choose_world("processes")
    assert World(2).backend == "processes"
    choose_world("simulated")
    assert World(2).backend == "simulated"


def test_what_this_machine_has_not_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    picker = WorldPicker()
    click(picker.children[1], "choose", answer="nccl")
    assert "sees no GPU on this machine" in picker.message.value
    assert (picked(picker), World(2).backend) == ("simulated", "simulated")

    for name, why in {
        "nccl:8": "sees no GPU on this machine",
        "carrier-pigeon": "there is no such choice here; there is simulated, processes, nccl, and nccl:4 for four GPUs",
        "process": r"choose_world\('process'\): there is no such choice here",
        "processes:3": "there is no such choice here",
        "dryrun": "its ranks do not all run",
    }.items():
        with pytest.raises(CourseError, match=why):
            choose_world(name)
    assert World(2).backend == "simulated"


def test_gpus_are_counted_off_in_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    picker = WorldPicker()
    picker.choose("nccl:4")
    assert (picked(picker), "nccl:4" in picker.standing) == ("nccl", True)
