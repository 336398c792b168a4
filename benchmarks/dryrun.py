"""What a dry run takes: a training step of 7.5 B parameters on a rank out of 64 to 16,384, in seconds and in memory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course_lib import World, zero

from .measure import Row, seconds

SECONDS = 30.0
GIGABYTES = 2.0
"""The most that it may take, on 2 cores."""

CASES = [
    *((name, 64) for name in ("DataParallel", "Stage1", "Stage2", "Stage3", "FSDP2")),
    ("Stage3", 1024),
    *((name, 16_384) for name in ("DataParallel", "Stage1", "Stage2", "Stage3", "FSDP2", "DDP")),
]

TOKENS = 60_000


class Transformer(nn.Module):
    """36 layers of width 4096: 7.5 B parameters."""

    def __init__(self, width: int = 4096, layers: int = 36) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 32, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x @ self.tokens.weight.T


def step(name: str) -> None:
    """On a rank: a model in bf16, and a training step of the engine of that name; stage 3 fills the model itself."""
    with torch.device("meta" if name == "Stage3" else "cpu"):
        plain = Transformer().bfloat16()
    model: nn.Module = plain
    if name == "FSDP2":
        for part in (*plain.blocks, plain):
            fully_shard(part)
    elif name == "DDP":
        model = DistributedDataParallel(plain)
    else:
        model = getattr(zero, name)(plain, torch.optim.Adam)
    optimizer = model if hasattr(model, "step") else torch.optim.Adam(model.parameters())
    x = torch.randint(TOKENS, (1, 129))
    nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    optimizer.step()  # type: ignore[operator]


def main(name: str, world_size: int) -> None:
    """Print what one dry run takes: seconds, and bytes of memory of this process at most."""
    world = World(world_size, backend="dryrun", rank=world_size - 1, timeout=600)
    took = seconds(lambda: world.run(step, name))
    # Not `ru_maxrss`: that begins at what the process held from which this one was forked.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps([took, int(status["VmHWM"].removesuffix("kB")) * 1024]))


def rows() -> Iterator[Row]:
    """The rows of this benchmark: each case in a process of its own, whose memory is its alone."""
    for name, world_size in CASES:
        call = f"from benchmarks.dryrun import main; main({name!r}, {world_size})"
        told = subprocess.run([sys.executable, "-W", "ignore", "-c", call], capture_output=True, text=True, check=True)
        took, nbytes = json.loads(told.stdout.splitlines()[-1])
        what = f"dry run of a step of 7.5 B parameters, {name} on {world_size:,} ranks"
        yield Row(what=what, ours=took, most=SECONDS)
        yield Row(what=f"{what}: memory", ours=nbytes / 1e9, most=GIGABYTES, unit="GB")
