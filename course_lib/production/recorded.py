"""The steps that benchmarks/gpu records on a GPU, and that lessons run on simulated ranks to compare."""

from typing import Any


def recorded_steps(engine: str) -> None:
    """On a rank: train TinyGPT for two steps, with the `zero` engine of that name, or with "FSDP2"."""
    import torch  # here, because `explain` needs no torch
    from torch.distributed.fsdp import fully_shard

    from .. import zero
    from ..data import TinyGPT, batch

    torch.manual_seed(0)
    model: Any = TinyGPT(width=256, layers=4, heads=8, context=128)
    if engine == "FSDP2":
        for part in (*model.blocks, model):
            fully_shard(part)
        optimizer: Any = torch.optim.Adam(model.parameters())
    else:
        model = optimizer = getattr(zero, engine)(model, torch.optim.Adam)
    for number in range(2):
        tokens, targets = batch(number, 4, 128)
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
