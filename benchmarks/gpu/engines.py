"""Every engine on the card: the meter's bytes beside those of CUDA's allocator; traces and snapshots."""

import gzip
import json
import pickle
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile

from course_lib import cuda_snapshot
from course_lib.plots.timeline import merged
from course_lib.production.recorded import recorded_steps

from ..stages import training
from .figures import GPU, Figure, Jobs, on_the_gpu

ENGINES = ("DDP", "DataParallel", "ZeroRedundancyOptimizer", "Stage1", "Stage2", "FSDP2", "Stage3")
WIDTH, DEPTH = (1024, 8) if GPU else (32, 2)


def engines(out: Path) -> Jobs:
    """What each engine holds in its first step: alone on the card, and with a second rank on it."""
    for ranks, name in product((1, 2), ENGINES):
        yield f"{name}, ranks: {ranks}", partial(marks_of, name, ranks)


def marks_of(name: str, ranks: int) -> Iterator[Figure]:
    run = on_the_gpu(ranks, allocator="cuda").run(lambda: training(name, WIDTH, DEPTH)())
    for phase, at in run.memory[0].marks.items():
        now, most = (at.cuda.allocated_bytes / 1e6, at.cuda.max_allocated_bytes / 1e6) if at.cuda else (None, None)
        for what, value, meter in (("held after", now, at.current_bytes), ("most until", most, at.peak_bytes)):
            what = f"{name}, ranks: {ranks}, {what} {phase}"
            yield Figure(what=what, value=value, unit="MB", beside={"meter": meter / 1e6})


def traces(out: Path) -> Jobs:
    """A trace of torch's profiler, and a snapshot of CUDA's allocator, of rank 0."""
    for ranks, name in product((1, 2), ("Stage3", "FSDP2")):
        yield f"{name}, ranks: {ranks}", partial(sizes, name, ranks, out)


def sizes(name: str, ranks: int, out: Path) -> Iterator[Figure]:
    files = [out / f"{name}-{ranks}.{kind}" for kind in ("trace.json.gz", "snapshot.pickle", "json")]
    on_the_gpu(ranks, measure=False).run(record, name, *files)
    for file in files:
        yield Figure(what=file.name, value=file.stat().st_size / 1e3 if file.exists() else None, unit="kB")


def record(name: str, trace: Path, snapshot: Path, drawn: Path) -> None:
    """On a rank: record two steps, and again; rank 0 writes the trace, the snapshot, and what lessons draw of them."""
    recorded_steps(name)  # a GPU's first steps load kernels
    with profile() as profiler:
        recorded_steps(name)
    before = torch.cuda.memory_allocated()
    with cuda_snapshot(snapshot) if GPU and dist.get_rank() == 0 else nullcontext():
        recorded_steps(name)
    if dist.get_rank() == 0:
        profiler.export_chrome_trace(str(trace))
        with gzip.open(trace) as file:
            both = {"card": torch.cuda.get_device_name() if GPU else "CPU"} | spans(json.load(file)["traceEvents"])
        if GPU:
            both["held_bytes"] = held(before, pickle.loads(snapshot.read_bytes())["device_traces"][0])
        drawn.write_text(json.dumps(both))


def held(before: int, events: Iterable[dict[str, Any]]) -> list[int]:
    """The bytes that CUDA's allocator held, change by change."""
    signs = {"alloc": 1, "free_completed": -1}
    return list(accumulate((signs.get(one["action"], 0) * one["size"] for one in events), initial=before))


def spans(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Start and end of what a trace says of computing and of calls, in seconds. Without a GPU's rows: of the CPU's."""
    timed = [one | {"end": one["ts"] + one["dur"]} for one in events if one["ph"] == "X"]
    on_gpu = [one for one in timed if one.get("cat") in ("kernel", "gpu_user_annotation")]
    nccl = [one for one in on_gpu if one["name"].startswith("nccl")]
    kernels = [one for one in on_gpu if one["cat"] == "kernel" and one not in nccl]
    computed = kernels or [one for one in timed if one["name"].startswith("aten::")]
    in_flight = nccl or [one for one in timed if one["name"].startswith(("c10d::", "gloo:"))]
    both = {"computed": computed, "in_flight": in_flight}
    start, end = min(one["ts"] for one in timed), max(one["end"] for one in timed)
    return {what: list(joined(parts, start, (end - start) / 2000)) for what, parts in both.items()}


def joined(events: Iterable[dict[str, Any]], start: float, gap: float) -> Iterator[tuple[float, float]]:
    """Seconds from `start`, in microseconds. Events with less than `gap` between them become one."""
    parts = sorted((SimpleNamespace(start=one["ts"], end=one["end"]) for one in events), key=lambda part: part.start)
    for begin, end, _ in merged(parts, gap):
        yield round(begin - start) / 1e6, round(end - start) / 1e6
