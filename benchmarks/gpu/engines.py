"""Every engine on the card: the meter's bytes beside those of CUDA's allocator; traces and snapshots."""

import gzip
import json
import pickle
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import profile

from course_lib import cuda_snapshot

from ..stages import training
from .figures import GPU, Figure, Jobs, on_the_gpu

ENGINES = ("DDP", "DataParallel", "ZeroRedundancyOptimizer", "Stage1", "Stage2", "FSDP2", "Stage3")
WIDTH, DEPTH = (1024, 8) if GPU else (32, 2)
FRAMES = 4
"""The lines that a snapshot keeps of each allocation."""


def engines(out: Path) -> Jobs:
    """What each engine holds in its first step: alone on the card, and with a second rank on it."""
    for ranks, name in product((1, 2), ENGINES):
        yield f"{name}, ranks: {ranks}", partial(held, name, ranks)


def held(name: str, ranks: int) -> Iterator[Figure]:
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
    files = [out / f"{name}-{ranks}.{kind}.json.gz" for kind in ("trace", "snapshot")]
    on_the_gpu(ranks, measure=False).run(record, name, *files)
    for file in files:
        yield Figure(what=file.name, value=file.stat().st_size / 1e3 if file.exists() else None, unit="kB")


def record(name: str, trace: Path, snapshot: Path) -> None:
    """On a rank: record the second step and the third; rank 0 writes them."""
    step, raw = training(name), snapshot.with_suffix(f".{dist.get_rank()}")
    step()
    with profile() as profiler:
        step()
    if dist.get_rank() == 0:
        profiler.export_chrome_trace(str(trace))
    if GPU:
        with cuda_snapshot(raw):
            step()
        if dist.get_rank() == 0:
            snapshot.write_bytes(gzip.compress(json.dumps(short(pickle.loads(raw.read_bytes())), default=str).encode()))
        raw.unlink()


def short(value: Any) -> Any:
    """The snapshot without the frames of C++, and with the first Python frames as `file:line function`."""
    if isinstance(value, list):
        return [short(one) for one in value]
    if not isinstance(value, dict):
        return value
    frames = [one for one in value.get("frames", ()) if one["filename"].endswith(".py")]
    lines = [f"{Path(one['filename']).name}:{one['line']} {one['name']}" for one in frames[:FRAMES]]
    return {key: lines if key == "frames" else short(one) for key, one in value.items()}
