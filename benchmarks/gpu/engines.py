"""Every engine on the card: the meter's bytes beside those of CUDA's allocator; traces and snapshots."""

import gc
import gzip
import json
import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile

from course_lib.production.recorded import recorded_steps

from ..stages import training
from .figures import GPU, Figure, Jobs, megabytes, on_the_gpu

ENGINES = ("DDP", "DataParallel", "ZeroRedundancyOptimizer", "Stage1", "Stage2", "FSDP2", "Stage3")
WIDTH, DEPTH = (1024, 8) if GPU else (32, 2)


def engines(out: Path) -> Jobs:
    """What each engine holds in its first step: alone on the card, and with a second rank on it."""
    return {f"{name}, ranks: {ranks}": partial(held_by, name, ranks) for ranks, name in product((1, 2), ENGINES)}


def held_by(name: str, ranks: int) -> Iterator[Figure]:
    run = on_the_gpu(ranks, allocator="cuda").run(lambda: training(name, WIDTH, DEPTH)())
    for phase, at in run.memory[0].marks.items():
        now, most = (at.cuda.allocated_bytes, at.cuda.max_allocated_bytes) if at.cuda else (None, None)
        yield megabytes(f"held after {phase}", now, meter=at.current_bytes)
        yield megabytes(f"most until {phase}", most, meter=at.peak_bytes)


def traces(out: Path) -> Jobs:
    """A trace of torch's profiler, and a snapshot of CUDA's allocator, of rank 0."""
    return {f"{name}-{ranks}": partial(files, name, ranks, out) for ranks, name in product((1, 2), ("Stage3", "FSDP2"))}


def files(name: str, ranks: int, out: Path) -> Iterator[Figure]:
    trace, snapshot, drawn = (out / f"{name}-{ranks}.{kind}" for kind in ("trace.json.gz", "snapshot.pickle", "json"))
    on_the_gpu(ranks, measure=False).run(record, name, trace, snapshot, drawn)
    for file in (trace, snapshot, drawn):
        yield Figure(what=file.name, value=file.stat().st_size / 1e3 if file.exists() else None, unit="kB")


def record(name: str, trace: Path, snapshot: Path, drawn: Path) -> None:
    """On a rank: record two steps, and again; rank 0 writes the trace, the snapshot, and what lessons draw of them."""
    recorded_steps(name)  # a GPU's first steps load kernels
    with profile() as profiler:
        recorded_steps(name)
    gc.collect()  # what the steps before have left
    if GPU:
        torch.cuda.memory._record_memory_history()
    recorded_steps(name)
    if GPU and dist.get_rank() == 0:
        torch.cuda.memory._dump_snapshot(str(snapshot))
    if GPU:
        torch.cuda.memory._record_memory_history(enabled=None)  # the next job may have this process
    if dist.get_rank() == 0:
        profiler.export_chrome_trace(str(trace))
        with gzip.open(trace) as file:
            both = {"card": torch.cuda.get_device_name() if GPU else "CPU"} | spans(json.load(file)["traceEvents"])
        if GPU:
            both["held_bytes"] = held(pickle.loads(snapshot.read_bytes())["device_traces"][0])
        drawn.write_text(json.dumps(both))


def held(events: Iterable[dict[str, Any]]) -> list[int]:
    """The bytes that CUDA's allocator held more than before, change by change: not the memory in which cuBLAS works."""
    signs = {"alloc": 1, "free_completed": -1}
    changes = (signs[one["action"]] * one["size"] for one in events if one["action"] in signs)
    return list(accumulate(changes, initial=0))


def spans(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """When a trace says that the GPU computed and moved bytes: start and end in seconds. Without a GPU: the CPU."""
    timed = [one for one in events if one["ph"] == "X"]
    on_gpu = [one for one in timed if one.get("cat") in ("kernel", "gpu_user_annotation")]
    nccl = [one for one in on_gpu if one["name"].startswith("nccl")]
    kernels = [one for one in on_gpu if one["cat"] == "kernel" and one not in nccl]
    rows = {
        "computed": kernels or [one for one in timed if one["name"].startswith("aten::")],
        "in_flight": nccl or [one for one in timed if one["name"].startswith(("c10d::", "gloo:"))],
    }
    zero = min(one["ts"] for one in timed)
    return {
        what: sorted((round(one["ts"] - zero) / 1e6, round(one["ts"] + one["dur"] - zero) / 1e6) for one in row)
        for what, row in rows.items()
    }
