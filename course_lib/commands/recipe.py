"""`course recipe`: torch's recipe for ZeroRedundancyOptimizer, run on simulated ranks with memory as on a GPU.

Two ranks train twenty layers of 2000 x 2000 for one step, with DDP and Adam: first with all of Adam's state on every
rank, then with half of it on each. The published table came from a GPU; here CPU threads compute, and the meter counts
bytes as CUDA's allocator would (`World(allocator="cuda")`). MB is 10⁶ bytes.

Source: the recipe "Shard Optimizer States with ZeroRedundancyOptimizer", docs.pytorch.org.
"""

from collections.abc import Iterator
from time import perf_counter

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..meter import mark
from ..world import Run, World

RANKS, LAYERS, WIDTH = 2, 20, 2000

MARKS = ("the model is made", "DDP is made", "before step()", "after step()")

PUBLISHED_MB = {True: (335, 656, 992, 1361), False: (335, 656, 992, 1697)}
"""The most memory held up to each of `MARKS`: with ZeroRedundancyOptimizer, and without."""

PUBLISHED_SUM = -3453.6123046875
"""The sum of the parameters after the step, in both cases, on CUDA, whose random numbers differ from the CPU's."""


def train(sharded: bool, foreach: bool, layers: int = LAYERS, width: int = WIDTH) -> float:
    """Run the recipe's one step on a rank. Return the sum of the parameters.

    With `foreach`, Adam computes with all tensors at once, which is its default on a GPU, but not on a CPU.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    mark(MARKS[0])
    ddp = DistributedDataParallel(model)
    mark(MARKS[1])
    optimizer: Optimizer
    if sharded:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01, foreach=foreach)
    else:
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01, foreach=foreach)
    outputs, labels = ddp(torch.randn(20, width)), torch.randn(20, width)
    nn.functional.mse_loss(outputs, labels).backward()
    mark(MARKS[2])
    optimizer.step()
    mark(MARKS[3])
    total = sum(model.parameters(), torch.zeros(()))  # as the recipe adds: each bias counts once for every row
    return float(total.detach().sum())


def run(sharded: bool, layers: int = LAYERS, width: int = WIDTH) -> Run:
    """Run the recipe on two simulated ranks.

    Args:
        sharded: whether ZeroRedundancyOptimizer shards Adam's state.
        layers: the number of layers.
        width: the width of each layer.
    """
    return World(RANKS, timeout=600, allocator="cuda").run(train, sharded, False, layers, width)


def peaks_mb(of: Run) -> tuple[float, ...]:
    """Return the most memory that rank 0 held up to each of `MARKS`, in MB."""
    return tuple(of.memory[0].marks[label].peak_bytes / 1e6 for label in MARKS)


def table(of: Run, published: tuple[int, ...]) -> str:
    """Return the measured figures next to the published ones."""
    lines = [f"{'most memory held until':<24}{'measured':>12}{'published':>12}{'difference':>12}"]
    for label, measured, reference in zip(MARKS, peaks_mb(of), published, strict=True):
        lines.append(f"  {label:<22}{measured:>9.1f} MB{reference:>9} MB{measured / reference - 1:>+12.1%}")
    return "\n".join(lines)


def report(layers: int = LAYERS, width: int = WIDTH) -> Iterator[str]:
    """Run the recipe both ways, and yield the results part by part."""
    started = perf_counter()
    yield "This takes half a minute and 4 GB of memory.\n"
    runs = {}
    for sharded, title in ((True, "With ZeroRedundancyOptimizer"), (False, "Without")):
        runs[sharded] = run(sharded, layers=layers, width=width)
        yield f"{title}\n{table(runs[sharded], PUBLISHED_MB[sharded])}"
        yield f"  sum of parameters: {runs[sharded][0]} (published, from CUDA: {PUBLISHED_SUM})\n"
    for sharded, title in ((True, "with ZeroRedundancyOptimizer"), (False, "without")):
        yield f"At the peak, {title}:\n{runs[sharded].memory[0].at_peak}\n"
    yield (
        "For each weight, Adam makes two temporary tensors, by sqrt and by div. Its variable `denom` holds the result\n"
        "of div until the next parameter's replaces it. With ZeroRedundancyOptimizer there is one div more: a rank's\n"
        "partition has all weights before all biases, so at the peak `denom` still holds the result of the weight\n"
        "before. Without ZeroRedundancyOptimizer, a bias lies between two weights, and `denom` is small.\n"
    )
    yield f"\nIt took {perf_counter() - started:.0f} s."
