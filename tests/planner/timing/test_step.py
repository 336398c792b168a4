"""A step is a schedule: what overlaps does not add up, and what has to wait waits."""

from dataclasses import replace

import pytest

from course_lib.planner import HARDWARE, Link, plan
from course_lib.planner.timing.schedule import COMMUNICATION, COMPUTE, HOST, Streams

GIVEN = {"model": "llama-7b", "world_size": 8, "sequence": 4096, "attention": "flash"}


def test_streams_run_beside_each_other_and_wait_for_what_they_need() -> None:
    streams = Streams()
    first = streams.issue("a", "first", 2)
    beside = streams.issue("b", "beside", 1)
    waits = streams.issue("b", "waits", 3, [first])

    assert [(span.start, span.end) for span in (first, beside, waits)] == [(0, 2), (0, 1), (2, 5)]
    line = streams.timeline()
    assert (line.seconds, line.busy("b"), line.exposed("b", behind="a")) == (5, 4, 3)
    streams.issue("a", "later", 9)
    assert line.seconds == 5


def test_work_is_hidden_where_other_work_covers_it() -> None:
    """Compute from 0 to 2, 2 to 5 and 7 to 9; behind it 1 to 3, 3 to 8 and 8 to 12: 2, 3 and 1 of them are hidden."""
    streams = Streams()
    streams.issue("compute", "a", 2)
    covered = streams.issue("compute", "b", 3)
    begin = streams.issue("idle", "until 1", 1)
    first = streams.issue("network", "c", 2, [begin])
    second = streams.issue("network", "d", 5, [first])
    gap = streams.issue("idle", "until 7", 2, [covered])
    streams.issue("compute", "e", 2, [gap])
    third = streams.issue("network", "f", 4)

    assert [(span.start, span.end) for span in (first, second, third)] == [(1, 3), (3, 8), (8, 12)]
    line = streams.timeline()
    assert (line.busy("network"), line.exposed("network", behind="compute")) == (11, 11 - 2 - 3 - 1)
    assert (line.busy("compute"), line.exposed("compute", behind="network")) == (7, 7 - 6)
    assert line.seconds == 12


def test_an_empty_timeline_takes_no_time() -> None:
    assert Streams().timeline().seconds == 0


def test_prefetch_lets_the_next_unit_be_gathered_while_this_one_computes() -> None:
    without, one = (plan(**GIVEN, stage=3, prefetch=prefetch).timeline("h100") for prefetch in (0, 1))

    assert one.seconds < without.seconds
    assert one.exposed(COMMUNICATION, COMPUTE) < without.exposed(COMMUNICATION, COMPUTE) / 3


def test_a_unit_is_not_gathered_before_there_is_room_for_it() -> None:
    line = plan(**GIVEN, stage=3, prefetch=1).timeline("h100")
    spans = {span.name: span for span in reversed(line.spans)}  # of two gathers, the first: forward's

    assert spans["gather layer 5"].start >= spans["forward layer 3"].end
    assert spans["forward layer 5"].start >= spans["gather layer 5"].end


def test_communication_takes_as_long_as_its_collectives() -> None:
    """Stage 3 without latency: 3Ψ at the link's bandwidth."""
    machine = replace(HARDWARE["h100"], inside=Link(alpha=0, bandwidth=100e9), launch=0.0)
    planned = plan(**GIVEN, stage=3)

    assert planned.timeline(machine).busy(COMMUNICATION) == pytest.approx(planned.sent_bytes / 100e9, rel=1e-3)


def test_small_buckets_cost_latency() -> None:
    small, large = (plan(**GIVEN, stage=2, bucket_bytes=size).step_seconds("h100") for size in (2**20, 2**28))

    assert small > 1.2 * large


def test_offload_costs_time_on_the_host() -> None:
    stays, goes = (plan(**GIVEN, stage=3, offload=offload).timeline("h100") for offload in ((), ["optimizer"]))

    assert goes.seconds > stays.seconds
    assert stays.busy(HOST) == 0 < goes.exposed(HOST, COMPUTE)


@pytest.mark.parametrize("offload", [["optimizer"], ["optimizer", "parameters"]])
def test_what_is_offloaded_is_copied(offload: list[str]) -> None:
    line = plan(**GIVEN, stage=3, offload=offload).timeline("h100")
    names = [span.name for span in line.spans if span.stream == HOST]

    assert "optimizer step on the host" in names
    assert ("copy layer 0 to the device" in names) == ("parameters" in offload)
    assert ("copy parameters to the device" in names) == ("parameters" not in offload)


def test_parameters_on_the_host_are_copied_back_after_a_step_on_the_device() -> None:
    line = plan(**GIVEN, stage=3, offload=["parameters"]).timeline("h100")

    *_, step, back = line.spans
    assert (step.name, back.name) == ("optimizer step", "copy parameters to the host")
    assert back.start == step.end


def test_hybrid_sharding_wins_on_thousands_of_ranks_and_not_on_few() -> None:
    def seconds(ranks: int, shard_size: int | None) -> float:
        given = GIVEN | {"world_size": ranks, "stage": 3, "batch": 2, "shard_size": shard_size}
        return plan(**given).step_seconds("h100-infiniband")

    assert seconds(64, None) < seconds(64, 8)
    assert seconds(16384, 8) < seconds(16384, None) / 1.5


def test_a_slow_network_makes_hybrid_sharding_win_at_once() -> None:
    whole, hybrid = (
        plan(**GIVEN | {"world_size": 64, "stage": 3, "shard_size": size}).step_seconds("h100-ethernet")
        for size in (None, 8)
    )
    assert hybrid < whole


@pytest.mark.parametrize("machine", HARDWARE)
def test_every_machine_can_be_planned_for(machine: str) -> None:
    seconds = plan(model="gpt2", world_size=4, stage=2, precision="mixed").step_seconds(machine)

    assert 0 < seconds < 60


def test_faster_hardware_is_faster() -> None:
    seconds = [plan(**GIVEN, stage=3).step_seconds(machine) for machine in ("a100", "h100")]

    assert seconds == sorted(seconds, reverse=True)


def test_this_courses_stage_1_reduces_only_in_its_step() -> None:
    line = plan(**GIVEN, stage=1, engine="zero").timeline("h100")
    computed = max(span.end for span in line.spans if span.name.startswith("backward"))

    assert all(span.start >= computed for span in line.spans if span.stream == COMMUNICATION)
