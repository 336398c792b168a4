"""One step of Adam on two GPUs, with and without ZeroRedundancyOptimizer, and the memory that it takes.

The steps and sizes are those of PyTorch's recipe "Shard Optimizer States with ZeroRedundancyOptimizer"
(docs.pytorch.org). The program starts its ranks itself: python zero_recipe.py
"""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer


def print_peak(rank: int, until: str) -> None:
    if rank == 0:
        print(f"{until:<18}{torch.cuda.max_memory_allocated(rank) // 10**6:>6} MB", flush=True)


def train(rank: int, world_size: int, use_zero: bool) -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=world_size)
    model = nn.Sequential(*[nn.Linear(2000, 2000).to(rank) for _ in range(20)])
    print_peak(rank, "model is made")
    ddp_model = DistributedDataParallel(model, device_ids=[rank])
    print_peak(rank, "DDP is made")
    optimizer: Optimizer
    if use_zero:
        optimizer = ZeroRedundancyOptimizer(ddp_model.parameters(), optimizer_class=Adam, lr=0.01)
    else:
        optimizer = Adam(ddp_model.parameters(), lr=0.01)
    outputs, labels = ddp_model(torch.randn(20, 2000).to(rank)), torch.randn(20, 2000).to(rank)
    nn.functional.mse_loss(outputs, labels).backward()
    print_peak(rank, "backward is done")
    optimizer.step()
    print_peak(rank, "step is done")
    dist.destroy_process_group()


if __name__ == "__main__":
    for use_zero in (True, False):
        print("ZeroRedundancyOptimizer" if use_zero else "Adam", flush=True)
        mp.spawn(train, args=(2, use_zero), nprocs=2)
