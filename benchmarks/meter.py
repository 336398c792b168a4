"""What measuring costs: a training step on ranks whose memory is measured, beside the same where it is not."""

import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib import World

from .measure import Row

GOAL = 1.3
"""The most of an unmeasured step's time that a measured one may take, where `Prototype` takes half as long again."""

SEQUENCES = 32
"""In a batch, of 64 tokens each. That `Prototype` takes half as long again with so many, the second row shows."""

FEW_SEQUENCES = 12
"""The batch that nanoGPT's README gives for this size of model, on a laptop: less to compute for each operator."""


class Prototype(TorchDispatchMode):
    """The first meter that comes to mind, and a peer of the real one: it counts bytes, and knows nothing else of them.

    Every operator passes through Python, also those that make nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        address = storage.data_ptr()
        if address and address not in self._known:
            self._known.add(address)
            self.current += storage.nbytes()
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._gone, address, storage.nbytes())

    def _gone(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.current -= nbytes


Watch = Callable[[], AbstractContextManager[Any]]


def step_seconds(sequences: int, watch: Watch = nullcontext, steps: int = 12) -> float:
    """On a rank: the median time of a training step of a transformer with 4 layers of width 128, inside `watch()`."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
    with watch():
        model = DistributedDataParallel(nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False))
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(sequences, 64, 128)
        times = []
        for _ in range(steps):
            dist.barrier()
            start = time.perf_counter()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - start)
    return statistics.median(times[2:])  # the first two warm up: DDP makes its buckets anew after one


def pair_of_seconds(watched: Callable[[], float], unwatched: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Both times, taken in turns: of the two one after the other whose ratio is the median.

    A machine that others use, too, is now fast and now slow, for minutes. It is rarely so between two runs.
    """
    pairs = []
    for number in range(rounds):
        first, second = (watched, unwatched) if number % 2 else (unwatched, watched)
        times = {first: first(), second: second()}
        pairs.append((times[watched], times[unwatched]))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[rounds // 2]


def rows(world_size: int = 4) -> Iterator[Row]:
    """The rows of this benchmark."""
    measuring, plain = World(world_size), World(world_size, measure=False)

    def row(how: str, world: World, sequences: int, watch: Watch, rounds: int) -> Row:
        watched, unwatched = pair_of_seconds(
            lambda: world.run(step_seconds, sequences, watch)[0],
            lambda: plain.run(step_seconds, sequences)[0],
            rounds,
        )
        what = f"a step of {sequences} sequences whose memory is {how}, {world_size} ranks"
        return Row(what=what, ours=watched, peer=unwatched, peer_name="measure=False")

    measured = row("measured", measuring, SEQUENCES, nullcontext, rounds=7)
    yield replace(measured, most_of_peer=GOAL)
    yield row("counted by a TorchDispatchMode", plain, SEQUENCES, Prototype, rounds=5)
    yield row("measured", measuring, FEW_SEQUENCES, nullcontext, rounds=5)
