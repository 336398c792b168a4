"""A whole training program: torchrun --standalone --nproc-per-node 2 -m course_lib.production.train FOLDER

It trains TinyGPT with FSDP2 on GPUs, or on the CPU where there are none, and saves a checkpoint in a folder of FOLDER
after each epoch. Started again with the same FOLDER, on any number of processes, it goes on from the last one.
"""

import os
import sys
import time
from glob import glob
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data import TinyGPT, text

EPOCHS, CONTEXT, MICRO_BATCHES = 3, 32, 2


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a checkpoint has, by the names of parameters: this rank's shards."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def main(folder: str) -> None:
    # 1. Who am I? torchrun has set RANK, LOCAL_RANK, WORLD_SIZE and the address of rank 0.
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    # 2. This rank's share of the data
    pieces = torch.tensor(list(text.encode())).unfold(0, CONTEXT + 1, CONTEXT)
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(TensorDataset(pieces), drop_last=True)
    loader = DataLoader(TensorDataset(pieces), batch_size=4, sampler=sampler, drop_last=True)
    steps = len(loader) // MICRO_BATCHES  # of an epoch; micro-batches that make no whole step are left out

    # 3. The model: without memory first, then filled and sharded part by part. The same seed on every rank.
    torch.manual_seed(0)
    with torch.device("meta"):
        model = TinyGPT(context=CONTEXT)
    for part in (model.embedding, model.positions, *model.blocks, model.norm, model.head):
        part.to_empty(device=device)  # memory for parameters and buffers, with undefined values
        for module in part.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()  # torch's values, which are not always the model's
        if part in model.blocks:
            fully_shard(part)
    model.init_weights()  # the model's own values, here those of its embeddings
    sharded = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after sharding: it must see the shards

    # 4. Go on where a checkpoint ended
    begin = len(glob(f"{folder}/epoch-*/.metadata"))  # written last: an unfinished checkpoint does not count
    if begin > 0:
        saved = states(model, optimizer)
        dcp.load(saved, checkpoint_id=f"{folder}/epoch-{begin - 1}")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])

    # 5. Train: micro-batches add up, and only the last of them communicates
    for epoch in range(begin, EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for number, (lines,) in enumerate(islice(loader, steps * MICRO_BATCHES), start=1):
            is_last = number % MICRO_BATCHES == 0
            sharded.set_requires_gradient_sync(is_last)
            scores, targets = model(lines[:, :-1].to(device)), lines[:, 1:].to(device)
            loss = cross_entropy(scores.flatten(0, 1), targets.flatten()) / MICRO_BATCHES
            loss.backward()
            total += loss.detach()
            if is_last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean = total.item() / steps / dist.get_world_size()
            print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
        # 6. Save: each rank writes its shards
        dcp.save(states(model, optimizer), checkpoint_id=f"{folder}/epoch-{epoch}")
    dist.destroy_process_group()
    time.sleep(0.5)  # torch keeps gloo's threads after fully_shard. One that holds a tensor when Python ends aborts


if __name__ == "__main__":
    main(sys.argv[1])
