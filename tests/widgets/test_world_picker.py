"""Where ranks live: chosen by name, and read by every world that is made afterwards."""

import pytest

from course_lib import CourseError, World, choose_world


@pytest.fixture(autouse=True)
def no_choice_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_WORLD", "")  # restored afterwards, whatever is chosen


def test_ranks_are_simulated_until_another_world_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    choose_world()
    assert World(2).backend == "simulated"
    assert "'World(4) makes ranks that are simulated." in capsys.readouterr().out

    choose_world("processes")
    assert World(2).backend == "processes"
    choose_world()
    assert capsys.readouterr().out.count("'World(4) makes ranks that are processes.") == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nccl:8", "sees no GPU on this machine"),
        ("carrier-pigeon", "there is no such backend here; there is simulated, processes, nccl"),
        ("processes:3", "there is no such backend here"),
        ("dryrun", "its ranks do not all run"),
    ],
)
def test_what_this_machine_has_not_is_refused_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(CourseError, match=why):
        choose_world(name)
    assert World(2).backend == "simulated"


def test_gpus_are_counted_off_in_the_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    choose_world("nccl:4")
    assert "ranks that are nccl:4" in capsys.readouterr().out
