"""A step of Adam on two GPUs, with and without ZeroRedundancyOptimizer: the peak of the first GPU's memory so far.

The sizes, and the places where the peak is read, are those of PyTorch's recipe "Shard Optimizer States with
ZeroRedundancyOptimizer" (docs.pytorch.org). Its Adam took one tensor after the other; today's takes all at once on a
GPU, unless `foreach` is False. The program starts its ranks itself: python zero_recipe.py
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer

RANKS, LAYERS, WIDTH, EXAMPLES = 2, 20, 2000, 20
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "ZeroRedundancyOptimizer": partial(ZeroRedundancyOptimizer, optimizer_class=Adam, foreach=False),
    "Adam": partial(Adam, foreach=False),
}


def one_step(gpu: torch.device, optimizer: str) -> Iterator[str]:
    """Train for one step, and stop wherever the recipe reads the peak."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, device=gpu) for _ in range(LAYERS)))
    yield "model is made"
    engine = DistributedDataParallel(model, device_ids=[gpu])
    yield "DDP is made"
    update = OPTIMIZERS[optimizer](engine.parameters())
    x, target = torch.randn(2, EXAMPLES, WIDTH, device=gpu)
    (engine(x) - target).square().mean().backward()
    yield "backward is done"
    update.step()
    yield "step is done"


def on_rank(rank: int, optimizer: str) -> None:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=RANKS)
    gpu = torch.device("cuda", rank)
    for reached in one_step(gpu, optimizer):
        if rank == 0:
            print(f"{reached:<18}{torch.cuda.max_memory_allocated(gpu) // 10**6:>6} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in OPTIMIZERS:
        print(name, flush=True)
        mp.spawn(on_rank, (name,), nprocs=RANKS)
