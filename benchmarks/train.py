"""A program that knows nothing of the course: `torchrun train.py ddp`, or `fsdp2`, trains a GPT of 3.3 M parameters.

Rank 0 prints a line at the start. At the end, it prints the median seconds of a step, and of processor time, as JSON.
"""

import json
import os
import statistics
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 256, 256, 4, 4, 64, 4
WARM_UP, STEPS = 10, 50


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, HEADS, -1).transpose(1, 2) for part in self.attn(self.ln_1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.size(1), device=x.device))
        for block in self.h:
            h = block(h)
        return F.cross_entropy(self.lm_head(self.ln_f(h)).view(-1, VOCABULARY), y.view(-1))


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if dist.get_rank() == 0:
        print("training on", device, flush=True)
    torch.manual_seed(dist.get_rank())
    gpt = GPT().to(device)
    if sys.argv[1] == "fsdp2":
        for block in gpt.h:
            fully_shard(block)
        fully_shard(gpt)
    model = gpt if sys.argv[1] == "fsdp2" else DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = torch.randint(VOCABULARY, (10_000,))
    times = []
    for step in range(WARM_UP + STEPS + 1):
        if step >= WARM_UP:
            times.append((time.perf_counter(), time.process_time()))
        at = torch.randint(len(data) - LENGTH, (BATCH,)).tolist()
        x, y = (torch.stack([data[i + shift : i + shift + LENGTH] for i in at]).to(device) for shift in (0, 1))
        loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
    if dist.get_rank() == 0:
        clock, processor = (statistics.median(b - a for a, b in pairwise(one)) for one in zip(*times, strict=True))
        print(json.dumps({"a step": clock, "a step's processor time": processor}))
    dist.destroy_process_group()


main()
