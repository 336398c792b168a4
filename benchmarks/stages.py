"""A training step of each engine beside torch's own, on simulated ranks: its time, its peak, and what it sends."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from course_lib import Run, World, mark, zero

from .measure import Row

WORLD_SIZES, ROUNDS = (2, 4, 8), 20

SECONDS = {
    "ShardedOptimizer": ("ZeroRedundancyOptimizer", 1.0),
    "DataParallel": ("DDP", 1.1),
    "Stage1": ("DDP", None),
    "Stage2": ("DDP", None),
    "Stage3": ("FSDP2", 1.0),
}
"""Beside whom each is timed, and the most of the other's time that it may take."""

PEERS = {"DataParallel": "DDP", "Stage1": "DDP", "Stage2": "FSDP2, kept after forward", "Stage3": "FSDP2"}
"""Beside whose bytes each one's are put."""

PEAKS = {"Stage2": PEERS["Stage2"], "Stage3": PEERS["Stage3"]}
"""Whose peak each must not exceed."""

PADDING = 1.01
"""The most of a peer's bytes that a step may send: shards are padded in other places."""


class Transformer(nn.Module):
    """A causal language model over bytes, of 64 tokens at most: [batch, length] to [batch, length, 256]."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=self.out.weight.dtype)
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        logits: Tensor = self.out(self.norm(x))
        return logits


def training(name: str, width: int = 128, depth: int = 4) -> Callable[[], None]:
    """A training step of the engine of that name, on a new model, with a mark after each of its phases."""
    model: Any = Transformer(width, depth)
    if name in ("DDP", "ZeroRedundancyOptimizer"):
        model = DistributedDataParallel(model)
    elif name.startswith("FSDP2"):
        for part in (*model.blocks, model):
            fully_shard(part, reshard_after_forward=name == "FSDP2")
    else:
        model = getattr(zero, name)(model, AdamW, lr=1e-3)
    optimizer = model if hasattr(zero, name) else AdamW(model.parameters(), lr=1e-3)
    if name == "ZeroRedundancyOptimizer":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-3)
    x = torch.randint(256, (4, 64))

    def step() -> None:
        logits = model(x[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        mark("forward")
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("step")
        optimizer.zero_grad()

    return step


def stepping(sharded: Callable[..., Any]) -> Callable[[], None]:
    """A step of a sharded optimizer, and nothing else."""
    model = Transformer()
    model(torch.zeros(1, 64, dtype=torch.long)).sum().backward()
    step: Callable[[], None] = sharded(model.parameters(), AdamW, lr=1e-3).step
    return step


def median_seconds(name: str, peer: str) -> tuple[float, float]:
    """On a rank: the median time of a step of each of the two, taken in turns, in which each is first as often."""
    optimizers = {sharded.__name__: sharded for sharded in (zero.ShardedOptimizer, ZeroRedundancyOptimizer)}
    steps = {each: stepping(optimizers[each]) if each in optimizers else training(each) for each in (name, peer)}
    times: dict[str, list[float]] = {name: [], peer: []}
    for number in range(ROUNDS):
        for each, step in sorted(steps.items(), reverse=bool(number % 2)):
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            times[each].append(time.perf_counter() - start)
    return statistics.median(times[name][2:]), statistics.median(times[peer][2:])


def trained(name: str, steps: int, world_size: int) -> Run:
    """So many steps, measured."""

    def rank() -> None:
        step = training(name)
        for _ in range(steps):
            step()

    return World(world_size, timeout=600).run(rank)


def peak_bytes(name: str, world_size: int = 4) -> int:
    """The most that a rank holds at once, of all ranks, over three steps."""
    return max(report.peak_bytes for report in trained(name, 3, world_size).memory)


def sent_bytes(name: str, world_size: int) -> int:
    """The most that a rank sends in one step, of all ranks: without what an engine sends to set itself up."""
    once, twice = (trained(name, steps, world_size).comm for steps in (1, 2))
    return max(more.sent_bytes - less.sent_bytes for less, more in zip(once, twice, strict=True))


def rows() -> Iterator[Row]:
    """The rows of this benchmark."""
    for world_size in WORLD_SIZES:
        yield from _times(world_size)
        yield from _bytes(world_size)


def _times(world_size: int) -> Iterator[Row]:
    for name, (peer, bound) in SECONDS.items():
        ours, theirs = World(world_size, timeout=600, measure=False).run(median_seconds, name, peer)[0]
        what = f"{name}, a step of {world_size} ranks"
        yield Row(what=what, ours=ours, peer=theirs, peer_name=peer, most_of_peer=bound)


def _bytes(world_size: int) -> Iterator[Row]:
    for name, peer in PEERS.items():
        bound = 1 if name in PEAKS else None
        for what, measured, most in (
            (f"peak of a rank of {world_size}", peak_bytes, bound),
            (f"sent by a rank of {world_size} in a step", sent_bytes, PADDING),
        ):
            ours, theirs = (measured(each, world_size) / 1e6 for each in (name, peer))
            yield Row(what=f"{name}, {what}", ours=ours, peer=theirs, peer_name=peer, most_of_peer=most, unit="MB")
