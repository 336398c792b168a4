"""A record of the GPU kit, drawn beside simulated ranks: made here on the CPU, with an allocator's events by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import engines
from course_lib import Run, World
from course_lib.plots import plot_recorded
from course_lib.plots.run_report import recorded
from course_lib.production import recorded_steps

EVENTS = [("alloc", 30_000_000), ("alloc", 5_000_000), ("free_requested", 5_000_000), ("free_completed", 5_000_000)]


@pytest.fixture(scope="module")
def run() -> Run:
    return World(2).run(recorded_steps, "Stage3")


@pytest.mark.slow
def test_a_record_is_drawn_beside_a_simulated_rank(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(engines.files("Stage3", 2, tmp_path))
    record = json.loads((tmp_path / "Stage3-2.json").read_text())
    events = [{"action": action, "size": size} for action, size in EVENTS]
    record["held_bytes"] = engines.held(events)
    (tmp_path / "Stage3.json").write_text(json.dumps(record))
    monkeypatch.setattr(recorded, "RECORDS", tmp_path)

    world = SimpleNamespace(run=lambda *_: run)
    timeline, memory = (plot_recorded(world, recorded_steps, "Stage3", what) for what in ("timeline", "memory"))

    assert "CPU, bytes in flight: " in timeline.text and "simulated rank, computed: " in timeline.text
    assert "CPU: peak 35,000,000 bytes; at the end other 30 MB" in memory.text
    assert f"simulated rank: peak {run.memory[0].peak_bytes:,} bytes" in memory.text


@pytest.mark.slow
def test_the_meter_and_the_allocator_of_a_gpu_agree_on_the_peak() -> None:
    record = json.loads((recorded.RECORDS / "FSDP2.json").read_text())
    simulated = World(2).run(recorded_steps, "FSDP2").memory[0]
    more = max(record["held_bytes"]) / simulated.peak_bytes - 1
    assert 0 < more < 1e-3
    page = Path(__file__).parents[2] / "docs" / "gpu.md"
    assert f"FSDP2's peak is {more:.2%} higher".replace("%", " %") in page.read_text(encoding="utf-8")


def test_of_a_gpu_the_rows_of_the_gpu_are_recorded() -> None:
    rows = [("kernel", "gemm", 0, 2), ("gpu_user_annotation", "nccl:all_gather", 1, 4), ("kernel", "ncclKernel", 2, 3)]
    rows += [("cpu_op", "c10d::allgather", 0, 9), ("cpu_op", "aten::mm", 0, 9)]
    events = [{"ph": "X", "cat": cat, "name": name, "ts": 5e6 + ts, "dur": dur} for cat, name, ts, dur in rows]

    spans = engines.spans([*events, {"ph": "M", "name": "process_name"}])

    assert spans == {"computed": [(0, 2e-6)], "in_flight": [(1e-6, 5e-6), (2e-6, 5e-6)]}


def test_the_share_of_time_leaves_out_gaps_too_small_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [(start * 1e-4, start * 1e-4 + 1e-6) for start in range(10_000)]
    record = {"card": "GPU", "computed": kernels, "in_flight": [], "held_bytes": []}
    (tmp_path / "Stage3.json").write_text(json.dumps(record))
    monkeypatch.setattr(recorded, "RECORDS", tmp_path)
    line = SimpleNamespace(computed=[SimpleNamespace(start=0.0, end=1.0)], in_flight=[])
    world = SimpleNamespace(run=lambda *_: SimpleNamespace(timeline=[line]))

    assert "GPU, computed: 1 %" in plot_recorded(world, recorded_steps, "Stage3", "timeline").text
